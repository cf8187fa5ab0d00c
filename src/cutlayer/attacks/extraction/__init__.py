"""What a customer can copy of the vendor's blocks, from rows in and rows out: the attack in the other direction.

`middle_distillation` measures it by a `student` that learns from what was `exchanged`, beside two that see no rows out;
`controls` tell whether a student could learn at all.
"""
