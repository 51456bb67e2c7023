"""The main server's part of clipping: it joins both servers' squared lengths, and tells the edge server the factors."""

from collections.abc import Sequence
from functools import partial

from hsfl.deploy.clipped_sides import Factors, side_norms
from hsfl.deploy.main.handlers import SharedState
from hsfl.deploy.main.main_round import MainRound


async def agree_on_factors(shared: SharedState, open_round: MainRound, kept: Sequence[int]) -> Factors | None:
    """The factors of these clients, which the edge server has then, too; None where updates are not clipped."""
    clip = shared.kit.clip
    if clip is None:
        return None
    sides = {seat: open_round.tails[seat].side for seat in kept}
    head_norms = await shared.edge.ask_norms(open_round.attempt, list(kept))
    tail_norms = await shared.compute.run(partial(side_norms, clip, open_round.state, sides, kept))
    factors = {seat: clip.factor(head + tail) for seat, head, tail in zip(kept, head_norms, tail_norms)}
    await shared.edge.give_factors(open_round.attempt, list(kept), list(factors.values()))
    if shortened := {open_round.tails[seat].name: factor for seat, factor in factors.items() if factor < 1}:
        shared.log.event(
            "updates clipped", round=open_round.round + 1, clip_norm=clip.norm, clients=list(shortened),
            factors=[float(f"{factor:.4g}") for factor in shortened.values()],
        )  # fmt: skip
    return Factors(clip, factors)
