"""What the main server counts of each client, and what stands for the client's name on Prometheus's page."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import generate_latest

from hsfl.deploy.main.client_counts import ClientCounts
from hsfl.deploy.metrics import PHASES, Metrics
from hsfl.deploy.settings import MainSettings
from hsfl.deploy.trust.expiry import days_left


def page_of(labels: str, run: str = "5f0e") -> str:
    """The page after a client was kept, late and dropped for a reason of its own."""
    metrics = Metrics()
    counts = ClientCounts(metrics, labels, run)
    counts.joined(3, "ward-3", datetime.now(UTC) + timedelta(days=12.5))
    counts.kept(3, "ward-3", dict.fromkeys(PHASES, 0.5))
    counts.kept(3, "ward-3", dict.fromkeys(PHASES, 0.25))
    counts.dropped(3, "ward-3", "late")
    counts.dropped(3, "ward-3", "what a peer said\n# TYPE evil")
    assert (counts["ward-3"].rounds, counts["ward-3"].late_rounds) == (2, 1)
    assert counts["ward-3"].drops == {"late": 1, "other": 1}
    assert counts["nobody"].drops == {}
    return str(generate_latest(metrics.registry).decode())


def test_rounds_drops_and_seconds_of_a_client() -> None:
    lines = page_of("names").splitlines()
    for line in (
        'hsfl_client_rounds_total{client="ward-3"} 2.0',
        'hsfl_client_late_rounds_total{client="ward-3"} 1.0',
        'hsfl_client_drops_total{client="ward-3",reason="late"} 1.0',
        'hsfl_client_drops_total{client="ward-3",reason="other"} 1.0',
        'hsfl_client_phase_seconds_total{client="ward-3",phase="smashed"} 0.75',
    ):
        assert line in lines
    (days,) = (line for line in lines if line.startswith("hsfl_client_certificate_days{"))
    assert float(days.rpartition(" ")[2]) == pytest.approx(12.5, abs=0.01)
    assert not any("evil" in line for line in lines)


@pytest.mark.parametrize(("labels", "shape"), [("seats", r"3"), ("hashes", r"[0-9a-f]{12}")])
def test_no_name_is_on_the_page_where_names_must_not_leave(labels: str, shape: str) -> None:
    page = page_of(labels)
    assert "ward-3" not in page
    shown = set(re.findall(r'client="([^"]*)"', page))
    assert len(shown) == 1
    assert re.fullmatch(shape, shown.pop())


def test_a_hash_cannot_be_found_by_trying_names() -> None:
    """It depends on the run's own name, which stays on the servers; in one run it stays the same."""
    metrics = Metrics()
    counts = ClientCounts(metrics, "hashes", "5f0e")
    assert counts.label(0, "ward-3") == counts.label(7, "ward-3") != counts.label(0, "ward-4")
    assert counts.label(0, "ward-3") != ClientCounts(Metrics(), "hashes", "5f0f").label(0, "ward-3")


def test_names_are_the_default_and_other_words_are_refused() -> None:
    assert MainSettings().metrics_clients == "names"
    with pytest.raises(ValueError, match="metrics_clients"):
        MainSettings(metrics_clients="nobody")


def test_days_run_down_and_below_zero() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert days_left(moment + timedelta(days=3), moment) == 3
    assert days_left(moment - timedelta(hours=12), moment) == -0.5
    assert days_left(None) is None
