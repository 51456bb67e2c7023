"""`hsfl.register_framework`: a framework of the user's becomes one more row of the table, checked."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from hsfl import plugins
from hsfl.errors import InputError, known
from hsfl.methods.table import METHODS, PROPOSED, WORDS, Method, Style, Timing

if TYPE_CHECKING:
    from pydantic import BaseModel

NEEDED = {  # what a framework's class must have
    "init": "init(self)",
    "round": "round(self, state, kept, round_index)",
    "models": "models(self, state)",
    "arrange": "arrange(cls, config, world, one_cut, num_samples), as hsfl.frameworks.base.Base has it",
    "extras": "extras(self), as hsfl.frameworks.base.Base has it",
}
TIMELINE_ARGUMENTS = (  # of `network.clock.timeline`, without the name
    "phases", "num_batches", "tau_s", "started=", "clusters=", "order=", "decoder_s=", "cut_gradient=",
)  # fmt: skip
FREE_STYLES: tuple[Style, ...] = (  # for frameworks that are registered: no two alike, and none like a built-in style
    ("#117733", "h", (0, (8, 1.5, 1, 1.5))),
    ("#AA4499", "p", (0, (4, 1.5, 4, 3))),
    ("#332288", "8", (0, (10, 2, 1, 2, 1, 2))),
    ("#AA7700", "d", (0, (2, 2, 6, 2))),
    ("#44AA99", "X", (0, (1, 1, 5, 1))),
    ("#CC6677", "H", (0, (6, 3, 2, 3))),
)


def register_framework(
    name: str,
    code: type[Any],
    *,
    title: str | None = None,
    paper: str = "",
    timing: Timing | Mapping[str, Any] | None = None,
    timeline: Callable[..., Any] | None = None,
    own_cuts: bool | None = None,
    copy_per_client: bool | None = None,
    own_policy: str | None = None,
    style: Style | None = None,
    options: "type[BaseModel] | None" = None,
) -> Method:
    """Add a framework: the class that trains, and how its row differs from the row of the framework that it derives from.

    If no parent of the class is a framework, the row is HSFL's where the class says `copy_per_client = True`; otherwise
    clients work in parallel, each at its own pace.

    title, paper, style: how tables and figures show the framework.
    timing: some or all words of `Timing`. timeline: a function instead of these words, see `Method`.
    own_cuts: whether every client has a cut of its own. copy_per_client: whether the main server keeps a copy per client.
    own_policy: the allocation that `allocation.policy=own` stands for.
    options: a pydantic model for `options.<name>`, which `Task.options` gives to the class.
    """
    _check_class(name, code)
    if timeline is not None:
        if not callable(timeline):
            raise InputError(f"framework {name!r} has timeline {timeline!r}; give a function, or leave it out")
        plugins.check_call(f"framework {name!r}: timeline", timeline, *TIMELINE_ARGUMENTS)
    if not isinstance(own_policy, str | None):
        raise InputError(f"framework {name!r} has own_policy {own_policy!r}; give the name of a policy")
    usual = _parent(code) or Method(name, name, "", Timing(), code, FREE_STYLES[0])
    row = Method(
        name,
        " ".join(str(title if title is not None else name).split()),
        paper,
        _timing(name, timing, usual.timing),
        code,
        _free_style() if style is None else _checked_style(name, style),
        usual.own_cuts if own_cuts is None else bool(own_cuts),
        usual.copy_per_client if copy_per_client is None else bool(copy_per_client),
        usual.own_policy if own_policy is None else own_policy,
        usual.timeline if timeline is None else timeline,
        plugins.source(),
    )
    plugins.add("framework", METHODS, name, row, options)
    return row


def _parent(code: type[Any]) -> Method | None:
    """The row of the framework from which a class derives; HSFL's for any other class that keeps a copy per client."""
    rows: dict[str | type[Any], Method] = {row.code: row for row in METHODS.values()}
    places = (place for kind in code.__mro__ for place in (kind, f"{kind.__module__}:{kind.__qualname__}"))
    parent = next((rows[place] for place in places if place in rows), None)
    return METHODS[PROPOSED] if parent is None and getattr(code, "copy_per_client", False) else parent


def _check_class(name: str, code: Any) -> None:
    if not isinstance(code, type):
        raise InputError(f"framework {name!r} is {code!r}; give a class that derives from hsfl.frameworks.base.Base")
    for need, how in NEEDED.items():
        if not callable(getattr(code, need, None)):
            raise InputError(f"framework {name!r}: class {code.__name__} has no {need}; write {how}")
    plugins.check_call(f"framework {name!r}: class {code.__name__}", code, "task")
    for need, words in (("init", ()), ("round", ("state", "kept", "round_index")), ("models", ("state",))):
        plugins.check_call(f"framework {name!r}: {need}", getattr(code, need), "self", *words)


def _timing(name: str, given: Timing | Mapping[str, Any] | None, usual: Timing) -> Timing:
    """The words given, and the usual ones for the rest."""
    if given is None:
        return usual
    if not isinstance(given, Timing | Mapping):
        raise InputError(f'framework {name!r} has timing {given!r}; give a dict, such as {{"step": "joint"}}')
    words = asdict(given) if isinstance(given, Timing) else dict(given)
    for word, value in words.items():
        known(f"framework {name!r}: timing", word, [field.name for field in fields(Timing)])
        if value not in WORDS[word]:
            known(f"framework {name!r}: timing {word}", str(value), [str(choice) for choice in WORDS[word]])
    return Timing(**(asdict(usual) | words))


def _free_style() -> Style:
    taken = [row.style for row in METHODS.values()]
    free = [style for style in FREE_STYLES if style not in taken]
    return free[0] if free else FREE_STYLES[len(taken) % len(FREE_STYLES)]


def _checked_style(name: str, style: Any) -> Style:
    if (found := read_style(style)) is None:
        raise InputError(f"framework {name!r} has style {style!r}; give colour, marker and dashes as {FREE_STYLES[0]}")
    return found


MARKERS = "xsv^DP<>*ohp8dXH"  # that figures and pages know


def read_style(value: Any) -> Style | None:
    """A style from plain data: a colour such as #117733, a marker, and "solid" or (0, (on, off, ...)); None if it is no style."""
    try:
        colour, marker, dashes = value
        if dashes != "solid":
            offset, lengths = dashes
            dashes = (float(offset), tuple(float(length) for length in lengths))
            if not 2 <= len(dashes[1]) <= 8 or len(dashes[1]) % 2 or not all(0 < length < 100 for length in dashes[1]):
                return None
        good = re.fullmatch(r"#[0-9a-fA-F]{6}", colour) and len(marker) == 1 and marker in MARKERS
    except (TypeError, ValueError):
        return None
    return (colour, marker, dashes) if good else None
