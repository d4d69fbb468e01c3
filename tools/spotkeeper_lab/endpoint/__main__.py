"""Serve the local AWS; started by `spotkeeper lab up` in an environment of its own."""

import os

# Functions inherit the environment; the checkout is not theirs.
os.environ.pop("PYTHONPATH", None)

from spotkeeper_lab.endpoint.serve import main

if __name__ == "__main__":
    main()
