"""Run one file of this package, or those of `make bench`; each has a `main`."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

# The others take minutes and have a make target of their own.
USUAL = ("path", "cost", "accounts")
NAMES = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")
)


def main() -> None:
    """Run the named benches."""
    # After a name, --help is the bench's own.
    own = any(name in NAMES for name in sys.argv)
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, add_help=not own)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"{NAMES}")
    for name in parser.parse_known_args()[0].names or USUAL:
        import_module(f"bench.{name}").main()


if __name__ == "__main__":
    main()
