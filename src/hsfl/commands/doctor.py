"""`hsfl doctor`: what this machine has of what HSFL needs, how to get what is missing, and a self-test of some seconds.

Nothing that goes wrong in a check ends the command: it becomes a row of the table.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from hsfl.commands.console import Json, err_console, one_line_errors, out_console, print_json
from hsfl.commands.data import DATA_SETS, is_present
from hsfl.commands.self_test import SelfTest
from hsfl.errors import install_extra, pip_install, requirements
from hsfl.formats import size

commands = typer.Typer()
EXTRAS = {  # what people install, and for what; the others are for developers, or several of these at once
    "plan": "the optimiser: hsfl plan, hsfl allocate, planned cuts",
    "report": "figures",
    "demo": "all that README's first lines need",
    "deploy": "real machines, mutual TLS",
    "export": "ONNX",
    "ray": "clusters",
    "text": "data.tokenizer",
    "transformers": "models hf:PATH",
    "tensorboard": "log.tensorboard",
}
OF_DATA = {
    "digits": "pip install scikit-learn",
    "mnist": "hsfl data fetch mnist",
    "cifar10": "hsfl data fetch cifar10",
    "ham10000": "hsfl data fetch ham10000 says where it is from",
}
ROOMY = 2 * 2**30  # bytes: ResNet-18 in batches of 256 takes 0.9 GB
MEMORY_FILES = (  # of both kinds of cgroups: what a container has taken, its limit, and the cache that can be given back
    ("memory.current", "memory.max", "inactive_file"),
    ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Check:
    """A row: what was looked at, how it is, what was found, and what to do."""

    name: str
    status: str  # ok; missing: not everyone needs it; warning; fails: everyone needs it, or it is installed and does not work
    found: str
    advice: str = ""


@commands.command(
    "doctor",
    epilog="Examples:\n\n- `hsfl doctor`\n- `hsfl doctor --json`\n"
    "- `hsfl doctor --compile` compiles the optimiser, once after an installation, and tests it, too",
)
def doctor_command(
    compile_first: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the optimiser where that is still to be done: about a minute, before the self-test.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what this machine has of what HSFL needs, say how to get the rest, and try that HSFL works.

    The self-test takes a few seconds: a tiny HSFL run with two different cuts, FL beside it, which must train the same model to the
    bit, and an exact allocation. The exit code is 1 where something that everyone needs is missing, or something that is
    installed does not work.
    """
    with one_line_errors():
        checks = []
        for name, check in all_checks(compile_first):
            with err_console.status(f"{name} ..."):
                checks.append(_guarded(name, check))
    works = all(check.status != "fails" for check in checks)
    if as_json:
        print_json({"works": works, "checks": [asdict(check) for check in checks]})
    else:
        _show(checks)
    if not works:
        raise typer.Exit(1)


def all_checks(compile_first: bool = False) -> Iterator[tuple[str, Callable[[], Check]]]:
    """Every check by its name, in the order in which they are made. torch is loaded by the check of cores, not before."""
    yield "Python", _check_python
    yield "packages", _check_packages
    yield "cores", _check_cores
    yield "memory", _check_memory
    yield "data folder", _check_data_folder
    for name in DATA_SETS:
        if ":" not in name:
            yield f"data {name}", partial(_check_data_set, name)
    for extra in EXTRAS:
        yield f"extra {extra}", partial(_check_extra, extra)
    for name, (extra, use) in TOOLS.items():
        yield name, partial(_check_tool, name, extra, use)
    test = SelfTest()
    yield "self-test: HSFL", lambda: Check("self-test: HSFL", "ok", test.train_hsfl())
    yield "self-test: FL", lambda: Check("self-test: FL", "ok", test.train_fl())
    use = partial(_allocate, test=test, compile_first=compile_first)
    yield "self-test: allocation", partial(_check_tool, "self-test: allocation", "plan", use)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    """The check's row; a row that says so where the check itself fails, whatever the reason."""
    try:
        return check()
    except Exception as error:  # a broken installation raises anything
        lines = [text.strip() for text in str(error).splitlines() if text.strip()]
        reason = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
        return Check(name, "fails", reason, "install it again, or report this line")


