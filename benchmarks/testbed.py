"""Is a plan true? Fleets in network namespaces, measured, planned, deployed, run and compared with their plans (docs/prediction.md).

    python benchmarks/testbed.py --small                       # three clients, a small CNN, digits: about a minute
    python benchmarks/testbed.py draw                          # write benchmarks/testbed_fleets.json anew
    python benchmarks/testbed.py run links-1 --model cnn -o runs/testbed
    python benchmarks/testbed.py run --all -o runs/testbed     # every fleet with both models
    python benchmarks/testbed.py run links-1 --model resnet18 --codec none --codec int8 -o runs/testbed   # smashed data and gradients as they are, and in int8
    python benchmarks/testbed.py report runs/testbed           # docs/results/prediction.csv, docs/prediction.md and its figure
    python benchmarks/testbed.py clean                         # remove what a killed testbed left

Needs root, Linux, iproute2 and two cores with nothing else on them. All traffic stays in namespaces of its own; everything is removed at the
end, also after Ctrl-C and SIGTERM, and at the next start what a killed one left. MNIST comes from HSFL_DATA.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import FrameType

from hsfl.codec_table import NONE, pair_text, read_pair
from hsfl.errors import InputError, known_name
from testbed_parts.fleets import FLEETS_FILE, SMALL, draw_fleets, read_fleets, write_fleets
from testbed_parts.machine import Machine, lacking
from testbed_parts.results import RESULT, report, show_check
from testbed_parts.trial import Effort, Trial

ROOT = Path(__file__).parent.parent


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", "--quick", action="store_true", help="the small fleet, as a test")
    parser.add_argument("--keep", type=Path, help="with --small: a folder for what it writes")
    orders = parser.add_subparsers(dest="order")
    draw = orders.add_parser("draw", help="draw the fleets")
    draw.add_argument("--seed", type=int, default=28)
    draw.add_argument("--each", type=int, default=2, help="fleets of each kind")
    run = orders.add_parser("run", help="measure, plan, deploy, run and compare")
    run.add_argument("fleets", nargs="*")
    run.add_argument("--all", action="store_true", help="all fleets")
    run.add_argument("--model", action="append", help="by default all models of the fleet")
    run.add_argument("--sets", nargs="+", default=(), help="only these cut sets, besides the planned one")
    run.add_argument("--passes", type=int, default=2, help="blocks of each set")
    run.add_argument("--rounds", type=int, default=4, help="of a block, with its first one, which is left out")
    run.add_argument(
        "--codec",
        action="append",
        help="of smashed data and gradients, as link.allowed writes it (int8, topk:0.1/int8); each is a trial of its own; by default none",
    )
    run.add_argument(
        "--slowdown", action="store_true", help="devices sleep in proportion instead of having a CPU quota"
    )
    run.add_argument("-o", "--out", type=Path, required=True, help="a folder, with a folder for each fleet and model")
    table = orders.add_parser("report", help="table and figure")
    table.add_argument("folders", nargs="*", type=Path, help="what run wrote; without them, the CSV file as it is")
    table.add_argument("--csv", type=Path, default=ROOT / "docs" / "results" / "prediction.csv")
    table.add_argument("--document", type=Path, default=ROOT / "docs" / "prediction.md")
    table.add_argument("--machine", default="", help="what the table says of the machine and its load")
    orders.add_parser("clean", help="remove what a killed testbed left")
    chosen = parser.parse_args(words)
    if chosen.order is None and not chosen.small:
        parser.error("say draw, run, report, clean or --small")
    return chosen


def end(number: int, frame: FrameType | None) -> None:
    """SIGTERM ends the program as Ctrl-C does, so that everything is removed."""
    raise KeyboardInterrupt


def small(keep: Path | None) -> None:
    if reason := lacking():
        print(f"left out: {reason}")
        return
    effort = Effort("digits", 100, 1.0, passes=2, rounds=3, only=("ones", "deep"))
    with tempfile.TemporaryDirectory() as place:
        show_check(Trial(SMALL, "cnn", keep or Path(place) / "small", effort, print).run())


def run(words: argparse.Namespace) -> None:
    fleets, failed = read_fleets(FLEETS_FILE), list[str]()
    for name in words.fleets:
        known_name("fleet", name, fleets)
    effort = Effort(passes=words.passes, rounds=words.rounds, slowdown=words.slowdown, only=tuple(words.sets))
    codecs = [pair_text(read_pair("--codec", text)) for text in words.codec or [NONE]]
    names = fleets if words.all else words.fleets
    for name, codec in product(names, codecs):
        for model in words.model or fleets[name].work:
            coded = "" if codec == NONE else "-" + codec.replace("/", "+").replace(":", "")
            folder = words.out / f"{name}-{model}{coded}{'-slowdown' if words.slowdown else ''}"
            if (folder / RESULT).exists():
                print(f"{folder} is complete")
                continue
            try:
                show_check(Trial(fleets[name], model, folder, replace(effort, codec=codec), print).run())
            except InputError as error:  # the others are tried all the same
                failed.append(f"{folder}: {error}")
                print(failed[-1])
    if failed:
        raise InputError("\n".join(failed))


def main() -> None:
    words = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, end)
    try:
        if words.small:
            small(words.keep)
        elif words.order == "draw":
            write_fleets(FLEETS_FILE, words.seed, draw_fleets(words.seed, words.each))
        elif words.order == "run":
            run(words)
        elif words.order == "report":
            report(words.folders, words.csv, words.document, words.machine)
        else:
            with Machine([]):
                pass
    except InputError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
