"""What judges attacks: the truth, how guesses are scored, controls, and the one call that runs them all."""
