"""Why a client holds the round up: its longest phase, what it sends or computes there and how fast, and its best other cut.

For a round that was clocked (`why`) and for a plan (`why_planned`). A round with another cut is allocated anew where that is
quick; else a policy's cycles, band and power stay as they were.
"""

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from hsfl.errors import InputError
from hsfl.fleet.quantities import say
from hsfl.methods import method
from hsfl.models.cost import CostTable
from hsfl.network.channel import Ofdma
from hsfl.network.clock import Timeline
from hsfl.network.even import Bands, band_groups
from hsfl.network.latency import Phases
from hsfl.network.timeline import LEVEL
from hsfl.planning.allocators import Even, Job
from hsfl.planning.round_clock import Dealt, RoundClock

Array = np.ndarray
QUICK_PAIRS = 144  # of clients and subchannels: up to these a policy allocates in milliseconds
GROUPS = {  # what can hold a client up, with the phases of a timeline that it is made of
    "client": ("client_forward", "client_backward"),
    "smashed": ("smashed",),
    "server": ("server_forward", "server_backward"),
    "gradient": ("gradient",),
    "model_up": ("model_up",),
}
WORDS = {
    "client": "its own computing takes",
    "smashed": "sending smashed data takes",
    "server": "the main server's work for it takes",
    "gradient": "receiving gradients takes",
    "model_up": "sending its model takes",
}
COLUMNS = {  # of a cost table, what each phase is in proportion to
    "client_forward": "client_forward_flops", "client_backward": "client_backward_flops", "smashed": "smashed_bits",
    "server_forward": "server_forward_flops", "server_backward": "server_backward_flops", "gradient": "gradient_bits",
    "model_up": "model_bits", "model_down": "model_bits",
}  # fmt: skip


@dataclass(frozen=True)
class Why:
    """What holds a client up. Data is in bytes and its rate in bits per second; computing in FLOPs and FLOPs per second."""

    client: int
    phase: str
    seconds: float  # of the phase over the round
    own_s: float  # of all the client's phases but the model's download
    amount: float
    per_second: float
    gain: float | None  # mean over the client's subchannels, where that phase uses the radio
    other_cut: int | None  # the best cut besides the client's own; None where there is no other
    other_round_s: float | None
    words: str = ""

    def record(self) -> dict[str, Any]:
        """The record as plain data, with six digits, for a file."""
        return {name: float(f"{v:.6g}") if isinstance(v, float) else v for name, v in asdict(self).items()}


@dataclass(frozen=True)
class Held:
    """The longest phase of a client."""

    phase: str
    seconds: float
    own_s: float
    amount: float
    per_second: float

    @classmethod
    def planned(cls, seconds: dict[str, float], cost: CostTable, cut: int, num_samples: float) -> "Held":
        """The longest phase in a plan, of a client that goes through so many samples in a round."""
        per_sample = (cost.client_flops, cost.smashed_bits, cost.server_flops, cost.gradient_bits)
        costs = {name: float(num_samples * column[cut]) for name, column in zip(GROUPS, per_sample)}
        return cls.longest(seconds, costs | {"model_up": float(cost.model_bits[cut])})

    @classmethod
    def longest(cls, seconds: dict[str, float], costs: dict[str, float]) -> "Held":
        """The longest phase, from the seconds and the bits (or FLOPs) of each phase over the round."""
        phase = max(GROUPS, key=lambda name: seconds[name])
        per_second = costs[phase] / seconds[phase] if seconds[phase] > 0 else 0.0
        bits = phase not in ("client", "server")
        amount = costs[phase] / 8 if bits else costs[phase]
        return cls(phase, seconds[phase], sum(seconds[name] for name in GROUPS), amount, per_second)

    def words(self, gain: float | None, num_owned: int) -> str:
        unit, speed = ("FLOP", "FLOP/s") if self.phase in ("client", "server") else ("B", "bit/s")
        band = (
            ""
            if gain is None
            else f" (gain {gain:.3g}, mean of {num_owned})"
            if num_owned > 1
            else f" (gain {gain:.3g})"
        )
        return (
            f"{WORDS[self.phase]} {self.seconds:.4g} s of its {self.own_s:.4g} s, {say(self.amount, unit)} at "
            f"{say(self.per_second, speed)}{band}"
        )


def why(clock: RoundClock, round_index: int, chosen: tuple[int, ...]) -> Why | None:
    """What holds up the straggler of a round (0, 1, ...) in which the clients `chosen` are to take part; None if no client trains.

    Where all clients end together, the answer is about the client that takes longest apart from the server's work.
    """
    line, _ = clock.round(round_index, chosen)
    if line.straggler < 0 or clock.method.pools_data:
        return None
    dealt, job = clock.dealt(round_index, chosen), clock.job
    seconds = _seconds(clock, line, dealt)
    together, k = _together(line), line.straggler
    held = Held.longest({name: float(values[k]) for name, values in seconds.items()}, _costs(clock, seconds, dealt, k))
    best = _best_other(clock, dealt, k)
    who = f"{job.world.fleet.name(k)} (cut {_cut(clock, k)}) {_how(clock, line, k, together)}"
    return _why(k, who, held, _owned(job, dealt, held.phase, k), best, _other_words(clock, dealt, line.round_s, best))


