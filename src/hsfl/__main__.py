"""`python -m hsfl` runs the command line, as the command `hsfl` does."""

import sys

from hsfl.cli import app

if __name__ == "__main__":
    sys.exit(app(prog_name="hsfl"))
