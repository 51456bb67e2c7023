"""Whether two checkouts compute the same: python benchmarks/same_bits.py OLD NEW

Runs the command of each checkout (ten frameworks for two rounds, one plan, ten allocations, one smoke reproduction) with one
thread and compares what it wrote: models and losses by their bits, seconds and cuts by all their digits.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

FRAMEWORKS = ["cl", "fl", "sl", "splitfed_v1", "splitfed_v2", "psl", "fsl", "locfedmix_sl", "cpsl", "hsfl"]
SMALL = {
    "model.name": "cnn", "data.name": "digits", "data.image_size": 8, "data.limit": 120, "data.limit_test": 60,
    "data.partition": "dirichlet", "fleet.num_clients": 4, "fleet.cuts": "[1, 2, 3, 5]", "train.rounds": 2,
    "train.batch_size": 8, "train.drop_rate": 0.2, "seed": 3,
}  # fmt: skip
IDLE = {"framework=cl": ("fleet.cuts", "train.drop_rate"), "framework=fl": ("fleet.cuts",)}  # refused: without effect
TIMES = ("wall_s", "seconds", "time")  # of the machine, not of the run


def hsfl(checkout: Path, *words: object) -> str:
    env = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    code = "from hsfl.cli import app; app()"
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=checkout, check=False)
    if done.returncode:
        sys.exit(f"{checkout}: hsfl {' '.join(map(str, words))} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_times(part) for name, part in value.items() if name not in TIMES}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def run_of(checkout: Path, folder: Path, *changes: str) -> dict[str, Any]:
    without = next((names for change, names in IDLE.items() if change in changes), ())
    words = [word for name, value in SMALL.items() if name not in without for word in ("--set", f"{name}={value}")]
    words += [word for change in changes for word in ("--set", change)]
    hsfl(checkout, "run", *words, "--out", folder, "--quiet")
    rounds = [without_times(json.loads(line)) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    model = hashlib.sha256()  # of the weights alone: a file may carry more notes than it did
    for name, weights in sorted(load_file(folder / "model.safetensors").items()):
        model.update(name.encode() + weights.tobytes())
    return {"rounds": rounds, "model": model.hexdigest()}


def everything(checkout: Path, scratch: Path, quick: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in FRAMEWORKS[-1:] if quick else FRAMEWORKS:
        found[f"run {name}"] = run_of(checkout, scratch / name, f"framework={name}", "train.optimizer=adam")
    if quick:
        return found
    proposed = ("allocation.policy=proposed", "fleet.cuts=planned", "fleet.max_cut=[3, 5, 4, 5]")
    found["run proposed"] = run_of(checkout, scratch / "proposed", *proposed)
    found["plan"] = without_times(json.loads(hsfl(checkout, "plan", "paper-cifar10", "--json")))
    scenario = json.loads((checkout / "docs" / "examples" / "scenario.json").read_text())
    for index in range(10):
        scenario["batch_size"] = 32 + 8 * index
        scenario["sharing"] = "bandwidth" if index % 3 == 2 else "exclusive"
        path = scratch / f"scenario-{index}.json"
        path.write_text(json.dumps(scenario))
        found[f"allocate {index}"] = without_times(json.loads(hsfl(checkout, "allocate", path, "--json")))
    hsfl(checkout, "reproduce", "fig5", "--scale", "smoke", "--out", scratch / "reproduce", "--quiet")
    found["reproduce fig5"] = (scratch / "reproduce" / "fig5" / "fig5.csv").read_text()
    return found


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Every place where the two differ; what only the new one has is no difference."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [line for name in old for line in differences(old[name], new.get(name), f"{where}.{name}")]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, pair in enumerate(zip(old, new)) for line in differences(*pair, f"{where}[{i}]")]
    return [] if old == new else [f"{where}: {str(old)[:80]} -> {str(new)[:80]}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("old", type=Path, nargs="?", default=here, help="a checkout; else this one")
    parser.add_argument("new", type=Path, nargs="?", default=here, help="a checkout; else this one")
    parser.add_argument("--quick", action="store_true", help="one framework alone")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        old, new = (
            everything(checkout.resolve(), Path(scratch) / name, words.quick)
            for name, checkout in (("old", words.old), ("new", words.new))
            if (Path(scratch) / name).mkdir() is None
        )
    total = 0
    for name in old:
        lines = differences(old[name], new[name])
        total += len(lines)
        print(f"{name}: {'the same' if not lines else f'{len(lines)} differences, first {lines[0]}'}")
    print(f"{len(old)} things compared, {total} differences")
    sys.exit(total > 0)


if __name__ == "__main__":
    main()