def why_record(clock: RoundClock, round_index: int, chosen: tuple[int, ...]) -> dict[str, Any] | None:
    """What `why` says, as plain data for the record of a round."""
    found = why(clock, round_index, chosen)
    return None if found is None else found.record()


def _why(k: int, who: str, held: "Held", owned: Array | None, best: tuple[int, float] | None, other_words: str) -> Why:
    gain = None if owned is None else float(owned.mean())
    words = f"{who}: {held.words(gain, 0 if owned is None else len(owned))}. {other_words}".strip()
    words = words.replace("client ", "Client ", 1) if words.startswith("client ") else words
    cut, round_s = (None, None) if best is None else best
    return Why(k, held.phase, held.seconds, held.own_s, held.amount, held.per_second, gain, cut, round_s, words)


def _together(line: Timeline) -> bool:
    """Whether all who take part end at the same time."""
    several = int(line.kept.sum()) > 1 and not line.dropped.any()
    return several and bool(np.ptp(line.finish_s[line.kept]) <= LEVEL * line.round_s)


def _how(clock: RoundClock, line: Timeline, k: int, together: bool) -> str:
    if together:
        return "ends with all others, but takes longest apart from the server's work"
    if line.dropped[k]:
        return f"is dropped at tau = {clock.job.config.train.tau_s:g} s"
    return "has the longest turn" if clock.method.timing.turns == "alone" else "ends last"


def _seconds(clock: RoundClock, line: Timeline, dealt: Dealt) -> dict[str, Array]:
    """The seconds of each phase over the round, [K]; a client that was dropped counts with all its work."""
    if clock.method.timing.step != "free" or clock.method.timeline is not None:
        spent = line.phase_s
        return {name: sum((spent[part] for part in parts), np.zeros(len(line.kept))) for name, parts in GROUPS.items()}
    batches, times = np.broadcast_to(dealt.job.num_batches, line.kept.shape), dealt.allotted.phases
    spent_s = {}
    for name, parts in GROUPS.items():
        once_s = sum(
            (np.where(line.started, getattr(times, f"{part}_s"), 0.0) for part in parts), np.zeros(len(batches))
        )
        spent_s[name] = once_s if name == "model_up" else batches * once_s
    return spent_s


def _costs(clock: RoundClock, seconds: dict[str, Array], dealt: Dealt, k: int) -> dict[str, float]:
    """Bits or FLOPs of each phase of client k over the round: what one mini-batch has, as often as its seconds fit in."""
    job, times = clock.job, dealt.allotted.phases
    batch_size = float(np.broadcast_to(job.batch_size, job.cuts.shape)[k])
    costs = {}
    for name, parts in GROUPS.items():
        once_s = float(sum(getattr(times, f"{part}_s")[k] for part in parts))
        amount = sum(float(getattr(job.world.cost, COLUMNS[part])[_cut(clock, k)]) for part in parts)
        amount *= 1.0 if name == "model_up" else batch_size
        costs[name] = amount * float(seconds[name][k]) / once_s if once_s > 0 else 0.0
    return costs


def _cut(clock: RoundClock, k: int) -> int:
    """The cut of client k as the framework uses it: all units where the client trains the whole model."""
    return clock.job.world.cost.num_units if clock.method.timing.cut == "whole" else int(clock.job.cuts[k])


def _owned(job: Job, dealt: Dealt, phase: str, k: int) -> Array | None:
    """The gains of client k's subchannels in the link that a phase uses; None without a radio."""
    gains = {"smashed": dealt.draw.main_gain, "gradient": dealt.draw.main_gain, "model_up": dealt.draw.edge_gain}
    gain = gains.get(phase)
    if gain is None or not isinstance(job.world.links, Ofdma):
        return None
    says = dealt.allotted.says
    owners = [says["owner"]] if "owner" in says else says.get("owners", [])
    for owner in owners:
        if k in owner:
            return np.asarray(gain[k][np.asarray(owner) == k])
    if "server_hz" in says:  # shared bands
        return np.asarray(gain[k])
    return np.asarray(gain[k][_even_columns(job, dealt, k)])


