"""The command line: thin over the customer's SDK, the vendor's service and the recipes.

Nothing heavy is imported until a command runs, so that `--help` answers at once.
"""

from cutlayer.cli.app import app, main

__all__ = ["app", "main"]
