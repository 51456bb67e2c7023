"""`hsfl run --plan plan.json`: the cuts and the policy of a plan, in the plan's config or another one."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hsfl.allocation.policy_table import policy_row
from hsfl.config import RunConfig, parse_stored, set_names, with_changes
from hsfl.config.reading import from_folder
from hsfl.errors import InputError
from hsfl.files import read_record
from hsfl.framework_table import method
from hsfl.runs.records import Index

DECIDED = ("fleet.cuts", "allocation.policy")  # settings that a plan decides


@dataclass(frozen=True)
class PlannedCuts:
    """plan.json, as far as a run needs it."""

    policy: str
    cuts: Annotated[list[Index], Field(min_length=1)]
    config: dict[str, Any] | None = None


def read_plan(path: Path) -> PlannedCuts:
    """A plan that `hsfl plan --out` kept, or that `hsfl plan --json` printed. path: the file, or its folder."""
    path = path / "plan.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"--plan {path} is no file; hsfl plan CONFIG --out DIR writes DIR/plan.json")
    way_out = "give the plan.json that hsfl plan CONFIG --out DIR writes"
    plan: PlannedCuts = read_record(path, PlannedCuts, way_out)
    if plan.config is None:
        return plan
    config = from_folder(path.parent, plan.config)
    parse_stored(config, path)
    return PlannedCuts(plan.policy, plan.cuts, config)


def as_planned(config: RunConfig, plan: PlannedCuts, changes: Iterable[str] = ()) -> RunConfig:
    """The config with the plan's policy and cuts. Where the policy has a rule for cuts, the rule gives them again.

    changes: settings that were typed beside the plan; those that the plan decides are refused.
    """
    typed = {name for change in changes for name in set_names(change)}
    if both := [name for name in DECIDED if name in typed]:
        raise InputError(f"{both[0]} has no effect beside --plan, which decides it; leave one of them out")
    if not method(config.framework).own_cuts:
        raise InputError(
            f"a plan gives every client its own cut but framework {config.framework} has none; set framework=hsfl, or leave out --plan"
        )
    config = with_changes(config, [f"allocation.policy={json.dumps(plan.policy)}"], look=False)
    if policy_row(plan.policy, config.options).chooses_cuts:
        return with_changes(config, ["fleet.cuts=planned"])
    return with_changes(config, [f"fleet.cuts={plan.cuts}"])
