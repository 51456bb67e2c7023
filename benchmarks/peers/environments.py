"""Virtual environments of the peers: released packages, installed by plain pip without constraints of ours but for torch."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCH = (
    "torch==2.13.0"  # the same for all, so that the bare loops are comparable; dropped where a peer does not allow it
)
PACKAGES = {
    "hsfl": [str(ROOT)],
    "flower": ["flwr[simulation]"],
    "pfl": ["pfl"],
    "fluke": ["fluke-fl"],
    "fedlab": ["fedlab"],
}
NAMED = ("hsfl", "flwr", "ray", "pfl", "fluke-fl", "fedlab", "torch", "numpy")  # whose versions are recorded


class InstallError(RuntimeError):
    """A peer cannot be installed."""


def python_of(peer: str, folder: Path) -> Path:
    return folder / peer / "bin" / "python"


def is_installed(peer: str, folder: Path) -> bool:
    return (folder / peer / "installed.json").exists()


def install(peer: str, folder: Path) -> None:
    """Make the environment of a peer, unless it is there. HSFL is installed anew each time, since its sources may have changed."""
    done, python = folder / peer / "installed.json", python_of(peer, folder)
    if done.exists() and peer != "hsfl":
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not python.exists():
        print(f"{peer}: making an environment in {folder / peer} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder / peer)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if done.exists():
        subprocess.run([*pip, "--force-reinstall", "--no-deps", *PACKAGES[peer]], check=True)
        return
    log = folder / f"{peer}-install.log"
    with log.open("wb") as output:
        for packages in ([TORCH, *PACKAGES[peer]], PACKAGES[peer]):
            if subprocess.run([*pip, *packages], stdout=output, stderr=subprocess.STDOUT, check=False).returncode == 0:
                done.write_text(json.dumps({"packages": [*packages[:-1], Path(packages[-1]).name]}))
                return
    raise InstallError(f"{peer} cannot be installed; {log} says why")


def versions(python: Path) -> dict[str, str]:
    """The versions of Python and of the packages that matter, as the environment has them."""
    code = (
        "import json, sys, importlib.metadata as m\n"
        "v = {'python': sys.version.split()[0]}\n"
        f"for name in {NAMED!r}:\n"
        "    try: v[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(v))"
    )
    answer = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return dict(json.loads(answer.stdout))
