"""Steps in stretches against a plain walk through every step of every client."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.network.in_step_times import run_steps

seconds = st.sampled_from([0.0, 0.5, 1.0, 3.0]) | st.floats(0, 10)
batches = st.sampled_from([0.25, 1.0, 2.0, 2.5, 4.0]) | st.floats(0.01, 6)


def plain(kind, work, decoder_s, num_batches, rank):
    """Start and length of each block, busy, finish and total, one step and one client at a time."""
    n = len(num_batches)
    start, length = np.zeros((2, 7, n))
    busy, finish, now = np.zeros(n), np.zeros(n), 0.0
    for step in range(int(np.ceil(max(num_batches)))):
        part = [min(max(num_batches[k] - step, 0.0), 1.0) for k in range(n)]
        joins = [k for k in range(n) if part[k] > 0]
        arrived = max(part[k] * (work[0, k] + work[1, k]) for k in joins)
        passes = 2 if kind == "local_loss" and len(joins) > 1 else 1
        joint = [sum(part[k] * work[p, k] for k in joins) * passes for p in (2, 3)]
        place = part * (work[0] + work[1]) if rank is None else rank[step] if rank.ndim == 2 else rank
        ends, served = [], arrived
        for k in sorted(joins, key=lambda k: (place[k], -num_batches[k], k)):
            own = part[k] * work[:, k]
            if kind != "queue":
                own[2:4], served = joint, arrived
            decoder = part[k] * decoder_s[k] if kind == "local_loss" else 0.0
            returned = served + own[2] + own[3]
            back = max(returned + own[4], served + decoder)
            start[:, k] += [0, own[0], served, served + own[2], returned, back, served]
            length[:, k] += [*own, decoder]
            busy[k] += own[0] + own[1] + back - served + own[5]
            finish[k] = now + back + own[5]
            ends.append(back + own[5])
            served = returned
        now += max(ends)
    for k in range(n):  # the last block ends with the work
        last = max((p for p in range(6) if length[p, k] > 0), default=None)
        if last is not None:
            start[last, k] = finish[k] - length[last, k]
            start[last + 1 : 6, k] = finish[k]
    return start, length, busy, finish, now


@given(st.data(), st.sampled_from(["joint", "local_loss", "queue"]), st.integers(1, 6))
@settings(max_examples=300)
def test_stretches_are_steps(data, kind, n):
    work = np.array(data.draw(st.lists(st.lists(seconds, min_size=n, max_size=n), min_size=6, max_size=6)))
    decoder_s = np.array(data.draw(st.lists(seconds, min_size=n, max_size=n)))
    num_batches = np.array(data.draw(st.lists(batches, min_size=n, max_size=n)))
    rank = data.draw(st.sampled_from(["none", "one", "each"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    places = {"none": None, "one": rng.permutation(n)}
    places["each"] = np.stack([rng.permutation(n) for _ in range(int(np.ceil(max(num_batches))))])
    queue = places[rank] if kind == "queue" else None
    run = run_steps(kind, work, decoder_s, num_batches, queue)
    expected = plain(kind, work, decoder_s, num_batches, queue)
    for got, want in zip((run.start_s, run.length_s, run.busy_s, run.finish_s, run.total_s), expected):
        assert got == pytest.approx(want, rel=1e-9, abs=1e-9)
