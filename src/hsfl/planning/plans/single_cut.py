"""The best cut that all clients share, beside the cuts that are planned: what cuts of their own are worth, and what they could be worth at the most.

A plan has a lower bound for any cuts where one is proven. Then one cut for all is within a known distance of the best cuts there can be. A crowd's bound
is for its own cuts alone, and so says nothing of others.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hsfl.formats import percent

Array = np.ndarray
TRY_S = 10.0  # real seconds in which single cuts are tried


@dataclass(frozen=True)
class SingleCut:
    """The best of the single cuts that were tried on the rounds of a plan, under its policy."""

    cut: int
    codec: str | None  # of everyone, where clients may have different ones
    round_s: float  # mean over the samples
    over_planned: (
        float  # how much longer that is than the planned cuts take, as a part of it; below 0 where it is shorter
    )
    over_best: (
        float | None
    )  # how much longer at the most than any cuts take; None where no bound for any cuts is proven
    is_planned: bool  # whether the plan has this cut for everyone
    num_tried: int
    num_legal: int  # single cuts that every client may have


def try_single_rows(rows: Array, planned: Array, mean_s: Callable[[Array], float]) -> dict[int, float]:
    """The mean rounds in seconds with one row of the cost table for all clients, by row: those that are tried in TRY_S, first the rows near the
    planned ones. rows: [K, C] bool, which rows a client may take. planned: [K]. mean_s: of rows [K]."""
    began, tried, middle = time.monotonic(), dict[int, float](), float(np.median(planned))
    for row in sorted(single_rows(rows), key=lambda row: abs(row - middle)):
        tried[row] = mean_s(np.full(len(planned), row))
        if time.monotonic() - began > TRY_S:
            break
    return tried


def single_rows(rows: Array) -> list[int]:
    """The rows that every client may take. rows: [K, C] bool."""
    common: list[int] = np.flatnonzero(rows.all(axis=0)).tolist()
    return common


def single_cut_sentence(single: SingleCut | None) -> str | None:
    """What one cut for all is worth, in words; None where the plan has this cut for everyone and nothing is proven of other cuts."""
    if single is None or (single.is_planned and single.over_best is None):
        return None
    codec = "" if single.codec is None else f" with {single.codec}"
    tried = "" if single.num_tried == single.num_legal else f" (the best of {single.num_tried} that were tried)"
    way = "longer" if single.over_planned >= 0 else "shorter"
    planned = (
        "" if single.is_planned else f"takes {percent(abs(single.over_planned), 1)} {way} than the cuts of this plan"
    )
    best = "" if single.over_best is None else f"is within {percent(single.over_best, 1)} of the best cuts there can be"
    words = " and ".join(part for part in (planned, best) if part)
    unproven = "" if best else "; how much better other cuts could be is not proven"
    return f"one cut for all, {single.cut}{codec}{tried}, {words}{unproven}"
