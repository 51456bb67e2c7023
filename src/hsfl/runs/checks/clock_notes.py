"""What a person should know of a run's simulated seconds before its first round, where the numbers are legal but would mislead."""

from hsfl.formats import count
from hsfl.framework_table import AT_MODELS_END, AT_ONE_CUT, method
from hsfl.frameworks.framework import Framework
from hsfl.planning.fair_defaults import alike_words
from hsfl.planning.plans.unit_slips import unit_note
from hsfl.planning.rounds.round_clock import RoundClock
from hsfl.planning.rounds.straggler import explain_straggler
from hsfl.runs.prepare import Bench


def clock_notes(bench: Bench, framework: Framework, clock: RoundClock) -> list[str]:
    """Whether the clock charges a subset of the data, whether nothing is split, whether clients train more than they can hold, and whether a
    unit is probably wrong."""
    config, chosen = bench.task.config, clock.chosen(0)
    timeline, notes = clock.round(0, chosen)[0], [bench.subset_note, _whole_model_note(bench, framework)]
    notes.append(_one_cut_note(bench, framework))
    notes.append(_storage_note(bench))
    if timeline.kept.any():  # else tau ended the round
        notes.append(unit_note(config, timeline.round_s, explain_straggler(clock, 0, chosen)))
    return [note for note in notes if note]


def _whole_model_note(bench: Bench, framework: Framework) -> str | None:
    """A note where a framework that splits the model has every cut at the model's end."""
    row, num_units = method(bench.task.config.framework), bench.task.num_units
    splits = row.built_in and row.copy_per_client and row.timing.cut == "any"
    if not splits or min(framework.cuts) < num_units:
        return None
    setting = "fleet.cuts" if row.own_cuts else "fleet.one_cut"
    alike = alike_words(bench.task.config, row.name, AT_MODELS_END)
    if not framework.extras().heads_travel:
        alike = f"{row.title} averages nothing: each client trains a model of its own"
    return f"every cut is {num_units}, the model's end, so {alike}; lower {setting} to split the model"


def _one_cut_note(bench: Bench, framework: Framework) -> str | None:
    """A note where a framework whose clients could have cuts of their own chose one cut for all."""
    config, cuts, row = bench.task.config, set(framework.cuts), method(bench.task.config.framework)
    is_hsfl = row.built_in and row.own_cuts and row.copy_per_client
    was_chosen = config.fleet.cuts in ("planned", "fastest") and not bench.task.codecs and config.fleet.num_clients > 1
    if not (is_hsfl and was_chosen) or len(cuts) > 1 or bench.task.num_units in cuts:
        return None
    alike = alike_words(config, row.name, AT_ONE_CUT)
    return f"all clients have cut {cuts.pop()}, so {alike}; hsfl plan says what other cuts would cost"


def _storage_note(bench: Bench) -> str | None:
    """A note where clients train a whole model that they cannot hold, as FL of the paper does."""
    row, fleet = method(bench.task.config.framework), bench.world.fleet
    num_short = int((~fleet.can_hold(bench.task.num_units)).sum())
    if row.timing.cut != "whole" or not num_short or bench.task.config.options.fl.needs_storage:
        return None
    return (
        f"{num_short} of {count(fleet.num_clients, 'client')} cannot hold the whole model, which {row.title} trains on them all the same; "
        "set options.fl.needs_storage=true to leave them out"
    )
