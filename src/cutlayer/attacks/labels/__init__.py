"""Labels read from gradients, reports, the order of records, and from which tokens survive."""
