"""What releases tell beside words and labels: who wrote a text, what it names, how long it is.

`mlp` and `classifier` learn an attribute, or a label, from releases of which it is known; `entity_tagger` finds names;
`lengths` needs no more than how long frames are.
"""
