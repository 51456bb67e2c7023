"""What the wire costs: an exchange against a raw gRPC stream, a deployment against the in-process engine, idle clients in memory.

    python benchmarks/wire.py              # ResNet-18, 32x32, batch 256, cuts 1, 3, 5, 9, mutual TLS; 200 idle clients
    python benchmarks/wire.py --quick      # a smoke run

Every number stands beside its reference of the same run. The deployment is real processes on loopback, one thread each; the
engine has two threads in one process, on the same cores. A client makes 20 batches in a round, as one of ten on CIFAR-10 does. The
end of a round (agreeing, swapping 89 MB of sums each way, disks) takes about a second: `--batches 4` shows what short rounds pay.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch
from grpc import aio

from hsfl.config import parse_config
from hsfl.deploy.demo import free_port, toml_lines
from hsfl.deploy.model_kit import make_kit
from hsfl.deploy.trust.authority import Authority
from hsfl.deploy.trust.credentials import add_port, open_channel
from hsfl.deploy.wire.client_messages import Batch, Gradient, Hello, OwnSpeeds, Ready, Welcome
from hsfl.deploy.wire.messages import expect_message, pack_message
from hsfl.deploy.wire.transport import MOST_MESSAGE_BYTES, Peer, channel_options, read_message, server_options
from hsfl.frameworks import find_framework
from hsfl.runs.prepare import prepare
from hsfl.runs.run_folder.folder import RunFolder
from hsfl.training.speed import keep_freed_memory

CLIENTS = ("one", "two", "three", "four")
EXCHANGE_BYTES = 4 << 20  # up; the same comes down


def certificates(folder: Path) -> Path:
    authority = Authority.create(folder)
    for name in CLIENTS:
        authority.add(name)
    return folder


async def echo(messages: Any, context: Any) -> None:
    """A raw stream: every message comes back."""
    while (message := await context.read()) is not aio.EOF:
        await context.write(message)


async def answer(messages: Any, context: Any) -> None:
    """As the main server answers a batch, without the step: unpack, check, pack the gradient."""
    while (message := await context.read()) is not aio.EOF:
        batch, tensors = expect_message(bytes(message), Batch, tensors=("smashed", "labels"))
        assert bool(torch.isfinite(tensors["smashed"]).all())
        await context.write(
            pack_message(Gradient(batch.step, 0.0, 0.0), {"gradient": tensors["smashed"], "loss": torch.zeros(())})
        )


async def served(certs: Path | None) -> tuple[aio.Server, aio.Channel]:
    server = aio.server(options=server_options(MOST_MESSAGE_BYTES))
    handlers = {
        name: grpc.stream_stream_rpc_method_handler(each) for name, each in (("Echo", echo), ("Answer", answer))
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = add_port(server, "127.0.0.1:0", certs and certs / "main")
    await server.start()
    return server, open_channel(
        f"127.0.0.1:{port}", "main", certs and certs / "one", channel_options(MOST_MESSAGE_BYTES)
    )


class Exchange:
    """One open stream, and what is sent and received on it."""

    def __init__(self, channel: aio.Channel, method: str, make: Any, use: Any) -> None:
        self.call, self.make, self.use, self.took = channel.stream_stream(f"/bench/{method}")(), make, use, []

    async def once(self) -> None:
        began = time.perf_counter()
        await self.call.write(self.make())
        self.use(await self.call.read())
        self.took.append(1e3 * (time.perf_counter() - began))

    @property
    def median_ms(self) -> float:
        return statistics.median(self.took[3:])  # the first warm up


async def exchanges(certs: Path, repeats: int) -> None:
    """A batch of 4 MB up and its gradient down: ours and a raw stream's in turn, with and without TLS."""
    smashed, labels = torch.randn(256, EXCHANGE_BYTES // 4 // 256), torch.arange(256)
    raw = smashed.numpy().tobytes()

    def ours() -> bytes:
        return pack_message(Batch(0), {"smashed": smashed, "labels": labels})

    def arrived(message: bytes) -> None:
        expect_message(bytes(message), Gradient, tensors=("gradient", "loss"))

    pairs = [await served(folder) for folder in (None, certs)]
    (_, plain), (_, secure) = pairs
    raw_plain, raw_tls = (Exchange(channel, "Echo", lambda: raw, len) for channel in (plain, secure))
    ours_plain, ours_tls = (Exchange(channel, "Answer", ours, arrived) for channel in (plain, secure))
    for _ in range(repeats + 3):
        for each in (raw_plain, raw_tls, ours_plain, ours_tls):
            await each.once()
    ratios = sorted(a / b for a, b in zip(ours_tls.took[3:], raw_tls.took[3:]))
    content = ours()
    packed, unpacked = _each_ms(ours, repeats), _each_ms(lambda: expect_batch(content), repeats)
    print(
        f"4 MB exchange over mutual TLS: ours {ours_tls.median_ms:.1f} ms, raw gRPC stream {raw_tls.median_ms:.1f} ms, ratio "
        f"{statistics.median(ratios):.2f} (median of n = {repeats} pairs, quartiles {ratios[len(ratios) // 4]:.2f} to {ratios[3 * len(ratios) // 4]:.2f})"
    )
    print(
        f"  of ours: serialisation {2 * packed:.1f} ms, checks and copies {2 * unpacked:.1f} ms, TLS {raw_tls.median_ms - raw_plain.median_ms:.1f} ms, "
        f"gRPC and waiting {ours_plain.median_ms - 2 * packed - 2 * unpacked:.1f} ms"
    )
    for server, channel in pairs:
        await channel.close()
        await server.stop(None)


def expect_batch(content: bytes) -> None:
    expect_message(content, Batch, tensors=("smashed", "labels"))


def _each_ms(work: Any, repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    return 1e3 * (time.perf_counter() - began) / repeats


def settings(model: str, cuts: list[int], batches: int, batch_size: int, rounds: int, data: Path) -> dict[str, Any]:
    return {
        "framework": "hsfl",
        "model": {"name": model},
        "data": {"name": f"npz:{data}"},
        "fleet": {"num_clients": len(cuts), "cuts": cuts},
        "train": {"rounds": rounds, "batch_size": batch_size, "tau_s": 3600.0},
        "allocation": {"policy": "even"},
    }


def write_images(path: Path, num_samples: int, side: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (num_samples, 3, side, side), dtype=np.uint8)
    y = np.arange(num_samples) % 10
    np.savez(path, train_x=x, train_y=y, test_x=x[:10], test_y=y[:10])


def start(folder: Path, name: str, words: list[str], tree: dict[str, Any]) -> "subprocess.Popen[bytes]":
    (folder / f"{name}.toml").write_text(toml_lines(tree))
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "hsfl", *words, str(folder / f"{name}.toml")], stdout=log, stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def start_servers(folder: Path, certs: Path, run: dict[str, Any], seats: int) -> tuple[str, str, list[Any]]:
    main, edge = (f"127.0.0.1:{free_port()}" for _ in range(2))
    about = {
        "listen": main,
        "edge": edge,
        "out": "run",
        "evaluate": "none",
        "input": [3, 32, 32],
        "classes": 10,
        "threads": 1,
    }
    about |= {"clients": CLIENTS, "min_clients": seats, "certs": str(certs / "main"), "run": run}
    started = [
        start(
            folder,
            "edge",
            ["serve", "edge"],
            {"listen": edge, "out": "edge", "threads": 1, "certs": str(certs / "edge")},
        ),
        start(folder, "main", ["serve", "main"], about),
    ]
    return main, edge, started


def end(processes: list[Any]) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def deployment(folder: Path, certs: Path, run: dict[str, Any]) -> list[float]:
    """Samples per second of each round but the first."""
    main, edge, processes = start_servers(folder, certs, run, len(CLIENTS))
    for k, name in enumerate(CLIENTS):
        tree = {
            "name": name,
            "main": main,
            "edge": edge,
            "certs": str(certs / name),
            "threads": 1,
            "as_client": k,
            "measure_s": 0.0,
        }
        processes.append(start(folder, name, ["client"], tree | {"data": {"name": run["data"]["name"]}}))
    try:
        processes[1].wait(3600)
    finally:
        end(processes)
    rounds = RunFolder(folder / "run").rounds()
    assert len(rounds) == run["train"]["rounds"], (folder / "main.log").read_text()
    for phase in ("client", "smashed", "server", "waiting", "gradient", "model_up", "model_down"):
        measured = rounds[-1].measured or {}
        print(f"  {phase:>10} " + " ".join(f"{took_s or 0:8.3f}" for took_s in measured[phase]) + " s of each client")
    return [record.num_samples / record.wall_s for record in rounds[1:]]


def engine(run: dict[str, Any], rounds: int) -> list[float]:
    """Samples per second of the in-process engine on two threads, first round left out."""
    torch.set_num_threads(2)
    task = prepare(parse_config(run)).task
    algorithm = find_framework(run["framework"])(task)
    state, everyone, speeds = algorithm.init(), range(task.num_clients), []
    for number in range(rounds):
        began = time.perf_counter()
        state, result = algorithm.round(state, list(everyone), number)
        speeds.append(result.num_samples / (time.perf_counter() - began))
    torch.set_num_threads(1)
    return speeds[1:]


def rss_mb(pid: int) -> float:
    return (
        next(
            int(line.split()[1])
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("VmRSS")
        )
        / 1024
    )


async def idle(folder: Path, run: dict[str, Any], count: int) -> None:
    """What connected clients that wait cost the main server."""
    authority, names = Authority.create(folder / "idle-certs"), [f"idle-{k}" for k in range(count)]
    for name in names:
        authority.add(name)
    run = run | {"fleet": {"num_clients": count + 4, "cuts": 1}}
    main, _, processes = start_servers(folder, folder / "idle-certs", run, count + 4)
    kit = make_kit(parse_config(run), (3, 32, 32), 10)
    peers = []
    try:
        before = 0.0
        for number, name in enumerate(names):
            peer = Peer(main, "main", name, folder / "idle-certs" / name)
            call = await joined(peer, name, kit.fingerprint)
            peers.append((peer, call))
            if number == 0:
                before = rss_mb(processes[1].pid)
        grown = rss_mb(processes[1].pid) - before
        print(f"{count} idle clients cost the main server {grown:.1f} MB ({before:.0f} MB before)")
    finally:
        for peer, _ in peers:
            await peer.close()
        end(processes)


async def joined(peer: Peer, name: str, fingerprint: str) -> Any:
    while True:
        try:
            call = peer.stream("Attend")
            await call.write(pack_message(Hello(name)))
            expect_message(await read_message(call), Welcome)
            await call.write(
                pack_message(Ready(fingerprint, [10] * 10, OwnSpeeds(1e9, 1e8, 1e8, 1e8, 1e8, None), None))
            )
            return call
        except aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            await asyncio.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--batches", type=int, default=20, help="of each client in a round")
    words = parser.parse_args()
    quick = words.quick
    torch.set_num_threads(1)
    keep_freed_memory()  # as the processes of a deployment do
    batches, batch_size, rounds = (2, 16, 2) if quick else (words.batches, 256, 4)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        certs = certificates(folder / "certs")
        asyncio.run(exchanges(certs, 5 if quick else 50))
        data = folder / "images.npz"
        write_images(data, len(CLIENTS) * batches * batch_size, 32)
        model, cuts = ("cnn", [1, 2, 3, 4]) if quick else ("resnet18", [1, 3, 5, 9])
        run = settings(model, cuts, batches, batch_size, rounds, data)
        ours, theirs = deployment(folder, certs, run), engine(run, rounds)
        ratio = statistics.median(ours) / statistics.median(theirs)
        print(
            f"{model}, cuts {cuts}, {batches} batches of {batch_size}: deployment {statistics.median(ours):.0f}, engine {statistics.median(theirs):.0f} samples/s, "
            f"ratio {ratio:.2f} (n = {len(ours)} rounds, {min(ours):.0f} to {max(ours):.0f} and {min(theirs):.0f} to {max(theirs):.0f})"
        )
        (folder / "idle").mkdir()
        asyncio.run(idle(folder / "idle", run, 8 if quick else 200))


if __name__ == "__main__":
    main()
