"""What judges attacks.

A `truth` knows what was asked, scores guesses (`scoring`, `statistics`) and makes the `traffic` of `controls`; there is
one for `tokens`, `labels`, `attributes`, `entities`, `lengths` and `rows`. Truths that must run a model to make traffic
stand beside their attacks (`language.next_tokens`, `inversion.prefix_search`). `measure` is the one call that does all.
"""
