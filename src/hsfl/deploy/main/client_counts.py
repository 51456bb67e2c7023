"""What the main server counts of each client since its start: drops by reason, rounds, seconds by phase, and when its certificate expires.

`hsfl status` shows the counts by name. Prometheus's page shows them under a label that `metrics_clients` in the server's file chooses:
the client's name, its seat, or a hash, where names must not leave this machine.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import prometheus_client

from hsfl.deploy.metrics import PHASES, Metrics, known_reason
from hsfl.deploy.trust.expiry import days_left

Labels = Literal["names", "seats", "hashes"]
HASH_DIGITS = 12


@dataclass
class ClientCount:
    """The counts of one client."""

    rounds: int = 0  # that kept the client
    drops: Counter[str] = field(default_factory=Counter)  # from rounds, by reason
    valid_until: datetime | None = None  # of its certificate; None without TLS

    @property
    def late_rounds(self) -> int:
        return self.drops["late"]

    @property
    def certificate_days(self) -> float | None:
        return days_left(self.valid_until)


class ClientCounts:
    """The counts of all clients, by name, and their series among the server's metrics. labels: what a series shows in place
    of the client. run: the run's own name, which nobody else knows: with it, a hash cannot be found by trying names."""

    def __init__(self, metrics: Metrics, labels: Labels = "names", run: str = "") -> None:
        self._labels, self._run = labels, run
        self._of: dict[str, ClientCount] = {}
        make, registry = prometheus_client.Counter, metrics.registry
        self._rounds = make("hsfl_client_rounds", "Rounds that kept the client.", ["client"], registry=registry)
        self._late = make(
            "hsfl_client_late_rounds", "Rounds from which the client was dropped at tau.", ["client"], registry=registry
        )
        self._drops = make(
            "hsfl_client_drops", "Drops from rounds, by client and reason.", ["client", "reason"], registry=registry
        )
        self._phase_s = make(
            "hsfl_client_phase_seconds",
            "Measured seconds, by client and phase.",
            ["client", "phase"],
            registry=registry,
        )
        self._days = prometheus_client.Gauge(
            "hsfl_client_certificate_days",
            "Days until the client's certificate expires.",
            ["client"],
            registry=registry,
        )

    def __getitem__(self, name: str) -> ClientCount:
        return self._of.get(name, ClientCount())

    def label(self, seat: int, name: str) -> str:
        """What a series shows in place of the client."""
        if self._labels == "seats":
            return str(seat)
        if self._labels == "names":
            return name
        return hmac.new(self._run.encode(), name.encode(), hashlib.sha256).hexdigest()[:HASH_DIGITS]

    def joined(self, seat: int, name: str, valid_until: datetime | None) -> ClientCount:
        """Note that a client has joined. Its series are there from now on, at zero."""
        count, label = self._count(name), self.label(seat, name)
        count.valid_until = valid_until
        for counter in (self._rounds, self._late):
            counter.labels(label)
        for phase in PHASES:
            self._phase_s.labels(label, phase)
        if valid_until is not None:
            self._days.labels(label).set_function(lambda: count.certificate_days or 0.0)  # None never comes
        return count

    def dropped(self, seat: int, name: str, reason: str) -> None:
        """Count a drop from a round."""
        label, reason = self.label(seat, name), known_reason(reason)
        self._count(name).drops[reason] += 1
        self._drops.labels(label, reason).inc()
        if reason == "late":
            self._late.labels(label).inc()

    def kept(self, seat: int, name: str, phases_s: Mapping[str, float]) -> None:
        """Count a round that kept the client. phases_s: the seconds of each phase."""
        label = self.label(seat, name)
        self._count(name).rounds += 1
        self._rounds.labels(label).inc()
        for phase, took_s in phases_s.items():
            self._phase_s.labels(label, phase).inc(took_s)

    def _count(self, name: str) -> ClientCount:
        return self._of.setdefault(name, ClientCount())