def _even_columns(job: Job, dealt: Dealt, k: int) -> Array:
    """Subchannels of client k under the even allocation."""
    num_clients, columns = len(job.cuts), job.world.links.num_subchannels if isinstance(job.world.links, Ofdma) else 1
    turns = method(job.config.framework).timing.turns
    group = {"alone": np.arange(num_clients), "clusters": job.clusters}.get(turns)
    shared = band_groups(job.world.links, group, num_clients)
    bands = Bands(columns, np.zeros(num_clients, int) if shared is None else shared, np.flatnonzero(dealt.started))
    return np.arange(columns) if bands.everything else bands.pairs[bands.pairs // columns == k] % columns


def _best_other(clock: RoundClock, dealt: Dealt, k: int) -> tuple[int, float] | None:
    """The best cut that client k (and every client that shares its cut) does not have, and the seconds of a round with that cut."""
    job, extras = clock.job, clock.extras
    if clock.method.timing.cut != "any" or extras.head_bits or extras.decoder_flops:
        return None  # it knows no cuts, or what travels with the head was measured at this cut alone
    alike = _changes_with(clock, k)
    deepest = int(np.minimum(job.world.fleet.max_cut, job.world.cost.num_units)[alike].min())
    rounds = {}
    for cut in range(job.config.fleet.min_cut, deepest + 1):
        if cut == job.cuts[k]:
            continue
        with suppress(InputError):  # a cut that no round can be made of
            other = _at_cut(clock, dealt, alike, cut)
            if all(np.isfinite(getattr(other.allotted.phases, name)[k]) for name in Phases.__dataclass_fields__):
                rounds[cut] = clock.line(other, other.allotted.phases).round_s
    return min(rounds.items(), key=lambda item: item[1]) if rounds else None


def _changes_with(clock: RoundClock, k: int) -> Array:
    """The clients whose cut changes with client k's, [K] bool: k alone, its cluster where clusters have cuts, else everyone."""
    job = clock.job
    if clock.method.own_cuts:
        return np.arange(len(job.cuts)) == k
    if job.clusters is not None and len(set(job.cuts.tolist())) > 1:
        return np.asarray(job.clusters == job.clusters[k])
    return np.ones(len(job.cuts), bool)


def _anew(clock: RoundClock, dealt: Dealt) -> bool:
    """Whether a round with another cut is allocated anew: where that is quick."""
    links = clock.job.world.links
    if isinstance(clock.allocator, Even) or not isinstance(links, Ofdma):
        return True
    return "owner" in dealt.allotted.says and len(clock.job.cuts) * links.num_subchannels <= QUICK_PAIRS


def _at_cut(clock: RoundClock, dealt: Dealt, alike: Array, cut: int) -> Dealt:
    """The round if these clients had this cut. It is allocated anew, or the clients keep what they were given; a phase for which a
    client was given nothing then never ends."""
    job = clock.job
    cuts = np.where(alike, cut, job.cuts)
    if _anew(clock, dealt):
        allotted = clock.allocator.allocate(replace(dealt.job, cuts=cuts), dealt.draw, dealt.started)
        return replace(dealt, allotted=allotted)
    changed = {}
    for name, column in COLUMNS.items():
        cost, old_s = getattr(job.world.cost, column), getattr(dealt.allotted.phases, f"{name}_s")
        before, after = cost[job.cuts], cost[cuts]
        ratio = np.divide(after, before, out=np.ones_like(after), where=before > 0)
        nothing = alike & dealt.allotted.kept & (before == 0) & (after > 0)
        changed[f"{name}_s"] = np.where(nothing, np.inf, np.where(alike, ratio, 1.0) * old_s)
    return replace(dealt, allotted=replace(dealt.allotted, phases=Phases(**changed)))


def _other_words(clock: RoundClock, dealt: Dealt, round_s: float, best: tuple[int, float] | None) -> str:
    if best is None:
        return ""
    whose = "" if clock.method.own_cuts else " for all"
    if not isinstance(clock.allocator, Even):
        whose += ", allocated anew," if _anew(clock, dealt) else " and what it was given"
    return other_cut_words(f"cut {best[0]}{whose}", best[1], round_s)


def other_cut_words(at: str, other_s: float, now_s: float, what: str = "the round") -> str:
    """A phrase that says how long a round would take with another cut."""
    change = other_s / now_s - 1 if now_s > 0 else 0.0
    if abs(change) < 5e-4:
        return f"With {at} {what} would last as long, {other_s:.4g} s."
    if change < 0:
        return f"With {at} {what} would take {other_s:.4g} s instead of {now_s:.4g} s."
    return f"No other cut is faster: with {at.rstrip(',')}, the best of them, {what} would take {other_s:.4g} s instead of {now_s:.4g} s."


def why_planned(client: int, who: str, held: Held, gains: Array | None, now_s: float, rounds: dict[int, float]) -> Why:
    """What holds up the client on which a plan's round hangs most. who: words that name the client and say how the round hangs on it.

    gains: of the client's subchannels, where its longest phase uses the radio. now_s: the mean round in seconds with the client's
    own cut. rounds: the mean rounds in seconds with its other cuts, by cut.
    """
    best = min(rounds.items(), key=lambda item: item[1]) if rounds else None
    other = "" if best is None else other_cut_words(f"cut {best[0]}", best[1], now_s, "the mean round")
    return _why(client, who, held, gains, best, other)
