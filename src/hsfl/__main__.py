"""`python -m hsfl` is the command."""

import sys

from hsfl.cli import app

if __name__ == "__main__":
    sys.exit(app(prog_name="hsfl"))
