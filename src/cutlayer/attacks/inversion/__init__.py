"""Which words were written: attacks on what left in the place of words.

On noisy rows and ids: `nearest_neighbour` (the papers' attack), `maximum_posterior` with what it is made of (`channel`,
`emission`, `prior`, `decoding`), `multi_run` for several releases (`alignment`), `masked_infill` (`infill`),
`float_support`; where public words stood before texts `known_pairs` and `reconstruction_head`; and `mlp` and
`autoencoder` (`black_box`), which learn from releases of the attacker's own.

On rows behind blocks: `linear` (`inverter`), `learned`, `refined`, `unsplit`, `word_selection`, `prefix_search`.
"""
