"""The frameworks, one row each: name, title, paper, how a round is timed, who keeps what, and how it is drawn.

This is the only list of frameworks. It imports no torch: the clock, the planner and the report read it. The class that trains is named by
its place ("module:Class") and imported when it is needed. `register_framework` checks a user's framework and adds its row.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from hsfl import plugins
from hsfl.errors import InputError, known_name

if TYPE_CHECKING:
    from pydantic import BaseModel

PROPOSED = "hsfl"  # the paper's own framework, which the others are set against
AT_ONE_CUT, AT_MODELS_END = "splitfed_v1", "fl"  # what HSFL is where all its cuts are one cut, or the model's end
COMPARED = (PROPOSED, "splitfed_v1", "fl", "sl", "cl")  # the frameworks that the paper compares
BUILT_IN = "hsfl"  # the source of the package's own rows
Style = tuple[str, str, Any]  # colour, marker, dashes: any two differ for colour-blind eyes, and in black and white


@dataclass(frozen=True)
class Timing:
    """How a framework spends a round.

    turns: "together", "alone" (one client after another) or "clusters" (one cluster after another). The clients of a
        turn have all of the band and all of the main server.
    server: "divided" (main_hz among the clients of a turn), "whole" (all of main_hz, for one thing at a time) or "own" (a
        server of main_hz / K for each client, which no other client can use).
    step: "free" (each client goes through its batches at its own pace), "queue", "joint" or "local_loss" (the clients of
        a turn go in step, see network/in_step_times.py), "pooled" (the server trains alone, on the data that everyone uploaded once).
    cut: "any", or the only cut that the framework knows: "none" (all units on the server) or "whole" (all on the client).
    batches: "equal" (train.batch_size for everyone) or "proportional" (to each client's samples, so that all make equally
        many steps).
    """

    turns: str = "together"
    server: str = "divided"
    step: str = "free"
    cut: str = "any"
    batches: str = "equal"
    tau: bool = False  # clients past the latency tolerance are dropped
    models_each_step: bool = False  # the head travels in every step, not once


WORDS = {  # what each word of a Timing may be
    "turns": ("together", "alone", "clusters"),
    "server": ("divided", "whole", "own"),
    "step": ("free", "queue", "joint", "local_loss", "pooled"),
    "cut": ("any", "none", "whole"),
    "batches": ("equal", "proportional"),
    "tau": (False, True),
    "models_each_step": (False, True),
}


@dataclass(frozen=True)
class Method:
    """One framework.

    code: where the class is that trains, "module:Class", or the class itself.
    timeline: a function that says how a round goes, where the words of `timing` cannot; it takes the arguments of
        `network.clock.timeline` without the name.
    """

    name: str
    title: str  # as its paper writes it
    paper: str
    timing: Timing
    code: str | type[Any]
    style: Style
    own_cuts: bool = False  # a cut for each client; else one for all
    copy_per_client: bool = False  # the main server keeps a copy of its side for each client and averages once a round
    own_policy: str = "even"  # the allocation that its authors chose
    timeline: Callable[..., Any] | None = None
    source: str = BUILT_IN  # or the file that registered it
    short_title: str = ""  # where words follow it, as in `V1 (as published)`; by default the title

    @property
    def built_in(self) -> bool:
        """Whether the row is the package's own, and not a plugin's."""
        return self.source == BUILT_IN

    @property
    def pools_data(self) -> bool:
        """The data are on the server: no client has anything to train."""
        return self.timing.step == "pooled"

    def plain(self) -> dict[str, Any]:
        """The row without its code, as a run folder keeps it."""
        colour, marker, dashes = self.style
        style = [colour, marker, dashes if isinstance(dashes, str) else [dashes[0], list(dashes[1])]]
        row = {name: getattr(self, name) for name in ("name", "title", "paper", "source", "pools_data")}
        row |= {name: getattr(self, name) for name in ("own_cuts", "copy_per_client", "own_policy")}
        return row | {"style": style, "timing": asdict(self.timing), "own_timeline": self.timeline is not None}


METHODS: dict[str, Method] = {}


def register(method: Method) -> Method:
    """Add a row; a name can be taken once."""
    if method.name in METHODS:
        taken = METHODS[method.name].source
        raise InputError(f"framework {method.name!r} is there already, from {taken}; choose another name")
    METHODS[method.name] = method
    return method


def method(name: str) -> Method:
    """The row of the framework `name`; an unknown name is an error that suggests the nearest."""
    return METHODS[known_name("framework", name, METHODS, plugins.WAY_OUT)]


def copy_per_client_names() -> list[str]:
    """Names of the frameworks in which the main server keeps a copy of its side for each client; policies allocate for these."""
    return [name for name, row in METHODS.items() if row.copy_per_client]


for _row in (
    Method(
        "cl",
        "CL",
        "centralised learning: pooled data, the whole model on the server",
        Timing(server="whole", step="pooled", cut="none"),
        "hsfl.frameworks.fl_cl:CL",
        ("#555555", "x", (0, (1, 1.5))),
    ),
    Method(
        "fl",
        "FL",
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2016",
        Timing(cut="whole", tau=True),
        "hsfl.frameworks.fl_cl:FL",
        ("#0072B2", "s", (0, (5, 1.5))),
        copy_per_client=True,
    ),
    Method(
        "sl",
        "SL",
        "Gupta, Raskar, Distributed learning of deep neural network over multiple agents, 2018",
        Timing(turns="alone", server="whole"),
        "hsfl.frameworks.sl:SL",
        ("#999933", "v", (0, (3, 1.5, 1, 1.5))),
    ),
    Method(
        "splitfed_v1",
        "SplitFed V1",
        "Thapa et al., SplitFed: When Federated Learning Meets Split Learning, 2022",
        Timing(tau=True),
        "hsfl.frameworks.copy_per_client:SplitFedV1",
        ("#009E73", "^", (0, (4, 1, 1, 1, 1, 1))),
        copy_per_client=True,
        own_policy="splitfed",
        short_title="V1",
    ),
    Method(
        "splitfed_v2",
        "SplitFed V2",
        "Thapa et al., SplitFed: When Federated Learning Meets Split Learning, 2022",
        Timing(server="whole", step="queue"),
        "hsfl.frameworks.in_step:SplitFedV2",
        ("#E69F00", "D", (0, (7, 2))),
        short_title="V2",
    ),
    Method(
        "psl",
        "PSL",
        "Jeon, Kim, Privacy-sensitive parallel split learning, 2020",
        Timing(server="whole", step="joint", batches="proportional", models_each_step=True),
        "hsfl.frameworks.psl:PSL",
        ("#CC79A7", "P", (0, (2, 1))),
    ),
    Method(
        "fsl",
        "FSL",
        "Turina et al., Federated or Split? A Performance and Privacy Analysis of Hybrid Split and Federated Learning, 2021",
        Timing(server="own", tau=True),
        "hsfl.frameworks.copy_per_client:FSL",
        ("#56B4E9", "<", (0, (6, 1, 2, 1))),
        copy_per_client=True,
    ),
    Method(
        "locfedmix_sl",
        "LocFedMix-SL",
        "Oh et al., LocFedMix-SL: Localize, Federate, and Mix for Improved Scalability in Split Learning, 2022",
        Timing(server="whole", step="local_loss"),
        "hsfl.frameworks.locfedmix:LocFedMix",
        ("#882255", ">", (0, (3, 3))),
    ),
    Method(
        "cpsl",
        "CPSL",
        "Wu et al., Split Learning over Wireless Networks: Parallel Design and Resource Management, 2023",
        Timing(turns="clusters", server="whole", step="joint"),
        "hsfl.frameworks.cpsl:CPSL",
        ("#000000", "*", (0, (1, 3))),
        own_policy="cpsl",
    ),
    Method(
        "hsfl",
        "HSFL",
        "Sun, Hu, Teng, Cai, Split Federated Learning Over Heterogeneous Edge Devices: Algorithm and Optimization",
        Timing(tau=True),
        "hsfl.frameworks.copy_per_client:HSFL",
        ("#D55E00", "o", "solid"),
        own_cuts=True,
        copy_per_client=True,
        own_policy="proposed",
    ),
):
    register(_row)


NEEDED = {  # what a framework's class must have
    "init": "init(self)",
    "round": "round(self, state, kept, round_index)",
    "models": "models(self, state)",
    "arrange": "arrange(cls, config, world, one_cut, num_samples), as hsfl.FrameworkBase has it",
    "extras": "extras(self), as hsfl.FrameworkBase has it",
}
HOOK_ARGUMENTS = {  # of a framework that keeps a copy per client, see hsfl.frameworks.hooks
    "first_memory": ("client",),
    "before_training": ("turn",),
    "adjust_gradients": ("turn", "parameters"),
    "before_sum": ("turn", "trained"),
    "server_step": ("turn",),
    "extra_bytes": ("cut",),
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
    plugins.register_name("framework", METHODS, name, row, options)
    return row


def _parent(code: type[Any]) -> Method | None:
    """The row of the framework from which a class derives; HSFL's for any other class that keeps a copy per client."""
    rows: dict[str | type[Any], Method] = {row.code: row for row in METHODS.values()}
    places = (place for kind in code.__mro__ for place in (kind, f"{kind.__module__}:{kind.__qualname__}"))
    parent = next((rows[place] for place in places if place in rows), None)
    return METHODS[PROPOSED] if parent is None and getattr(code, "copy_per_client", False) else parent


