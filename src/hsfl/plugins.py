"""Plugins: files of the user's that register frameworks, policies, models, data sets, tasks and codecs. Imports no torch.

A plugin is a Python file that the user names (`--plugin FILE`, `plugins` in a config), or the entry point of an installed
package in the group `hsfl`, which is looked at only for a name that is not built in. Nothing is loaded because a run folder
names a plugin, and no plugin is ever sent to another machine. What a plugin registers goes into the table in which the
built-in names stand; this module remembers who registered what.
"""

import hashlib
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hsfl.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

GROUP = "hsfl"  # of entry points
TABLES = {  # where the built-in names stand, by kind; a table is imported when it is needed, light ones first
    "framework": "hsfl.framework_table:METHODS",
    "model": "hsfl.models.recipes:MODELS",
    "data set": "hsfl.data.registry:READERS",
    "task": "hsfl.tasks:TASKS",
    "policy": "hsfl.allocation.policy_table:POLICIES",
    "codec": "hsfl.codec_table:CODECS",
}
RESERVED = "own"  # the policy of the framework's authors; a model or data that were given from Python
WAY_OUT = ", or name the file that registers it: --plugin FILE"
NO_PYTHON = (".toml", ".json", ".yaml", ".yml", ".csv", ".npz", ".md", ".txt")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Plugin:
    """A file (or an installed package's module) that registered something; `spec` is what loads it again on this machine."""

    name: str  # of the file, or of the package with its version
    sha256: str  # of the file's bytes
    spec: str


@dataclass(frozen=True)
class Registered:
    """Something that was registered: the plugin that did it (None if the running program did), and how to undo it."""

    plugin: Plugin | None
    forget: Callable[[], Any]


REGISTERED: dict[tuple[str, str], Registered] = {}  # by kind and name
OPTIONS: dict[str, "type[BaseModel]"] = {}  # by name: the model that checks options.<name>
LOADED: dict[str, Plugin] = {}  # by spec
FILES: dict[str, Plugin] = {}  # by the file that was run, as tracebacks name it
_loading: list[Plugin] = []


def register_name(
    kind: str, registry: dict[str, Any], name: str, value: Any, options: "type[BaseModel] | None" = None
) -> None:
    """Put `value` into its registry under a name that is still free. kind: framework, policy, model, data set, task or codec.
    options: the pydantic model that checks `options.<name>`."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"{kind} {name!r} is no name; take letters, digits, _ and -, beginning with a letter")
    plugin, before = _loading[-1] if _loading else None, REGISTERED.get((kind, name))
    again = before is not None and before.plugin is None and plugin is None  # a notebook's cell, run once more
    if (name in registry and not again) or name == RESERVED:
        taken = "hsfl" if before is None else before.plugin.name if before.plugin is not None else "this program"
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
    if (name in OPTIONS and not again) or _is_built_in("framework", name):  # frameworks have options of their own
        raise InputError(f"options.{name} is there already; choose another name for the {kind}")


def check_call(subject: str, function: Callable[..., Any], *arguments: str) -> None:
    """Refuse a function that cannot be called with these arguments; `name=` stands for an argument that is given by name."""
    by_name = {word.removesuffix("="): None for word in arguments if word.endswith("=")}
    try:
        inspect.signature(function).bind(*(word for word in arguments if not word.endswith("=")), **by_name)
    except TypeError as error:
        raise InputError(
            f"{subject} is called with {', '.join(arguments) or 'nothing'}, but {error}; change its arguments"
        ) from None
    except ValueError:
        pass  # a function without a signature, of a compiled module


def source() -> str:
    """Who is registering now: a file's name, or the running program."""
    return _loading[-1].name if _loading else "Python"


def owner(kind: str, name: str) -> Plugin | None:
    """The plugin that registered this name; None if the name is built in, unknown, or registered by the running program."""
    registered = REGISTERED.get((kind, name))
    return None if registered is None else registered.plugin


def load_plugins_of(specs: Iterable[str | Path]) -> None:
    """Run all plugins of a list, each once."""
    for spec in specs:
        load_plugin(spec)


def load_plugin(spec: str | Path, registers: bool = True) -> Plugin:
    """Run a plugin: a Python file, or an installed entry point by its name. A plugin that is loaded already is not run again.
    registers: whether a file that registers nothing is refused."""
    path = Path(spec)
    if not path.is_file():
        for point in _installed(tuple(sys.path)).select(name=str(spec)):
            return _load_entry_point(point)
        raise InputError(f"plugin {spec} is no file; give the path of a Python file that registers something")
    if path.suffix.lower() in NO_PYTHON:
        raise InputError(f"plugin {spec} is no Python file; give a .py file that registers something")
    content, key = _read(path), str(path.resolve())
    plugin = Plugin(path.name, hashlib.sha256(content).hexdigest(), key)
    if key in LOADED and LOADED[key] != plugin:
        raise InputError(f"plugin {spec} has changed since it was loaded; start the program again")
    if key not in LOADED:
        _register(plugin, key, lambda: _run(content, plugin), registers)
    return plugin


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"plugin {path} cannot be read ({error.strerror}); check the file") from None


