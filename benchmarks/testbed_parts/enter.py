"""Run a command of hsfl as a node of the testbed: in its network namespace, and under its CPU quota once everything is imported.

    python enter.py --namespace NAME [--procs FILE] [--slowdown F] -- client ward-1.toml

Starting Python and loading torch costs 3 to 4 CPU seconds, which a device of a twentieth of a core would take more than a minute for. So the quota
begins when they are loaded; what is measured comes later.
"""

import argparse
import ctypes
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
LOADED = ("hsfl.cli", "hsfl.deploy.processes", "hsfl.models.zoo", "hsfl.runs.client_data", "hsfl.training.speed")


def join_namespace(name: str) -> None:
    """Let this thread open its sockets in a network namespace from now on."""
    with Path("/run/netns", name).open() as handle:
        if ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot join the network namespace {name}; run as root")


def end_with_parent() -> None:
    """Be killed when the process that started this one ends, however it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def slow_down(factor: float) -> None:
    """Let every piece of training take `factor` times as long as the processor works for it, by sleeping for the rest. Where other processes
    held the processor meanwhile, the sleep is shorter by that. Only training is slowed: what the process spends on messages is not."""
    from hsfl.training import roles, speed, step

    def slowed(work: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(work)
        def work_and_sleep(*arguments: Any, **options: Any) -> Any:
            began_s, worked_s = time.perf_counter(), time.thread_time()
            answer = work(*arguments, **options)
            until_s = began_s + factor * (time.thread_time() - worked_s)
            time.sleep(max(0.0, until_s - time.perf_counter()))
            return answer

        return work_and_sleep

    modules: tuple[Any, ...] = (step, roles, speed)
    for module in modules:
        module.run_backward = slowed(step.run_backward) if module is step else step.run_backward
    step.Part.forward = slowed(step.Part.forward)  # type: ignore[method-assign]
    step.Part.update = slowed(step.Part.update)  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--procs", type=Path, help="the file of a cgroup that takes process ids")
    parser.add_argument("--slowdown", type=float, default=1.0)
    parser.add_argument("words", nargs="+", help="of the command")
    settings = parser.parse_args()
    end_with_parent()
    join_namespace(settings.namespace)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for name in LOADED:
        import_module(name)
    if settings.slowdown > 1:
        slow_down(settings.slowdown)
    if settings.procs is not None:
        settings.procs.write_text(str(os.getpid()))
    sys.argv = ["hsfl", *settings.words]
    import_module("hsfl.cli").app()


if __name__ == "__main__":
    main()
