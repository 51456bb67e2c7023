"""The page of a large run: how many bytes, how long to write, how long until a browser lets one work with it.

    python benchmarks/report_page.py [--quick] [--rounds N] [--clients N]

Wanted for 200 rounds of 50 clients: below 3 MB, and interactive within a second. The browser's part needs chromium and
playwright; without them it is left out.
"""

import argparse
import shutil
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from hsfl.config import read_config
from hsfl.files import write_json
from hsfl.network.clock import PHASES
from hsfl.report.page.page import write_page
from hsfl.rng import stream
from hsfl.runs.run_folder.folder import ClientsRecord, RoundRecord, RunFolder

LINKS = ("client_main_up", "client_main_down", "client_edge_up", "client_edge_down", "edge_main")
SUBCHANNELS, CLASSES, UNITS = 50, 10, 10


def a_round(number: int, num_clients: int, now_s: float, rng: np.random.Generator) -> RoundRecord:
    """Every client's phases one after another, with a policy's allocation; some clients dropped."""
    length_s = rng.exponential(1.0, (len(PHASES), num_clients))
    length_s[PHASES.index("decoder")] = 0.0
    end_s = np.cumsum(length_s, axis=0)
    start_s, tau_s = end_s - length_s, 0.9 * end_s[-2].max()
    dropped = np.flatnonzero(end_s[-2] > tau_s)
    start_s, end_s = np.minimum(start_s, tau_s), np.minimum(end_s, tau_s)
    start_s[-1], end_s[-1] = tau_s, tau_s + length_s[-1]
    round_s = float(end_s[-1].max())
    phases = {
        name: {"start_s": start.round(7).tolist(), "end_s": end.round(7).tolist()}
        for name, start, end in zip(PHASES, start_s, end_s)
        if (end > start).any()
    }
    says = {"policy": "proposed", "status": "optimal", "gap": 1e-3, "lower_bound_s": round_s, "seconds": 0.01}
    says |= {name: rng.random(num_clients).tolist() for name in ("up_power_w", "down_power_w")}
    says |= {"server_hz": (1e10 * rng.random(num_clients)).tolist()}
    says |= {"owner": rng.integers(0, num_clients, SUBCHANNELS).tolist()}
    return RoundRecord(
        round=number,
        framework="hsfl",
        sim_time_s=now_s + round_s,
        round_s=round_s,
        wall_s=1.0,
        num_samples=1000,
        train_loss=float(2.3 / number + 0.1 * rng.random()),
        test_loss=float(2.3 / number + 0.1 * rng.random()),
        test_accuracy=float(1 - 0.9 / number**0.5),
        balanced_accuracy=float(1 - 0.9 / number**0.5),
        recall=rng.random(CLASSES).tolist(),
        lr=0.001,
        cuts=[3] * num_clients,
        started=list(range(num_clients)),
        kept=sorted(set(range(num_clients)) - set(dropped.tolist())),
        dropped=dropped.tolist(),
        straggler=int(end_s[-2].argmax()),
        waiting_s=(round_s - length_s.sum(axis=0)).clip(0).tolist(),
        phases=phases,
        allocation=says,
        bytes={link: int(rng.integers(1e6, 1e8)) for link in LINKS},
    )


def fabricate(path: Path, num_rounds: int, num_clients: int) -> None:
    """A run folder of that size, as a run would have left it."""
    rng, folder, now_s = stream(0, "page"), RunFolder(path), 0.0
    words = [
        f"fleet.num_clients={num_clients}",
        f"train.rounds={num_rounds}",
        "fleet.cuts=3",
        "allocation.policy=proposed",
    ]
    folder.create(read_config(None, words))
    counts = rng.integers(0, 100, (num_clients, CLASSES))
    clients = ClientsRecord(
        num_samples=counts.sum(axis=1).tolist(),
        class_counts=counts.tolist(),
        class_names=[str(c) for c in range(CLASSES)],
        cuts=[3] * num_clients,
        max_cut=[UNITS] * num_clients,
        cpu_hz=(1e11 * rng.random(num_clients)).tolist(),
        max_power_w=(10 * rng.random(num_clients)).tolist(),
        input_shape=[3, 32, 32],
        main_flops_per_s=1e12,
    )
    write_json(folder.clients_path, vars(clients))
    for number in range(1, num_rounds + 1):
        record = a_round(number, num_clients, now_s, rng)
        folder.append(record)
        now_s = record.sim_time_s
    write_json(folder.summary_path, {"status": "finished", "rounds": num_rounds})


def interactive_ms(page: Path, repeats: int) -> list[float] | None:
    """From navigation to the end of the page's script, each time in a new tab; None without a browser."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    times = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(repeats):
            tab = browser.new_page()
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector("body[data-ready=yes]")
            times.append(float(tab.evaluate("performance.getEntriesByName('ready')[0].startTime")))
            tab.close()
        browser.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 rounds, once")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--clients", type=int, default=50)
    words = parser.parse_args()
    num_rounds, repeats = (20, 1) if words.quick else (words.rounds, 5)
    with tempfile.TemporaryDirectory() as place:
        folder, page = Path(place) / "run", Path(place) / "page.html"
        fabricate(folder, num_rounds, words.clients)
        began = time.perf_counter()
        write_page([folder], page)
        seconds = time.perf_counter() - began
        records = folder / "rounds.jsonl"
        print(f"{num_rounds} rounds of {words.clients} clients: rounds.jsonl {records.stat().st_size / 1e6:.2f} MB")
        print(f"page {page.stat().st_size / 1e6:.2f} MB, written in {seconds:.2f} s")
        times = interactive_ms(page, repeats)
        said = "no browser" if times is None else f"{np.median(times):.0f} ms (median of {len(times)}, all: {times})"
        print(f"interactive after {said}")


if __name__ == "__main__":
    main()
