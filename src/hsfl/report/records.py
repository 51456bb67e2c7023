"""What a page reads besides run folders: comparison.json, trace.json and plan.json as checked records (see `runs.records`)."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from hsfl.runs.records import Count, Held, Index, Number


@dataclass(frozen=True)
class ComparisonRecord:
    """comparison.json, as far as a page needs it."""

    target: Number | None = None  # test accuracy
    labels: dict[str, Any] = field(default_factory=dict)  # results by label, in the order that was asked for


@dataclass(frozen=True)
class TraceRecord:
    """trace.json: a run that took its training from another framework's."""

    trained_as: str


@dataclass(frozen=True)
class PlannedClient:
    """A client in plan.json."""

    client: Index
    cut: Index
    server_hz: Number
    seconds: dict[str, Number]  # of each phase over the round
    bottleneck: str  # the longest phase
    subchannels: list[Index] | None
    share: list[Number] | None
    main_up_power_w: Number | None
    main_down_power_w: Number | None
    edge_up_power_w: Number | None
    edge_down_power_w: Number | None
    weight: Number | None
    name: str


@dataclass(frozen=True)
class CrowdPlan:
    """Many clients in plan.json, in a few numbers (`planning.plan_crowd.PlanCrowd`)."""

    num_clients: Count
    num_cells: Count
    cuts: dict[str, Count]
    num_chosen: Annotated[list[Count], Field(min_length=1)]
    num_kept: list[Count]
    rounds_s: list[Number]
    bounds_s: list[Number]
    quantiles: list[Count]
    seconds: dict[str, list[Number]]
    finish_s: list[Number]
    cell_hz: list[Number]


@dataclass(frozen=True)
class PlanRecord:
    """plan.json of `hsfl plan --out`."""

    policy: str
    round_s: Number
    lower_bound_s: Number
    gap: Number
    clients: list[PlannedClient]
    baselines_s: dict[str, Number]
    num_samples: Count
    seconds: Number
    notes: list[str]
    assumed: list[str]
    why: Held | None
    other_cut: Index | None
    other_round_s: Number | None
    crowd: CrowdPlan | None  # of many clients, or several cells, in place of the clients
    config: dict[str, Any] | None = None  # None in what `hsfl plan --json` prints


def _with_phases(plan: PlanRecord) -> PlanRecord:
    """A page draws the phases of every client, or quantiles, and sets the policies against the proposed one."""
    if not plan.clients and plan.crowd is None:
        raise ValueError("clients is empty, and there is no crowd")
    if plan.crowd is not None:
        for name, values in {**plan.crowd.seconds, "finish_s": plan.crowd.finish_s}.items():
            if len(values) != len(plan.crowd.quantiles):
                raise ValueError(f"crowd.{name} has {len(values)} entries, not {len(plan.crowd.quantiles)} quantiles")
    for place, client in enumerate(plan.clients):
        if client.bottleneck not in client.seconds or "model_down" not in client.seconds:
            raise ValueError(f"clients[{place}].seconds lacks model_down or the bottleneck {client.bottleneck!r}")
    if "proposed" not in plan.baselines_s:
        raise ValueError("baselines_s lacks proposed")
    return plan


CheckedPlan = Annotated[PlanRecord, AfterValidator(_with_phases)]
