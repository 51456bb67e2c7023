"""The frameworks, one row each: name, title, paper, how a round is timed, who keeps what, and how it is drawn.

This is the only list of frameworks. It imports no torch: the clock, the planner and the report read it. The class that trains
is named by its place and imported when it is needed. A framework of the user's is one more row (`hsfl.register_framework`).
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from hsfl import plugins
from hsfl.errors import InputError, known

PROPOSED = "hsfl"  # the paper's own framework, which the others are set against
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
        a turn go in step, see network/steps.py), "pooled" (the server trains alone, on the data that everyone uploaded once).
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
        words = {name: getattr(self, name) for name in ("name", "title", "paper", "source", "pools_data")}
        words |= {name: getattr(self, name) for name in ("own_cuts", "copy_per_client", "own_policy")}
        return words | {"style": style, "timing": asdict(self.timing), "own_timeline": self.timeline is not None}


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
    return METHODS[known("framework", name, METHODS, plugins.WAY_OUT)]


def copy_per_client_names() -> list[str]:
    """Names of the frameworks in which the main server keeps a copy of its side for each client; policies allocate for these."""
    return [name for name, row in METHODS.items() if row.copy_per_client]


for _row in (
    Method(
        "cl",
        "CL",
        "centralised learning: pooled data, the whole model on the server",
        Timing(server="whole", step="pooled", cut="none"),
        "hsfl.frameworks.unsplit:CL",
        ("#555555", "x", (0, (1, 1.5))),
    ),
    Method(
        "fl",
        "FL",
        "McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2016",
        Timing(cut="whole", tau=True),
        "hsfl.frameworks.unsplit:FL",
        ("#0072B2", "s", (0, (5, 1.5))),
        copy_per_client=True,
    ),
    Method(
        "sl",
        "SL",
        "Gupta, Raskar, Distributed learning of deep neural network over multiple agents, 2018",
        Timing(turns="alone", server="whole"),
        "hsfl.frameworks.sequential:SL",
        ("#999933", "v", (0, (3, 1.5, 1, 1.5))),
    ),
    Method(
        "splitfed_v1",
        "SplitFed V1",
        "Thapa et al., SplitFed: When Federated Learning Meets Split Learning, 2022",
        Timing(tau=True),
        "hsfl.frameworks.parallel:SplitFedV1",
        ("#009E73", "^", (0, (4, 1, 1, 1, 1, 1))),
        copy_per_client=True,
        own_policy="splitfed",
    ),
    Method(
        "splitfed_v2",
        "SplitFed V2",
        "Thapa et al., SplitFed: When Federated Learning Meets Split Learning, 2022",
        Timing(server="whole", step="queue"),
        "hsfl.frameworks.in_step:SplitFedV2",
        ("#E69F00", "D", (0, (7, 2))),
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
        "hsfl.frameworks.parallel:FSL",
        ("#56B4E9", "<", (0, (6, 1, 2, 1))),
        copy_per_client=True,
    ),
    Method(
        "locfedmix_sl",
        "LocFedMix-SL",
        "Oh et al., LocFedMix-SL: Localize, Federate, and Mix for Improved Scalability in Split Learning, 2022",
        Timing(server="whole", step="local_loss"),
        "hsfl.frameworks.local_loss:LocFedMix",
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
        "hsfl.frameworks.parallel:HSFL",
        ("#D55E00", "o", "solid"),
        own_cuts=True,
        copy_per_client=True,
        own_policy="proposed",
    ),
):
    register(_row)
