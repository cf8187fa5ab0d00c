"""Training in one process with ordinary PEFT: what a split run is read against."""
