"""A plan that is kept in a folder, and `hsfl run --plan plan.json`: the plan's cuts and policy, in its config or another one."""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hsfl.allocation.policy_table import policy_row
from hsfl.config import RunConfig, parse_stored, set_names, with_changes
from hsfl.config.reading import from_folder
from hsfl.errors import InputError
from hsfl.files import read_record, write_json
from hsfl.framework_table import method
from hsfl.runs.run_folder.provenance import keep_inputs
from hsfl.runs.run_folder.records import Index

PLAN_FILE = "plan.json"
DECIDED = ("fleet.cuts", "allocation.policy", "link.codecs")  # settings that a plan decides


@dataclass(frozen=True)
class PlannedCuts:
    """plan.json, as far as a run needs it."""

    policy: str
    cuts: Annotated[list[Index], Field(min_length=1)]
    config: dict[str, Any] | None = None
    codecs: list[str] | None = None


def check_plan_folder(out: Path) -> None:
    """Refuse a folder in which a plan cannot be kept, before the search for cuts and not after it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out={out} cannot be made ({error.strerror}); choose another folder") from None
    if (out / "config.json").exists():
        raise InputError(
            f"--out={out} is the folder of a run, whose page the plan would replace; choose another folder"
        )
    if not os.access(out, os.W_OK):
        raise InputError(f"--out={out} cannot be written to; choose another folder")


def keep_plan(out: Path, plan: dict[str, Any], config: RunConfig) -> None:
    """Write plan.json, with copies of the files that the config names. plan: the fields of a plan."""
    write_json(out / PLAN_FILE, plan | {"config": keep_inputs(out, config)})


def read_plan(path: Path) -> PlannedCuts:
    """A plan that `hsfl plan --out` kept, or that `hsfl plan --json` printed. path: the file, or its folder."""
    path = path / PLAN_FILE if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"--plan={path} is no file; hsfl plan keeps a plan with --out DIR, as DIR/plan.json")
    way_out = "give the plan.json that hsfl plan keeps with --out DIR"
    plan: PlannedCuts = read_record(path, PlannedCuts, way_out)
    if plan.config is None:
        return plan
    config = from_folder(path.parent, plan.config)
    parse_stored(config, path)
    return PlannedCuts(plan.policy, plan.cuts, config, plan.codecs)


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
    changed = [f"fleet.cuts={plan.cuts}"]
    if plan.codecs is not None:
        changed += ["link.allowed=none", "link.up=none", "link.down=none", f"link.codecs={json.dumps(plan.codecs)}"]
    return with_changes(config, changed)
