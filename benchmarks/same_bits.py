"""Whether two checkouts compute the same: python benchmarks/same_bits.py OLD NEW

Runs the command of each checkout (ten frameworks for two rounds, HSFL on two worker processes, one plan, ten allocations, one
smoke reproduction, one deployment with mutual TLS on loopback) with one thread and compares what it wrote: models and losses by
their bits, seconds and cuts by all their digits. A deployment's seconds are measured and differ from run to run; what is
compared there is models, losses, cuts, the clients that were kept, and bytes for each link.

`--only PREFIX` compares the things whose names begin with it, such as `--only deployment` (may be repeated).
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

FRAMEWORKS = ["cl", "fl", "sl", "splitfed_v1", "splitfed_v2", "psl", "fsl", "locfedmix_sl", "cpsl", "hsfl"]
SMALL = {
    "model.name": "cnn", "data.name": "digits", "data.image_size": 8, "data.limit": 120, "data.limit_test": 60,
    "data.partition": "dirichlet", "fleet.num_clients": 4, "fleet.cuts": "[1, 2, 3, 5]", "train.rounds": 2,
    "train.batch_size": 8, "train.drop_rate": 0.2, "allocation.policy": "even", "seed": 3,
}  # fmt: skip
IDLE = {"framework=cl": ("fleet.cuts", "train.drop_rate"), "framework=fl": ("fleet.cuts",)}  # refused: without effect
TIMES = ("wall_s", "seconds", "time")  # of the machine, not of the run
DEVICES = ("ward-1", "ward-2", "ward-3")
DEPLOYED: dict[str, Any] = {
    "framework": "hsfl", "seed": 3, "model": {"name": "cnn"},
    "data": {"name": "digits", "image_size": 8, "limit": 120, "limit_test": 60, "partition": "dirichlet"},
    "fleet": {"num_clients": len(DEVICES), "cuts": [1, 3, 5]},
    "train": {"rounds": 2, "batch_size": 8, "optimizer": "adam", "tau_s": 300.0},
}  # fmt: skip
DEPLOYED_FIELDS = (  # of a round's record, those that do not depend on how fast the machine was
    "round", "framework", "num_samples", "train_loss", "test_loss", "test_accuracy", "balanced_accuracy", "recall", "lr",
    "cuts", "started", "kept", "dropped", "bytes", "metrics",
)  # fmt: skip
DEPLOYMENT_S = 600.0  # until a deployment must have ended
END_S = 30.0  # for a client to end when the main server has ended, and for a process to end when it is told to


def command_of(checkout: Path, *arguments: object) -> dict[str, Any]:
    """How a process of a checkout is started."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    code = "from hsfl.cli import app; app()"
    return {"args": [sys.executable, "-c", code, *map(str, arguments)], "env": environment, "cwd": checkout}


