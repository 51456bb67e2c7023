"""What a server counts for Prometheus: clients, rounds, seconds of phases, bytes on each link, drops by reason.

No label here names a client. The counts of each client are `main.client_counts`, where the operator chooses what stands for a name.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from hsfl.deploy.trust.credentials import is_loopback
from hsfl.deploy.trust.expiry import bundle_days
from hsfl.errors import InputError
from hsfl.network.round_end import END_PARTS
from hsfl.runs.run_folder.round_phases import CLIENT_PARTS

PHASES = ("client", "smashed", "server", "waiting", "gradient", "model_up", "model_down")
PARTS = (*CLIENT_PARTS, *END_PARTS)
LINKS = ("client_main", "client_edge", "main_edge")
DIRECTIONS = ("up", "down")  # up: towards the main server, or from a client
REASONS = (
    *(
        "certificate",
        "expired",
        "key_usage",
        "name",
        "role",
        "revoked",
        "calls",
    ),  # of hsfl.deploy.trust.identity.Refused
    *(
        "late",
        "disconnected",
        "protocol",
        "not_finite",
        "shape",
        "too_large",
        "order",
        "diverged",
        "range",
        "jump",
        "codec",
        "other",
    ),
)
REFUSED_CONNECTIONS = ("deadline", "address", "name", "crowd", "full", "no_call")  # docs/deploy.md says what each means
SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3000)  # bounds of the histograms


class Metrics:
    """The counters of one server. Every label has a fixed set of values, so that no peer can make the page grow."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.clients = Gauge("hsfl_clients", "Clients that are connected.", registry=registry)
        self.round = Gauge("hsfl_round", "The last completed round.", registry=registry)
        self.rounds = Counter("hsfl_rounds", "Rounds completed since the start of this process.", registry=registry)
        self.round_s = Histogram("hsfl_round_seconds", "Seconds of a round.", registry=registry, buckets=SECONDS)
        self._phase_s = Histogram(
            "hsfl_phase_seconds",
            "Measured seconds of a client's phase in a round.",
            ["phase"],
            registry=registry,
            buckets=SECONDS,
        )
        self._part_s = Histogram(
            "hsfl_round_part_seconds",
            "Measured seconds of a part of a round in which no client trains.",
            ["part"],
            registry=registry,
            buckets=SECONDS,
        )
        self._bytes = Counter("hsfl_link_bytes", "Bytes carried by a link.", ["link", "direction"], registry=registry)
        self._drops = Counter("hsfl_drops", "Clients dropped or refused, by reason.", ["reason"], registry=registry)
        self.connections = Gauge("hsfl_connections", "Open connections to this server.", registry=registry)
        self._refused_connections = Counter(
            "hsfl_refused_connections", "Connections shut down or gone without a call.", ["reason"], registry=registry
        )
        for reason in REFUSED_CONNECTIONS:
            self._refused_connections.labels(reason)
        for phase in PHASES:
            self._phase_s.labels(phase)  # a series is there from the start, at zero
        for part in PARTS:
            self._part_s.labels(part)
        for link in LINKS:
            for direction in DIRECTIONS:
                self._bytes.labels(link, direction)
        for reason in REASONS:
            self._drops.labels(reason)

    def phase(self, phase: str, seconds: float) -> None:
        """Note how long a phase of one client took in a round."""
        assert phase in PHASES, phase
        self._phase_s.labels(phase).observe(seconds)

    def part(self, part: str, seconds: float) -> None:
        """Note how long a part of a round took in which no client trains."""
        assert part in PARTS, part
        self._part_s.labels(part).observe(seconds)

    def carried(self, link: str, direction: str, num_bytes: int) -> None:
        """Count bytes on a link."""
        assert link in LINKS, link
        assert direction in DIRECTIONS, direction
        self._bytes.labels(link, direction).inc(num_bytes)

    def dropped(self, reason: str) -> None:
        """Count a client that was dropped or refused; a reason that is not in REASONS counts as other."""
        self._drops.labels(known_reason(reason)).inc()

    def watch_certificate(self, certs: Path | None) -> None:
        """Show in how many days this server's own certificate expires. certs: the folder of its bundle, which is looked at each
        time, since a certificate may be renewed while the server runs; None is plaintext."""
        if certs is not None:
            days = Gauge(
                "hsfl_certificate_days", "Days until this server's certificate expires.", registry=self.registry
            )
            days.set_function(lambda: math.nan if (left := bundle_days(certs)) is None else left)

    def refused_connections(self, reason: str, count: int) -> None:
        """Count connections that were refused."""
        assert reason in REFUSED_CONNECTIONS, reason
        self._refused_connections.labels(reason).inc(count)

    def completed(self, round: int, seconds: float) -> None:
        """Count a completed round."""
        self.rounds.inc()
        self.round.set(round)
        self.round_s.observe(seconds)


def known_reason(reason: str) -> str:
    """The reason as metrics show it."""
    return reason if reason in REASONS else "other"


def serve_metrics(metrics: Metrics, address: str, public: bool = False) -> tuple[int, Callable[[], Any]]:
    """Serve the page at an address such as 127.0.0.1:9470, from a thread; returns the port and a function that ends the
    thread. The page has neither TLS nor a password, so an address beyond loopback is refused unless `public`."""
    if not public and not is_loopback(address):
        raise InputError(f"metrics at {address} could be read by the whole network; use 127.0.0.1:PORT")
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]"), metrics.registry)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"metrics cannot be served at {address} ({error}); choose another port") from None

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return int(server.server_port), end
