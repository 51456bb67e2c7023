"""Methods of one's own: files that register frameworks, policies, models and data sets. Imports no torch.

A plugin is a Python file that the user names (`--plugin FILE`, `plugins` in a config), or the entry point of an installed
package in the group `hsfl`, which is looked at only for a name that is not built in. Nothing is loaded because a run folder
names it, and nothing is ever sent to another machine. The registries are where the built-in things are; here is who
registered what.
"""

import hashlib
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hsfl.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

GROUP = "hsfl"  # of entry points
BUILT_IN = frozenset(  # a test holds that these are the registries' names; here, so that no registry need be loaded
    [
        "cl",
        "fl",
        "sl",
        "splitfed_v1",
        "splitfed_v2",
        "psl",
        "fsl",
        "locfedmix_sl",
        "cpsl",
        "hsfl",
        "own",
        "proposed",
        "rcls",
        "scls",
        "ecfa",
        "gtra",
        "etra",
        "etra_even",
        "even",
        "splitfed",
        "resnet18",
        "cnn",
        "mlp",
        "vgg11_bn",
        "mobilenet_v2",
        "mnist",
        "cifar10",
        "ham10000",
        "digits",
        "idx",
        "folder",
        "npz",
        "csv",
    ]
)
WAY_OUT = ", or name the file that registers it: --plugin FILE"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Plugin:
    """A file (or an installed package's module) that registered something; `spec` is what loads it again on this machine."""

    name: str  # of the file, or of the package with its version
    sha256: str  # of the file's bytes
    spec: str


@dataclass(frozen=True)
class Registered:
    """One thing of one's own, and who registered it; None: the running program itself."""

    plugin: Plugin | None
    forget: Callable[[], Any]


REGISTERED: dict[tuple[str, str], Registered] = {}  # by kind and name
OPTIONS: dict[str, "type[BaseModel]"] = {}  # what checks options.<name>
LOADED: dict[str, Plugin] = {}  # by spec
_loading: list[Plugin] = []


def add(kind: str, registry: dict[str, Any], name: str, value: Any, options: "type[BaseModel] | None" = None) -> None:
    """Put something of one's own into its registry; a name can be taken once."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{kind} {name!r} is no name; take letters, digits, _ and -, beginning with a letter")
    plugin, before = _loading[-1] if _loading else None, REGISTERED.get((kind, name))
    again = before is not None and before.plugin is None and plugin is None  # a notebook's cell, run once more
    if (name in registry and not again) or name == "own":
        taken = before.plugin.name if before is not None and before.plugin is not None else "hsfl"
        raise InputError(f"{kind} {name!r} is there already, from {taken}; choose another name")
    if options is not None:
        _check_options(kind, name, options, again)
        OPTIONS[name] = options
    registry[name] = value

    def forget() -> None:
        registry.pop(name, None)
        OPTIONS.pop(name, None)

    REGISTERED[kind, name] = Registered(plugin, forget)


def _check_options(kind: str, name: str, options: Any, again: bool) -> None:
    if not (isinstance(options, type) and hasattr(options, "model_validate")):
        raise InputError(f"{kind} {name!r} has options {options!r}; give a class that derives from pydantic.BaseModel")
    if (name in OPTIONS and not again) or name in BUILT_IN:
        raise InputError(f"options.{name} is there already; choose another name for the {kind}")


def source() -> str:
    """Who is registering now: a file's name, or the running program."""
    return _loading[-1].name if _loading else "Python"


def owner(kind: str, name: str) -> Plugin | None:
    """The plugin that something comes from; None if it is built in, unknown, or the running program's."""
    found = REGISTERED.get((kind, name))
    return None if found is None else found.plugin


def load_all(specs: Iterable[str | Path]) -> None:
    for spec in specs:
        load(spec)