def function_of(spec: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names; the file is run, and need not register anything."""
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise InputError(f"{file} is no file; give FILE.py:NAME, the path of a Python file and a function in it")
    module = sys.modules[_module_name(load_plugin(path, registers=False))]
    function = getattr(module, name, None)
    if not callable(function):
        function_names = [
            n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__
        ]
        raise InputError(f"{file} has no function {name!r}; it has {', '.join(function_names) or 'none'}")
    return function


def _module_name(plugin: Plugin) -> str:
    word = re.sub(r"\W", "_", Path(plugin.name).stem)
    return f"hsfl_plugin_{word}_{plugin.sha256[:12]}"


def _run(content: bytes, plugin: Plugin) -> None:
    """Run the very bytes that were hashed. Their module gets a name, so that its classes can be pickled on this machine."""
    module = ModuleType(_module_name(plugin))
    module.__file__ = plugin.spec
    sys.modules[module.__name__] = module
    folder = str(Path(plugin.spec).parent)
    sys.path.insert(0, folder)  # as for a program: files beside it can be imported
    try:
        exec(compile(content, plugin.spec, "exec"), module.__dict__)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _register(plugin: Plugin, file: str, run: Callable[[], object], registers: bool = True) -> None:
    """Run a plugin. If it raises, nothing that it registered stays, and the error is told in one line."""
    before = set(REGISTERED)
    _loading.append(plugin)
    try:
        run()
        if registers and REGISTERED.keys() == before:
            raise InputError("it registers nothing; call hsfl.register_framework or another register function in it")
    except (Exception, SystemExit) as error:
        for key in REGISTERED.keys() - before:
            REGISTERED.pop(key).forget()
        raise InputError(_explain(error, plugin, file)) from error
    finally:
        _loading.pop()
    FILES[file] = plugin
    if REGISTERED.keys() != before:  # what registers nothing is nothing that another process must load
        LOADED[plugin.spec] = plugin


def explain_failure(error: BaseException) -> str | None:
    """What went wrong later in the code of a plugin that is loaded, told in one line; None if no plugin was at work."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in FILES:
            return _explain(error, FILES[frame.filename], frame.filename)
    return None


def _explain(error: BaseException, plugin: Plugin, file: str) -> str:
    """What went wrong in a plugin and in which of its lines, told in one line."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line_number = (
        error.lineno if isinstance(error, SyntaxError) and error.filename == file else lines[-1] if lines else None
    )
    where = f"plugin {plugin.name}" + ("" if line_number is None else f", line {line_number}")
    message = " ".join(str(error.msg if isinstance(error, SyntaxError) else error).split())[:200]
    if isinstance(error, InputError):
        return f"{where}: {message}"
    return f"{where}: {type(error).__name__}{f': {message}' if message else ''}; correct it there"


@cache
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """The entry points of all installed packages; looking them up takes milliseconds for each name of each config."""
    return entry_points(group=GROUP)


def find_installed(name: str) -> None:
    """Load the installed entry point of this name, if there is one. A name that is built in or registered needs none."""
    if name == RESERVED or any(name == taken for _, taken in REGISTERED):
        return
    for point in _installed(tuple(sys.path)).select(name=name):
        if not any(_is_built_in(kind, name) for kind in TABLES):
            _load_entry_point(point)
        return


def _is_built_in(kind: str, name: str) -> bool:
    """Whether the package itself has something of this kind and name."""
    module, _, table = TABLES[kind].partition(":")
    try:
        names = getattr(import_module(module), table)
    except ImportError:
        return False  # the optimiser is an extra; where it is not installed there are no policies
    return name in names and (kind, name) not in REGISTERED


def _load_entry_point(point: EntryPoint) -> Plugin:
    """Import the module of an entry point, and call the function that it names in the module, if it names one."""
    module_spec = find_spec(point.module)
    file = module_spec.origin if module_spec is not None else None
    if file is None or not Path(file).is_file():
        raise InputError(f"entry point {point.name!r} names {point.module}, which is no module; install it again")
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
    plugin = Plugin(package, hashlib.sha256(_read(Path(file))).hexdigest(), point.name)
    if point.name not in LOADED:
        _register(plugin, file, lambda: point.load()() if point.attr else point.load())
    return plugin


def default_options(name: str) -> Any:
    """The options of a registered name with their defaults; None if the name takes no options."""
    if name not in OPTIONS:
        return None
    try:
        return OPTIONS[name]()
    except ValueError as error:
        missing = " ".join(str(error).split())
        raise InputError(f"options.{name} has values that must be given ({missing[:120]}); set them") from None


def plugins_of_names(names: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], Plugin]:
    """The plugins that registered these (kind, name) pairs; pairs that no plugin registered are left out."""
    owners = {(kind, name): owner(kind, name) for kind, name in names}
    return {key: plugin for key, plugin in owners.items() if plugin is not None}
