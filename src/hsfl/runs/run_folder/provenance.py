"""What a run folder keeps so that the run can be made again: which plugins it used, and copies of the files that its config names.

Plugins are kept as plain data, which is compared before the run goes on or is looked into. Nothing here loads a plugin: a folder
can ask for a plugin, and only the user can give it. Data sets are not copied: they may be large, and a device's own data stay
where they are. The machine, the versions and the digests of input files are in `environment`.
"""

import shlex
import shutil
from pathlib import Path
from typing import Any

from hsfl import plugins
from hsfl.config import RunConfig
from hsfl.config.reading import INPUTS, KEPT
from hsfl.errors import InputError
from hsfl.files import read_record, write_atomic
from hsfl.framework_table import METHODS
from hsfl.runs.run_folder.records import PluginsRecord

PLUGINS_FILE = "plugins.json"


def names_of(config: RunConfig) -> list[tuple[str, str]]:
    """The names that a run uses and a plugin may have registered, as (kind, name). `own` is replaced by the framework's policy."""
    framework_policy = METHODS[config.framework].own_policy if config.framework in METHODS else ""
    return [
        (kind, framework_policy) if (kind, name) == ("policy", "own") else (kind, name) for kind, name in config.named()
    ]


def plugin_record(config: RunConfig) -> dict[str, Any] | None:
    """The plugins that a run uses, with their hashes, and the row of its framework; None if everything is built in."""
    used: dict[tuple[str, str], list[str]] = {}
    for kind, name in dict.fromkeys(names_of(config)):
        if (kind, name) in plugins.REGISTERED:
            plugin = plugins.owner(kind, name)
            key = (plugin.name, plugin.sha256) if plugin is not None else ("Python", "")
            used.setdefault(key, []).append(f"{kind} {name}")
    if not used:
        return None
    files = [{"file": file, "sha256": sha256, "gives": gives} for (file, sha256), gives in used.items()]
    row = METHODS[config.framework].plain() if ("framework", config.framework) in plugins.REGISTERED else None
    return {"plugins": files, "framework": row}


def check_plugins(folder: Path, config: RunConfig) -> None:
    """Refuse to go on unless everything that the folder's run used is registered now, from files with the same bytes."""
    for file, sha256, gives in _recorded(folder):
        kind, _, name = gives.rpartition(" ")
        if (kind, name) not in names_of(config):
            continue
        if (kind, name) not in plugins.REGISTERED:
            raise InputError(
                f"{folder} was run with {kind} {name!r} from {file}; give it again: --plugin={_spec(file, name)}"
            )
        plugin = plugins.owner(kind, name)
        current_sha256 = plugin.sha256 if plugin is not None else ""
        if sha256 != current_sha256:
            raise InputError(
                f"{folder} was run with another {file} (sha256 {_short(sha256)}, now {_short(current_sha256)}); put the original file "
                "back, or run again into a new folder"
            )


def _recorded(folder: Path) -> list[tuple[str, str, str]]:
    """(file, sha256, what the file gives) for each thing that a folder's run had from a plugin; empty if it had none."""
    path = folder / PLUGINS_FILE
    if not path.exists():
        return []
    record: PluginsRecord = read_record(path, PluginsRecord)
    return [(plugin.file, plugin.sha256, gives) for plugin in record.plugins for gives in plugin.gives]


def _spec(file: str, name: str) -> str:
    """What to type after --plugin: a file, or the name of the entry point where a package (its name and version) gave the thing."""
    package, _, version = file.rpartition(" ")
    installed = bool(package) and " " not in package and version[:1].isdigit() and not file.endswith(".py")
    return shlex.quote(name if installed else file)


def _short(sha256: str) -> str:
    return sha256[:12] or "unknown"


def keep_inputs(folder: Path, config: RunConfig) -> dict[str, Any]:
    """Copy the files that the config names into the folder; returns the config's tree with the paths of the copies, as
    seen from the folder.

    The path of a missing file stays as it is: an error follows where the file is needed.
    """
    tree: dict[str, Any] = config.model_dump(mode="json")
    for section, field in KEPT:
        path = tree[section][field]
        if path is not None and Path(path).is_file():
            name = f"{INPUTS}/{section if field == 'file' else field}{Path(path).suffix}"
            _copy(Path(path), folder / name)
            tree[section][field] = name
    return tree


def _copy(source: Path, target: Path) -> None:
    if not (target.exists() and target.samefile(source)):
        write_atomic(target, lambda scratch: shutil.copyfile(source, scratch))