def load(spec: str | Path) -> Plugin:
    """Run a file that registers things (or an installed entry point, by its name); once, however often it is named."""
    path = Path(spec)
    if not path.is_file():
        for point in entry_points(group=GROUP, name=str(spec)):
            return _load_entry_point(point)
        raise InputError(f"plugin {spec} is no file; give the path of a Python file that registers something")
    content, key = _read(path), str(path.resolve())
    plugin = Plugin(path.name, hashlib.sha256(content).hexdigest(), key)
    if key in LOADED and LOADED[key] != plugin:
        raise InputError(f"plugin {spec} has changed since it was loaded; start the program again")
    if key not in LOADED:
        _register(plugin, key, lambda: _run(path, content, plugin))
    return plugin


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"plugin {path} cannot be read ({error.strerror}); check the file") from None


def _run(path: Path, content: bytes, plugin: Plugin) -> None:
    """The very bytes that were hashed; the module has a name, so that its classes can be pickled on this machine."""
    word = re.sub(r"\W", "_", path.stem)
    module = ModuleType(f"hsfl_plugin_{word}_{plugin.sha256[:12]}")
    module.__file__ = plugin.spec
    sys.modules[module.__name__] = module
    try:
        exec(compile(content, plugin.spec, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise


def _register(plugin: Plugin, file: str, run: Callable[[], object]) -> None:
    """Run a plugin; what it raises is one line, and then nothing of it stays registered."""
    before = set(REGISTERED)
    _loading.append(plugin)
    try:
        run()
        if REGISTERED.keys() == before:
            raise InputError("it registers nothing; call hsfl.register_framework or another register function in it")
    except (Exception, SystemExit) as error:
        for key in REGISTERED.keys() - before:
            REGISTERED.pop(key).forget()
        raise InputError(_explain(error, plugin, file)) from error
    finally:
        _loading.pop()
    LOADED[plugin.spec] = plugin


def _explain(error: BaseException, plugin: Plugin, file: str) -> str:
    """The exception and the plugin's own line, in one line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == file else lines[-1] if lines else None
    where = f"plugin {plugin.name}" + ("" if line is None else f", line {line}")
    said = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())[:200]
    if isinstance(error, InputError):
        return f"{where}: {said}"
    return f"{where}: {type(error).__name__}{f': {said}' if said else ''}; correct it there"


def find(name: str) -> None:
    """Load the installed entry point of this name, if there is one and the name is neither built in nor registered."""
    if name in BUILT_IN or any(name == taken for _, taken in REGISTERED):
        return
    for point in entry_points(group=GROUP, name=name):
        _load_entry_point(point)
        return


def _load_entry_point(point: EntryPoint) -> Plugin:
    """Import a package's module, and call what the entry point names in it, if it names something."""
    found = find_spec(point.module)
    file = found.origin if found is not None else None
    if file is None or not Path(file).is_file():
        raise InputError(f"entry point {point.name!r} names {point.module}, which is no module; install it again")
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
    plugin = Plugin(package, hashlib.sha256(_read(Path(file))).hexdigest(), point.name)
    if point.name not in LOADED:
        _register(plugin, file, lambda: point.load()() if point.attr else point.load())
    return plugin


def default_options(name: str) -> Any:
    """The options of a registered name where none are given; None where it takes none."""
    if name not in OPTIONS:
        return None
    try:
        return OPTIONS[name]()
    except ValueError as error:
        missing = " ".join(str(error).split())
        raise InputError(f"options.{name} has values that must be given ({missing[:120]}); set them") from None


def hashes(names: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Plugin]:
    """The plugins behind these (kind, name) pairs, where there are any."""
    found = {(kind, name): owner(kind, name) for kind, name in names}
    return {key: plugin for key, plugin in found.items() if plugin is not None}


def unload() -> None:
    """Forget everything that was registered, as if no plugin had been loaded."""
    for registered in REGISTERED.values():
        registered.forget()
    REGISTERED.clear()
    LOADED.clear()