def _check_python() -> Check:
    from importlib import metadata  # here, because it takes a tenth of a second to load

    version = ".".join(map(str, sys.version_info[:3]))
    try:
        wanted = metadata.metadata("hsfl")["Requires-Python"] or ""
        finding = f"{version} (needs {wanted}), hsfl {metadata.version('hsfl')} in {Path(__file__).parents[1]}"
    except metadata.PackageNotFoundError:
        finding = f"{version}, hsfl is not installed, though its files are in {Path(__file__).parents[1]}"
        return Check("Python", "fails", finding, "pip install . in the checkout")
    if _fits(version, wanted):
        return Check("Python", "ok", finding)
    return Check("Python", "fails", finding, f"make an environment with Python {wanted}")


def _check_packages() -> Check:
    finding, lacking = _installed(requirements())
    return Check("packages", "fails" if lacking else "ok", finding, pip_install(lacking) if lacking else "")


def _check_extra(extra: str) -> Check:
    finding, lacking = _installed(requirements(extra))
    status, advice = ("missing", install_extra(extra)) if lacking or not finding else ("ok", "")
    return Check(f"extra {extra}", status, f"{EXTRAS[extra]}: {finding or 'unknown to this installation'}", advice)


def _installed(wanted: list[str]) -> tuple[str, list[str]]:
    """The installed versions of some requirements such as numba>=0.60, in words, and the requirements that are not met."""
    texts, lacking = [], []
    for requirement in wanted:
        name = _package_name(requirement)
        version, versions = version_of(name), requirement.removeprefix(name)
        if version is None or not _fits(version, versions):
            lacking.append(requirement)
        texts.append(f"{name} {version}" + (f" (needs {versions})" if requirement in lacking else ""))
    return ", ".join(texts).replace("None (needs", "missing (needs"), lacking


def _package_name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


def version_of(package: str) -> str | None:
    """The installed version of a package; None where there is none."""
    from importlib import metadata  # here, because it takes a tenth of a second to load

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _fits(version: str, wanted: str) -> bool:
    """Whether a version is within the wanted ones, such as >=3.11; True where that cannot be told."""
    try:
        from packaging.specifiers import SpecifierSet  # comes with pooch, which may be missing
    except ImportError:
        return True
    return SpecifierSet(wanted).contains(version, prereleases=True)


def _check_cores() -> Check:
    import torch  # here, because it takes seconds to load

    from hsfl.engines.machine import num_cores

    cores: float = num_cores()
    finding = f"{cores} of {os.cpu_count()}"
    with suppress(OSError, ValueError):  # no container, or one without a limit
        share, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(share) / int(period))
        finding += f", of which this container may use {cores:g}"
    threads = torch.get_num_threads()
    finding += f"; torch uses {threads} thread{'s' if threads > 1 else ''}"
    if threads > max(cores, 1):
        advice = f"set OMP_NUM_THREADS={max(1, int(cores))}: more threads than cores wait for each other"
        return Check("cores", "warning", finding, advice)
    if hasattr(os, "getloadavg") and os.getloadavg()[0] > cores and threads > 1:
        finding += f"; {os.getloadavg()[0]:.1f} processes want to run"
        return Check("cores", "warning", finding, "set OMP_NUM_THREADS=1 while the machine is busy")
    return Check("cores", "ok", finding)


def _check_memory() -> Check:
    from hsfl.training.speed import machine_memory_bits  # here, because torch takes seconds to load

    total_bits, available = machine_memory_bits(), available_bytes()
    if total_bits is None or available is None:
        return Check("memory", "ok", "the system does not say")
    finding = f"{size(available)} of {size(total_bits / 8)} available"
    if available < ROOMY:
        return Check("memory", "warning", finding, "end other programs, or lower train.batch_size and data.limit")
    return Check("memory", "ok", finding)


