"""`python -m cutlayer.cli`: the same as `cutlayer`, with a chosen interpreter."""

from cutlayer.cli.app import main

if __name__ == "__main__":
    main()
