"""Words read from what left: of noisy rows and ids, and of rows behind blocks."""
