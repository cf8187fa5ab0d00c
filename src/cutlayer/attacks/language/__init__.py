"""Next tokens, read where the vendor runs the upper part of a language model."""
