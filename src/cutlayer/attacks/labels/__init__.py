"""Which label each text had: read from what training shows.

From gradients as they are: `output_gradient`, `gradient_norm`, `clusters`. From labels that were drawn at random:
`record_order` (`hidden_markov`) and `reports_and_text`. From which tokens survive label-dependent noise: `survival`.
"""
