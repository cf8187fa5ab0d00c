"""Which tokens come next: read where the customer holds a language model's tail and labels never leave.

`next_tokens` has the attacks and what they are scored against. In training they read the gradient that goes up
(`tail_gradient`: through blocks by `tail_blocks`, through norm and head by `norm_jacobian` and `unembedding`); of an
answer they read the hidden states that the vendor itself sends down (`forward_leak`).
"""
