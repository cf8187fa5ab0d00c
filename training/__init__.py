"""How embedded data were made: see --help of `training.decoder` and of `training.sample_corpus`. Not installed."""
