"""How embedded data were made: see --help of `decoder`, `sample_corpus`, `tagger` and `words`. Not installed."""
