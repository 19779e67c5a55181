"""`python -m engine`: the engine from a terminal, without any window."""

import sys

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