def available_bytes(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """The memory that a process can still have on this machine and in its container; None where the system does not say."""
    rooms = []
    with suppress(OSError, ValueError, StopIteration):
        lines = meminfo.read_text().splitlines()
        rooms.append(1024.0 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    for taken, limit, cached in MEMORY_FILES:
        with suppress(OSError, ValueError):  # no such file, or the word max
            room = int((cgroup / limit).read_text()) - int((cgroup / taken).read_text())
            details = dict(line.split() for line in (cgroup / taken).with_name("memory.stat").read_text().splitlines())
            rooms.append(float(room + int(details.get(cached, 0))))
    return min(rooms) if rooms else None


def _check_data_folder() -> Check:
    from hsfl.data.registry import find_data_dir

    folder = find_data_dir()
    given = bool(os.environ.get("HSFL_DATA"))
    finding = f"{folder} ({'from HSFL_DATA' if given else 'the default; HSFL_DATA or --data-dir name another'})"
    if given and not folder.is_dir():
        return Check("data folder", "warning", f"{finding}, which is no folder", "make it, or set HSFL_DATA to another")
    return Check("data folder", "ok", finding)


def _check_data_set(name: str) -> Check:
    from hsfl.data.registry import find_data_dir

    description, _ = DATA_SETS[name]
    if is_present(name, find_data_dir()):
        return Check(f"data {name}", "ok", description)
    return Check(f"data {name}", "missing", description, OF_DATA.get(name, ""))


def _check_tool(name: str, extra: str, use: Callable[[str], Check]) -> Check:
    """Use what an extra brings, where all of it is installed."""
    if not requirements(extra) or _installed(requirements(extra))[1]:
        return Check(name, "missing", f"comes with the extra {extra}", install_extra(extra))
    return use(name)


def _use_numba(name: str) -> Check:
    from hsfl.allocation.numba_cache import cache_dir, is_cold  # here, because numba takes seconds to load

    if not cache_dir():
        finding = "no folder to write to, so that every start compiles for about a minute"
        return Check(name, "warning", finding, "set NUMBA_CACHE_DIR to a folder that you may write")
    return Check(name, "ok", f"{'nothing is compiled yet' if is_cold() else 'compiled'}, kept in {cache_dir()}")


def _use_scip(name: str) -> Check:
    from pyscipopt import Model  # here, because it is an extra

    problem = Model()
    problem.hideOutput()
    problem.setObjective(problem.addVar(vtype="I", ub=2.5), "maximize")
    problem.optimize()
    if round(problem.getObjVal(), 6) != 2:
        raise ArithmeticError(f"SCIP says that {problem.getObjVal()} is the largest whole number below 2.5")
    return Check(name, "ok", f"version {problem.version()}, solves")


def _use_matplotlib(name: str) -> Check:
    from io import BytesIO

    from hsfl.report.figure_style import matplotlib

    package = matplotlib()
    package.figure.Figure().savefig(BytesIO(), format="png")
    return Check(name, "ok", f"draws, without a screen; backend {package.get_backend()}")


def _use_tls(name: str) -> Check:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    grpc: Any = importlib.import_module("grpc")  # here, because they are extras
    openssl: Any = importlib.import_module("cryptography.hazmat.backends.openssl")
    return Check(name, "ok", f"gRPC {grpc.__version__}, {openssl.backend.openssl_version_text()}")


def _use_ray(name: str) -> Check:
    return Check(name, "ok", f"version {version_of('ray')}; it is not started here")


TOOLS: dict[str, tuple[str, Callable[[str], Check]]] = {  # the extra that brings each, and how it is tried
    "numba cache": ("plan", _use_numba),
    "SCIP": ("plan", _use_scip),
    "matplotlib": ("report", _use_matplotlib),
    "TLS": ("deploy", _use_tls),
    "Ray": ("ray", _use_ray),
}


def _allocate(name: str, test: SelfTest, compile_first: bool) -> Check:
    from hsfl.allocation.numba_cache import is_cold  # here, because numba takes seconds to load

    if is_cold() and not compile_first:
        finding = "not tried: the optimiser is compiled when it is first used, about a minute"
        return Check(name, "warning", finding, "hsfl doctor --compile")
    return Check(name, "ok", test.allocate_exactly())


def _show(checks: list[Check]) -> None:
    """A line for each check, and below it what to do, on a line of its own that can be copied."""
    styles = {"ok": "green", "missing": "yellow", "warning": "yellow", "fails": "red"}
    width = max(len(check.name) for check in checks)
    for check in checks:
        status = (f"{check.status:<9}", styles[check.status])
        out_console.print(Text.assemble(status, f"{check.name:<{width}}  {check.found}"), soft_wrap=True)
        if check.advice:
            out_console.print(f"{'':<{9 + width}}  -> {check.advice}", soft_wrap=True)
    failing = [check.name for check in checks if check.status == "fails"]
    sentence = f"this does not work: {', '.join(failing)}" if failing else "all that HSFL needs works"
    out_console.print(f"\n{sentence}", soft_wrap=True)
