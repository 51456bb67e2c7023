"""Released packages for federated learning and HSFL on the same work, each beside bare PyTorch loops in its own environment.

    python benchmarks/peers/run.py                           # installs, measures, and writes results.json into the cache folder
    python benchmarks/peers/run.py install                   # only makes the environments (needs a package index)
    python benchmarks/peers/run.py measure --only hsfl --only pfl --work cnn
    python benchmarks/peers/run.py report                    # results.json into docs/benchmarks.md, docs/results and docs/figures
    python benchmarks/peers/run.py --quick                   # a smoke run: HSFL and the bare loop as they are here, no installation

Work: `resnet18`, FL of 10 clients of 768 images of 3x32x32, batch 256, all clients in a round; `cnn`, FL of 500 clients of 20 images of
1x28x28, batch 10, 50 clients a round. One local epoch, plain SGD, the same data, first weights, steps and samples for all. Every
process has one thread. A peer of one process is set beside one bare loop, of two processes beside two that share the clients of a round.

The plan repeats: every variant is started `--repeats` times, all others between, and each start makes two rounds that warm up and then
`--rounds` that are measured, a round of the peer and of the bare loops in turn. Batches and samples are counted in the model and must be
those of the work; the weights after two rounds are compared with a plain FedAvg on the same batches (`shared_work.py`).

Flower's Ray opens ports: measure it where nobody else reaches them, as root: ip netns add NAME; ip netns exec NAME ip link set lo up;
ip netns exec NAME python benchmarks/peers/run.py measure.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from environments import PACKAGES, InstallError, install, is_installed, python_of, versions
from paired_rounds import WARM_UP_ROUNDS, Bare
from process_tree import run_watched
from shared_work import COUNTS_VARIABLE, FORMATS, WORKS, Work, prepare, read_counts

HERE = Path(__file__).parent
TIME_LIMIT_S = 3600.0  # of one start


@dataclass(frozen=True)
class Variant:
    """A peer with its settings. processes: that train, and so how many bare loops run beside it."""

    name: str
    peer: str  # its environment
    adapter: str
    title: str
    tuning: str
    processes: int = 1
    settings: dict[str, Any] = field(default_factory=dict)
    works: tuple[str, ...] = tuple(WORKS)


def hsfl_variant(name: str, title: str, processes: int = 1, **settings: Any) -> Variant:
    engine = {"engine": "inline"} if processes == 1 else {"engine": "workers", "workers": processes}
    works = ("resnet18", "quick-resnet18") if "model" in settings else tuple(WORKS)
    tuning = "`inline`" if processes == 1 else f"`workers`, {processes}"
    tuning += ", a checkpoint at the end" + (", its own ResNet-18" if "model" in settings else "")
    return Variant(name, "hsfl", "train_hsfl.py", title, tuning, processes, engine | settings, works)


def flower_variant(actors: int) -> Variant:
    settings = {"actors": actors, "threads": 1, "pull_interval_s": 0.02, "ray_init": {"_node_ip_address": "127.0.0.1"}}
    tuning = (
        f"`num_cpus` 1 for a client, Ray with `num_cpus` {actors} and workers at niceness 0 (not 15), replies pulled every 20 ms (not 100), model "
        "and data kept by the actor, no evaluation"
    )
    title = f"Flower, {actors} actor{'s'[: actors > 1]}"
    return Variant(f"flower-{actors}", "flower", "train_flower.py", title, tuning, actors, settings)


def pfl_variant(processes: int) -> Variant:
    tuning = f"{processes} process{'es'[: 2 * (processes > 1)]}{', gloo' if processes > 1 else ''}, fused SGD, nothing evaluated"
    return Variant(
        f"pfl-{processes}",
        "pfl",
        "train_pfl.py",
        f"pfl, {processes} process{'es'[: 2 * (processes > 1)]}",
        tuning,
        processes,
    )


VARIANTS = [
    Variant("bare", "hsfl", "train_bare.py", "the bare loop again", "fused SGD, no averaging"),
    hsfl_variant("hsfl-fl", "HSFL, FL", framework="fl"),
    hsfl_variant("hsfl-fl-2", "HSFL, FL, two workers", 2, framework="fl"),
    hsfl_variant("hsfl-split", "HSFL, split mode", framework="hsfl"),
    hsfl_variant("hsfl-split-2", "HSFL, split mode, two workers", 2, framework="hsfl"),
    hsfl_variant("hsfl-fl-own", "HSFL, FL, its own ResNet-18", framework="fl", model="own"),
    flower_variant(1),
    flower_variant(2),
    pfl_variant(1),
    pfl_variant(2),
    Variant("fluke", "fluke", "train_fluke.py", "fluke", "in memory, clients without state, fused SGD, nothing evaluated", 1, {"persistency": False}),
    Variant("fedlab", "fedlab", "train_fedlab.py", "FedLab", "serial trainer, fused SGD, batches as views, nothing evaluated"),
]  # fmt: skip

QUICK = {"quick": ("bare", "hsfl-fl", "hsfl-fl-2", "hsfl-split"), "quick-resnet18": ("hsfl-fl-own", "hsfl-split-2")}


# --- one start


def start(
    variant: Variant, work: Work, memory_format: str, rounds: int, checks: bool, cache: Path, python: Path
) -> dict[str, Any]:
    """Start a variant once and measure it. Returns what the result file holds of it; `failed` says why where it did not end well."""
    folder = Path(tempfile.mkdtemp(prefix=f"{work.name}-{variant.name}-", dir=cache / "starts"))
    spec = {
        "work": work.name, "memory_format": memory_format, "rounds": rounds, "processes": variant.processes,
        "settings": variant.settings, "shared": str(cache / "shared"), "folder": str(folder),
    }  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec))
    record = {"variant": variant.name, "work": work.name, "memory_format": memory_format, "load": os.getloadavg()}
    environment = child_environment() | {COUNTS_VARIABLE: str(folder)}
    command = [str(python), str(HERE / "adapters" / variant.adapter), str(folder / "spec.json")]
    watched = run_watched(command, environment, folder / "log.txt", folder / "measuring", TIME_LIMIT_S)
    if watched.code != 0 or not (folder / "pairs.json").exists():
        words = (folder / "log.txt").read_text(errors="replace").strip().splitlines()
        return record | {"failed": f"ended with {watched.code}: {words[-1] if words else ''}", "folder": str(folder)}
    steps, samples, first_update = read_counts(folder)
    trained_rounds = WARM_UP_ROUNDS + rounds
    expected = (
        trained_rounds * work.per_round * work.batches_of_client,
        trained_rounds * work.per_round * work.num_samples,
    )
    if (steps, samples) != expected:
        failed = f"trained {steps} batches of {samples} samples, but the work has {expected[0]} of {expected[1]}"
        return record | {"failed": failed, "folder": str(folder)}
    record |= json.loads((folder / "pairs.json").read_text())
    record |= {
        "steps": steps, "samples": samples,
        "first_update_s": first_update - watched.started, "peak_bytes": watched.peak_bytes,
    }  # fmt: skip
    if checks and (folder / "trained.json").exists():
        check = [str(python), str(HERE / "shared_work.py"), "--check", str(folder), "--shared", str(cache / "shared")]
        answer = subprocess.run(check, env=child_environment(), check=True, capture_output=True, text=True)
        record |= json.loads(answer.stdout)
    shutil.rmtree(folder)
    return record


def child_environment() -> dict[str, str]:
    """One thread for every library, and our modules on the path."""
    paths = [str(HERE), str(HERE / "adapters"), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
    return os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths)}


# --- all starts


def measure(words: argparse.Namespace, cache: Path, out: Path) -> bool:
    """Start all variants that are asked for, in turns, and write the result file after each start. Returns whether all ended well."""
    (cache / "starts").mkdir(parents=True, exist_ok=True)
    python = (
        dict.fromkeys(PACKAGES, Path(sys.executable))
        if words.quick
        else {p: python_of(p, cache / "envs") for p in PACKAGES}
    )
    prepare(cache / "shared")
    missing = [peer for peer in words.only if not words.quick and not is_installed(peer, cache / "envs")]
    for peer in missing:
        print(f"{peer} is left out, since it is not installed: run the command `install` and see why", flush=True)
    chosen = [v for v in VARIANTS if v.peer in words.only and v.peer not in missing]
    chosen = [v for v in chosen if words.variant is None or v.name in words.variant]
    works = [WORKS[name] for name in words.work]
    formats = {work.name: memory_formats(work, words.memory_format, cache) for work in works}
    result: dict[str, Any] = {
        "measured": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "warm_up_rounds": WARM_UP_ROUNDS,
        "versions": {peer: versions(python[peer]) for peer in sorted({variant.peer for variant in chosen})},
        "works": {work.name: asdict(work) for work in works}, "variants": {v.name: asdict(v) for v in chosen}, "not_installed": missing, "starts": [],
    }  # fmt: skip
    for repeat in range(words.repeats):
        turn = chosen[repeat % len(chosen) :] + chosen[: repeat % len(chosen)]  # nobody is always first
        for work in works:
            names = (
                QUICK[work.name] if words.quick else [variant.name for variant in turn if work.name in variant.works]
            )
            for variant in (variant for variant in turn if variant.name in names):
                for memory_format in formats[work.name]:
                    rounds = words.rounds or work.rounds
                    record = start(variant, work, memory_format, rounds, repeat == 0, cache, python[variant.peer])
                    result["starts"].append(record)
                    out.write_text(json.dumps(result, indent=1))
                    print(line_of(record, work), flush=True)
    print(f"wrote {out}")
    failed = [record for record in result["starts"] if "failed" in record]
    for record in failed[:2] if words.quick else ():
        print((Path(record["folder"]) / "log.txt").read_text(errors="replace")[-2000:])
    return not failed


def memory_formats(work: Work, asked: str, cache: Path) -> list[str]:
    """The memory formats in which the peers get the model and the images. auto: that of the faster bare loop, since the best settings of
    every peer are asked for."""
    if asked != "auto":
        return list(FORMATS) if asked == "both" else [asked]
    os.environ.update(child_environment())
    bare = Bare(work.name, cache / "shared", 1)
    rounds = [{name: bare.round_s(name) for name in FORMATS} for _ in range(4)][1:]
    bare.close()
    medians = {name: statistics.median(seconds[name] for seconds in rounds) for name in FORMATS}
    print(f"{work.name}: a round of the bare loop takes {medians}", flush=True)
    return [min(medians, key=medians.__getitem__)]


def line_of(record: dict[str, Any], work: Work) -> str:
    """A start in one line."""
    head = f"{record['work']} {record['variant']} ({record['memory_format']}, load {record['load'][0]:.1f})"
    if "failed" in record:
        return f"{head}: FAILED, {record['failed']} ({record['folder']})"
    rate = work.per_round * work.num_samples / statistics.median(pair["peer"] for pair in record["pairs"])
    ratios = {name: statistics.median(pair[name] / pair["peer"] for pair in record["pairs"]) for name in FORMATS}
    difference = (
        f", weights differ by at most {record['largest_difference']:.1e}" if "largest_difference" in record else ""
    )
    return (
        f"{head}: {rate:.0f} samples/s, {' and '.join(f'{value:.3f} of {name}' for name, value in ratios.items())} bare, "
        f"{record['peak_bytes'] / 1e6:.0f} MB, first update after {record['first_update_s']:.1f} s{difference}"
    )


def machine() -> dict[str, Any]:
    model = [
        row.partition(":")[2].strip()
        for row in Path("/proc/cpuinfo").read_text().splitlines()
        if row.startswith("model name")
    ]
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "processor": model[0] if model else platform.machine(), "cores": os.cpu_count(), "memory_gb": round(memory_kb / 1e6, 1),
        "system": f"{platform.system()} {platform.release()}",
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=("all", "install", "measure", "report"), default="all")
    parser.add_argument(
        "--only", action="append", choices=PACKAGES, metavar="PEER", help=f"of {', '.join(PACKAGES)}; may be repeated"
    )
    names = [variant.name for variant in VARIANTS]
    parser.add_argument(
        "--variant", action="append", choices=names, metavar="NAME", help=f"of {', '.join(names)}; may be repeated"
    )
    parser.add_argument("--work", action="append", choices=WORKS, help="may be repeated; by default resnet18 and cnn")
    parser.add_argument("--repeats", type=int, default=3, help="starts of each variant (3)")
    parser.add_argument("--rounds", type=int, help="measured rounds of a start; by default 4 of resnet18 and 10 of cnn")
    parser.add_argument(
        "--memory-format",
        choices=("auto", "both", *FORMATS),
        default="auto",
        help="of the peers; bare loops run in both",
    )
    default_cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hsfl" / "peers"
    parser.add_argument(
        "--cache", type=Path, default=default_cache, help=f"for environments, data and results ({default_cache})"
    )
    parser.add_argument("--results", type=Path, help="the result file; by default results.json in the cache folder")
    parser.add_argument("--quick", action="store_true")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended, too
    if words.quick:
        words.only, words.work, words.repeats, words.rounds = ["hsfl"], list(QUICK), 1, 2
        words.memory_format = "contiguous"
        with tempfile.TemporaryDirectory() as folder:
            return 0 if measure(words, Path(folder), Path(folder) / "results.json") else 1
    words.only, words.work = words.only or list(PACKAGES), words.work or ["resnet18", "cnn"]
    cache = words.cache.expanduser().absolute()
    out = words.results or cache / "results.json"
    if words.command in ("all", "install"):
        for peer in words.only:
            try:
                install(peer, cache / "envs")
            except InstallError as error:
                print(error, flush=True)
    if words.command in ("all", "measure"):
        return 0 if measure(words, cache, out) else 1
    if words.command == "report":
        from report import write_report  # here, because it needs matplotlib

        write_report(json.loads(out.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
