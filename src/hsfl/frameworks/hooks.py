"""What a method may change in the round of the frameworks that keep a copy per client, without a round of its own.

A framework overrides the hooks that it needs; docs/extend.md has FedAdam, SCAFFOLD, FedNova and Ditto written with them. Hooks see
a model by units, so one hook serves both sides of a cut: the head at the client and the tail at the main server. Where no hook is overridden,
nothing is called and nothing is kept.

Between two rounds, what clients remember is in `State.memory` and what the servers remember in `State.tensors`. Within a round a hook is given a
turn, which holds copies of both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from hsfl.errors import InputError
from hsfl.models.state import Layout, UnitState
from hsfl.training.codecs.head_codec import REMEMBERED
from hsfl.training.link import Link

Parameters = dict[str, nn.Parameter]  # by their names in the whole model


@dataclass
class ClientTurn:
    """A client's part of a round, as the hooks see it."""

    client: int
    round_index: int  # 0, 1, ...
    cut: int
    lr: float  # of the round
    num_steps: int  # that the client makes in one pass
    before: UnitState  # the whole model from which the client starts; not to be changed
    tensors: Mapping[str, Tensor]  # what the servers remember, `State.tensors`; not to be changed
    memory: dict[str, Tensor]  # what the client remembers: change it, or put other tensors under its names
    link: Link  # counts what travels
    sent: dict[str, Tensor] = field(default_factory=dict)  # what the servers get besides the weights
    passes: int = 1  # that were made or will be made over the client's batches


@dataclass
class ServerTurn:
    """The servers' part of a round, as `server_step` sees it."""

    round_index: int  # 0, 1, ...
    before: UnitState  # the model from which the round started; not to be changed
    mean: UnitState  # the weighted mean of what the clients brought: change it to the new model
    tensors: dict[str, Tensor]  # what the servers remember, `State.tensors`: change it, or put other tensors into it
    sent: dict[int, dict[str, Tensor]]  # what each client sent besides its weights, in the order of clients
    weights: dict[int, float]  # what each client counts in the mean


class Hooks:
    """The hooks, which do nothing here."""

    passes = 1  # over a client's batches in a round: 1, and 1 for each call of `train_again`

    def first_memory(self, client: int) -> dict[str, Tensor]:
        """What a client remembers before its first round; its names stay the same through the run."""
        return {}

    def before_training(self, turn: ClientTurn) -> None:
        """Before a client trains; here a client may train another model first, with `train_again`."""

    def adjust_gradients(self, turn: ClientTurn, parameters: Parameters) -> None:
        """Before each step of a client, once for each side of its cut: change the gradients, `parameters[name].grad`."""

    def before_sum(self, turn: ClientTurn, trained: UnitState) -> None:
        """Before a client's weights are summed: change them, and `turn.memory`, and send what is put into `turn.sent`."""

    def server_step(self, turn: ServerTurn) -> None:
        """After the weights were averaged: change `turn.mean` to the new model, and `turn.tensors`."""

    def extra_bytes(self, cut: int) -> tuple[int, int]:
        """The bytes that come down to a client with this cut besides its head in a round, and those that it sends up."""
        return 0, 0


CLIENT_HOOKS = ("first_memory", "before_training", "adjust_gradients", "before_sum", "extra_bytes", "passes")
HOOKS = (*CLIENT_HOOKS, "server_step")


def overridden_hooks(framework: type) -> tuple[str, ...]:
    """The names of the hooks that a framework's class overrides."""
    return tuple(name for name in HOOKS if getattr(framework, name, None) not in (None, getattr(Hooks, name)))


# --- what a hook may not do


def checked_bytes(owner: str, answer: object) -> tuple[int, int]:
    """The answer of `extra_bytes`; refuses what is no pair of whole numbers."""
    pair = answer if isinstance(answer, tuple) else ()
    if len(pair) != 2 or not all(isinstance(count, int) and count >= 0 for count in pair):
        raise InputError(f"{owner}.extra_bytes gives {answer!r}; return two whole numbers, the bytes down and up")
    return pair


def check_tensors(owner: str, kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Refuse what is no dict of named tensors."""
    if not isinstance(tensors, Mapping):
        raise InputError(f"{owner}: {kind} is a {type(tensors).__name__}; give a dict of named tensors")
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise InputError(f"{owner}: {kind} has {name!r}, a {type(tensor).__name__}; give a dict of named tensors")


def check_memory_names(owner: str, turn: ClientTurn, names: set[str]) -> None:
    """Refuse a memory with other names than before: a run that goes on would begin with what was lost."""
    check_tensors(owner, "memory", turn.memory)
    if changed := sorted(names ^ turn.memory.keys()):
        raise InputError(
            f"{owner}: the memory of client {turn.client} has lost or gained {changed[0]!r}; keep the names that first_memory gives"
        )


def check_passes(owner: str, turn: ClientTurn, passes: int) -> None:
    """Refuse to train more often, or less often, than the clock charges."""
    if turn.passes != passes:
        raise InputError(
            f"{owner} makes {turn.passes} passes over a client's batches but passes is {passes}, which the clock charges; set "
            f"passes = {turn.passes}"
        )


def check_sent(owner: str, turn: ClientTurn, layout: Layout, num_bytes: int) -> None:
    """Refuse to send more or less than the clock charges."""
    check_tensors(owner, "sent", turn.sent)
    travels = sum(turn.sent[name].nbytes for name in names_of_head(turn.sent, layout, turn.cut))
    if travels != num_bytes:
        raise InputError(
            f"{owner} sends {travels} bytes up with cut {turn.cut} but extra_bytes says {num_bytes}, which the clock charges; let "
            "extra_bytes say the same"
        )


def hook_memory(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a client remembers for hooks, without what the link keeps in its memory."""
    return {name: tensor for name, tensor in memory.items() if name != REMEMBERED}


# --- where tensors are


def names_of_head(tensors: Mapping[str, Tensor], layout: Layout, cut: int) -> list[str]:
    """Which of these tensors are at a client with this cut: all but those that are called as a tensor of the tail."""
    tail = {slot.name for unit in layout.units[cut:] for slot in unit}
    return [name for name in tensors if name not in tail]


def swapped_bytes(sent: Mapping[str, Tensor], layout: Layout, min_cut: int, max_cut: int) -> int:
    """The bytes between the servers for the sums of what clients sent: each server sends its sums for the common units, and the edge
    server those of tensors that belong to no unit."""
    common = {slot.name for unit in layout.units[min_cut:max_cut] for slot in unit}
    every = {slot.name for unit in layout.units for slot in unit}
    return sum(t.nbytes * (2 * (name in common) + (name not in every)) for name, t in sent.items())
