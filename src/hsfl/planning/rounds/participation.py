"""Who takes part in a round (`choose_clients`), and how much each client counts in the average (`update_weights`).

`uniform`: every client with the same probability, at most once. An update counts by the client's samples, and the sum is divided by
the samples of those who came: a ratio, whose bias is of the order of one over the clients of a round, where larger clients
learn something else than smaller ones.

`samples`: clients are drawn one by one, with replacement, each with a probability in proportion to its samples. An update counts as
often as its client was drawn, and the sum is divided by the number of draws. The expected update of a draw is the mean over all
clients, weighted by samples, and so is the expected mean of the draws: there is no bias. A client trains once, however often it
was drawn. Where clients drop out, the mean is over the clients that came, and its bias is of the order of the chance that a client
is drawn twice. Buffers (BatchNorm's) follow the same normalised mean, so a running variance stays a variance.

A search for cuts needs to know who will take part, too: `CutTask` holds what cuts are chosen for, with sampled rounds where the
fleet is large.

Legend: K clients, C cuts, n clients of a round.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from hsfl.config import RunConfig
from hsfl.errors import InputError
from hsfl.network.channel import Ofdma
from hsfl.network.devices import MANY_CLIENTS
from hsfl.planning.world import World, count_batches
from hsfl.rng import stream

Array = np.ndarray
SAMPLED_ROUNDS = 2  # to plan a crowd on: each has thousands of clients, which say enough


def times_drawn(config: RunConfig, round_index: int, num_samples: Array | None = None, key: str = "kept") -> Array:
    """How often each client is drawn for a round (0, 1, ...), [K]; clients that drop out are not drawn.

    num_samples: [K], or any numbers in proportion; needed where clients are drawn by them. key: of the random stream; a plan samples
    rounds apart from those of a run.
    """
    train, num_clients = config.train, config.fleet.num_clients
    rng, count = stream(config.seed, key, round_index), train.clients_per_round or num_clients
    if train.choose == "samples":
        if num_samples is None:
            raise InputError(
                "train.choose is 'samples' but the clients' samples are not known; set train.choose=uniform"
            )
        drawn = rng.choice(num_clients, count, p=num_samples / np.sum(num_samples))
    else:
        drawn = rng.permutation(num_clients)[:count]
    stays = rng.random(num_clients) >= train.drop_rate
    return np.where(stays, np.bincount(drawn, minlength=num_clients), 0)


def choose_clients(config: RunConfig, round_index: int, num_samples: Array | None = None) -> tuple[int, ...]:
    """The clients that are to take part in a round (0, 1, ...), sorted: all clients that are drawn, but for those that drop out.

    num_samples: as in `times_drawn`.
    """
    return tuple(np.flatnonzero(times_drawn(config, round_index, num_samples)).tolist())


def choose_present(config: RunConfig, round_index: int, present: Collection[int]) -> tuple[int, ...]:
    """The clients that are to take part in a round, sorted, of those that are there: the first `train.clients_per_round` of them in the
    order in which the round draws. Where everybody is there, these are the clients of `choose_clients`."""
    count = config.train.clients_per_round or config.fleet.num_clients
    order = stream(config.seed, "kept", round_index).permutation(config.fleet.num_clients).tolist()
    return tuple(sorted([client for client in order if client in present][:count]))


def update_weights(config: RunConfig, round_index: int, num_samples: Array) -> Array:
    """What the update of each client counts in the average of a round, [K]. num_samples: [K], that clients train on."""
    by_draws = config.train.choose == "samples"
    return times_drawn(config, round_index, num_samples) if by_draws else np.asarray(num_samples)


def most_weight(config: RunConfig, round_samples: int) -> int:
    """What the updates of a round count together, at most. round_samples: of the clients that take part."""
    return (
        (config.train.clients_per_round or config.fleet.num_clients)
        if config.train.choose == "samples"
        else round_samples
    )


# --- rounds to choose cuts for


def is_crowd(world: World) -> bool:
    """Whether cuts are planned by prices: there are too many clients to try their cuts one by one, or several cells."""
    several = isinstance(world.links, Ofdma) and world.links.cell is not None
    return several or world.fleet.num_clients > MANY_CLIENTS


@dataclass(frozen=True)
class Sampled:
    """Rounds to plan a crowd on: who takes part in each round, and how many clients a round has on average."""

    rounds: tuple[Array, ...]  # indices [n] of clients
    num_active: float  # clients that take part in a round, the mean
    num_receivers: float  # clients that get the model of a round, the mean

    @classmethod
    def everyone(cls, num_clients: int) -> "Sampled":
        """One round of all clients."""
        return cls((np.arange(num_clients),), num_clients, num_clients)


def _sampled_rounds(config: RunConfig, num_samples: Array) -> Sampled:
    """Rounds with the clients that take part, chosen as a run of the config chooses them, but from another random stream."""
    drawn = (times_drawn(config, index, num_samples, key="sampled") for index in range(SAMPLED_ROUNDS))
    rounds = tuple(clients for times in drawn if len(clients := np.flatnonzero(times)))
    if not rounds:
        return Sampled.everyone(config.fleet.num_clients)
    num_active = float(np.mean([len(clients) for clients in rounds]))
    return Sampled(rounds, num_active, num_active if config.train.receivers == "chosen" else config.fleet.num_clients)


@dataclass(frozen=True)
class CutTask:
    """What cuts are chosen for: the rounds of a config in its world, before their cuts are known."""

    config: RunConfig
    world: World
    num_batches: Array  # [K] of a round, as the clock charges them
    sampled: Sampled | None = None  # rounds to plan a crowd on; without them, everyone takes part

    @classmethod
    def of_run(cls, config: RunConfig, world: World, num_samples: Array, passes: int = 1) -> "CutTask":
        """The task of a run. num_samples: [K] training samples, as the clock charges them. passes: over a client's batches in a round."""
        sampled = _sampled_rounds(config, num_samples) if is_crowd(world) else None
        return cls(config, world, passes * count_batches(config, num_samples), sampled)

    @property
    def batch_size(self) -> int:
        return self.config.train.batch_size

    @property
    def rows(self) -> Array:
        """The rows of the cost table that each client may take, [K, C] bool."""
        return self.world.rows(self.config.fleet.min_cut)

    @property
    def participants(self) -> Sampled:
        """Who takes part in the rounds that a crowd is planned on."""
        return self.sampled or Sampled.everyone(self.world.fleet.num_clients)