def _check_class(name: str, code: Any) -> None:
    if not isinstance(code, type):
        raise InputError(f"framework {name!r} is {code!r}; give a class that derives from hsfl.FrameworkBase")
    for need, how in NEEDED.items():
        if not callable(getattr(code, need, None)):
            raise InputError(f"framework {name!r}: class {code.__name__} has no {need}; write {how}")
    plugins.check_call(f"framework {name!r}: class {code.__name__}", code, "task")
    hooks = HOOK_ARGUMENTS if hasattr(code, "train_again") else {}
    needed = {"init": (), "round": ("state", "kept", "round_index"), "models": ("state",)}
    for need, arguments in (needed | hooks).items():
        plugins.check_call(f"framework {name!r}: {need}", getattr(code, need), "self", *arguments)


def _timing(name: str, changes: Timing | Mapping[str, Any] | None, usual: Timing) -> Timing:
    """The words given, and the usual ones for the rest."""
    if changes is None:
        return usual
    if not isinstance(changes, Timing | Mapping):
        raise InputError(f'framework {name!r} has timing {changes!r}; give a dict, such as {{"step": "joint"}}')
    settings = asdict(changes) if isinstance(changes, Timing) else dict(changes)
    for word, value in settings.items():
        known_name(f"framework {name!r}: timing", word, [field.name for field in fields(Timing)])
        if value not in WORDS[word]:
            known_name(f"framework {name!r}: timing {word}", str(value), [str(choice) for choice in WORDS[word]])
    return Timing(**(asdict(usual) | settings))


def _free_style() -> Style:
    taken = [row.style for row in METHODS.values()]
    free = [style for style in FREE_STYLES if style not in taken]
    return free[0] if free else FREE_STYLES[len(taken) % len(FREE_STYLES)]


def _checked_style(name: str, style: Any) -> Style:
    if (checked := read_style(style)) is None:
        raise InputError(f"framework {name!r} has style {style!r}; give colour, marker and dashes as {FREE_STYLES[0]}")
    return checked


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


__all__ = [
    "COMPARED",
    "FREE_STYLES",
    "METHODS",
    "PROPOSED",
    "Method",
    "Style",
    "Timing",
    "copy_per_client_names",
    "method",
    "read_style",
    "register",
    "register_framework",
]
