"""How the embedded decoder was made: `python -m training.decoder --help`. Not part of the installed package."""
