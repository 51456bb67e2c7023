"""Writes the tables of docs/leaderboard.md: python docs/leaderboard.py [FURTHER OPTIONS OF hsfl reproduce leaderboard]

`hsfl reproduce leaderboard` makes the tables from the trainings in docs/results, with the methods of docs/methods, if there are any.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "leaderboard.md"
BEGIN, END = "<!-- leaderboard: begin -->", "<!-- leaderboard: end -->"


def main() -> None:
    out = ROOT / "runs" / "reproduce-quick"
    plugins = [word for path in sorted((ROOT / "docs" / "methods").glob("*.py")) for word in ("--plugin", str(path))]
    command = [sys.executable, "-m", "hsfl", "reproduce", "leaderboard", "--out", str(out), *plugins, *sys.argv[1:]]
    subprocess.run(command, check=True, cwd=ROOT)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{(out / 'leaderboard' / 'leaderboard.md').read_text()}\n{END}{after}")


if __name__ == "__main__":
    main()
