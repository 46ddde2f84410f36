"""`python -m paceline`, also under torchrun: the command line of `paceline/cli`."""

import sys

from paceline.cli import main

if __name__ == "__main__":
    sys.exit(main())