def hsfl(checkout: Path, *arguments: object) -> str:
    done = subprocess.run(**command_of(checkout, *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(
            f"{checkout}: hsfl {' '.join(map(str, arguments))} ended with {done.returncode}\n{done.stderr[-2000:]}"
        )
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
    return {"rounds": round_records(folder), "model": digest(folder / "model.safetensors")}


def round_records(folder: Path) -> list[dict[str, Any]]:
    return [without_times(json.loads(text)) for text in (folder / "rounds.jsonl").read_text().splitlines()]


def digest(path: Path) -> str:
    """Of the weights alone: a file may carry more notes than it did."""
    total = hashlib.sha256()
    for name, weights in sorted(load_file(path).items()):
        total.update(name.encode() + weights.tobytes())
    return total.hexdigest()


def deployment_of(checkout: Path, folder: Path) -> dict[str, Any]:
    """Both servers and three devices as processes, with certificates, until all rounds are done."""
    folder.mkdir()
    hsfl(checkout, "certs", "init", "--dir", folder / "certs")
    for device in DEVICES:
        hsfl(checkout, "certs", "add", device, "--dir", folder / "certs")
    write_settings(folder)
    starts = {"edge": ("serve", "edge"), "main": ("serve", "main")} | dict.fromkeys(DEVICES, ("client",))
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name, subcommand in starts.items():
            with (folder / f"{name}.log").open("wb") as log:
                settings = command_of(checkout, *subcommand, folder / f"{name}.toml")
                processes[name] = subprocess.Popen(**settings, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for_rounds(checkout, folder, processes)
    finally:
        end_all(processes)
    records = [
        {name: record[name] for name in DEPLOYED_FIELDS if name in record} for record in round_records(folder / "run")
    ]
    models = {name: digest(folder / "run" / f"{name}.safetensors") for name in ("model", "model-best")}
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return {"rounds": records, **models, "bytes": summary["bytes"], "status": summary["status"]}


def write_settings(folder: Path) -> None:
    """One TOML for each process."""
    main, edge = free_addresses(2)
    common = {"threads": 1}
    trees: dict[str, dict[str, Any]] = {
        "main": {"listen": main, "edge": edge, "out": "run", "clients": DEVICES, "min_clients": len(DEVICES), **common},
        "edge": {"listen": edge, "out": "edge", **common},
    }
    for client, device in enumerate(DEVICES):
        dialled = {"name": device, "main": main, "edge": edge, "as_client": client, "measure_s": 0.0}
        trees[device] = dialled | common | {"data": {"name": DEPLOYED["data"]["name"]}}
    trees["main"]["run"] = DEPLOYED
    for name, tree in trees.items():
        settings = {"certs": f"certs/{name}"} | tree
        (folder / f"{name}.toml").write_text("".join(f"{key} = {toml(value)}\n" for key, value in settings.items()))


def free_addresses(count: int) -> list[str]:
    """Ports of this machine that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return [f"127.0.0.1:{port}" for port in ports]


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {toml(entry)}" for name, entry in value.items()) + "}"
    return json.dumps(value)


def wait_for_rounds(checkout: Path, folder: Path, processes: dict[str, "subprocess.Popen[bytes]"]) -> None:
    """Until the main server has ended. A process that ends with an error ends the comparison."""
    latest_s = time.monotonic() + DEPLOYMENT_S
    while processes["main"].poll() is None and not any(process.poll() for process in processes.values()):
        if time.monotonic() > latest_s:
            break
        time.sleep(0.1)
    failed = [
        name for name, process in processes.items() if process.poll() or (name == "main" and process.poll() is None)
    ]
    if failed:
        log = (folder / f"{failed[0]}.log").read_text()[-2000:]
        sys.exit(f"{checkout}: {failed[0]} of the deployment did not end its rounds\n{log}")


def end_all(processes: dict[str, "subprocess.Popen[bytes]"]) -> None:
    for process in processes.values():
        if process.poll() is None:
            process.terminate()
    for process in processes.values():
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def allocation_of(checkout: Path, scratch: Path, index: int) -> Any:
    scenario = json.loads((checkout / "docs" / "examples" / "scenario.json").read_text())
    scenario["batch_size"] = 32 + 8 * index
    scenario["sharing"] = "bandwidth" if index % 3 == 2 else "exclusive"
    path = scratch / f"scenario-{index}.json"
    path.write_text(json.dumps(scenario))
    return without_times(json.loads(hsfl(checkout, "allocate", path, "--json")))


def reproduction_of(checkout: Path, folder: Path) -> str:
    hsfl(checkout, "reproduce", "fig5", "--scale", "smoke", "--out", folder, "--quiet")
    return (folder / "fig5" / "fig5.csv").read_text()


def things(checkout: Path, scratch: Path) -> dict[str, Callable[[], Any]]:
    """What is compared, by name, each computed when it is called."""
    makers: dict[str, Callable[[], Any]] = {}
    for name in FRAMEWORKS:
        makers[f"run {name}"] = partial(run_of, checkout, scratch / name, f"framework={name}", "train.optimizer=adam")
    proposed = ("allocation.policy=proposed", "fleet.cuts=planned", "fleet.max_cut=[3, 5, 4, 5]")
    makers["run proposed"] = partial(run_of, checkout, scratch / "proposed", *proposed)
    two_workers = (
        "framework=hsfl",
        "train.optimizer=adam",
        "engine.name=workers",
        "engine.workers=2",
        "engine.threads=1",
    )
    makers["workers"] = partial(run_of, checkout, scratch / "workers", *two_workers)
    makers["plan"] = lambda: without_times(json.loads(hsfl(checkout, "plan", "paper-cifar10", "--json")))
    for index in range(10):
        makers[f"allocate {index}"] = partial(allocation_of, checkout, scratch, index)
    makers["reproduce fig5"] = partial(reproduction_of, checkout, scratch / "reproduce")
    makers["deployment"] = partial(deployment_of, checkout, scratch / "deployment")
    return makers


def everything(checkout: Path, scratch: Path, prefixes: tuple[str, ...]) -> dict[str, Any]:
    scratch.mkdir()
    return {name: make() for name, make in things(checkout, scratch).items() if name.startswith(prefixes)}


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
    parser.add_argument("--quick", action="store_true", help="HSFL in one process, on two workers, and deployed")
    parser.add_argument(
        "--only", action="append", metavar="PREFIX", help="things whose names begin so; may be repeated"
    )
    arguments = parser.parse_args()
    prefixes = tuple(arguments.only or (("run hsfl", "workers", "deployment") if arguments.quick else ("",)))
    start_s = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        old, new = (
            everything(checkout.resolve(), Path(scratch) / name, prefixes)
            for name, checkout in (("old", arguments.old), ("new", arguments.new))
        )
    if not old:
        sys.exit(f"nothing begins with {' or '.join(prefixes)}")
    total = 0
    for name in old:
        lines = differences(old[name], new[name])
        total += len(lines)
        print(f"{name}: {'the same' if not lines else f'{len(lines)} differences, first {lines[0]}'}")
    print(f"{len(old)} things compared, {total} differences, {time.monotonic() - start_s:.0f} s")
    sys.exit(total > 0)


if __name__ == "__main__":
    main()
