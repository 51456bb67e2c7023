"""Settings that would do nothing: what somebody sets is used, or refused with the reason.

A setting of `--set` must do something in one of the runs that follow. A setting of a file may do something in the
file's own config instead, since a word on the command line may well overrule a part of the file.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hsfl import plugins
from hsfl.allocation.policy_table import policy_row
from hsfl.config import (
    OWN_DATA,
    OWN_MODEL,
    RunConfig,
    config_file,
    flatten,
    is_of_a_run,
    parse_config,
    presets,
    read_tree,
    set_names,
)
from hsfl.config.options import OF_MODELS
from hsfl.data.datasets import READERS
from hsfl.errors import InputError, known
from hsfl.methods import method
from hsfl.models.recipes import find_recipe
from hsfl.planning.clusters import own_policy
from hsfl.planning.cuts import one_each
from hsfl.planning.described import described
from hsfl.runs.contenders import contender, split_label
from hsfl.runs.effect_rules import RULES
from hsfl.tasks import check_loss, find_task


def check_effects(
    source: str | Path | None, changes: Iterable[str], configs: Sequence[RunConfig], planning: bool = False
) -> None:
    """Refuse a setting that was given, differs from its default, and does nothing in any of the configs.

    source, changes: as `read_config` takes them; a preset's own settings, and those of a run folder, are never refused.
    planning: whether the settings are for a plan, which searches cuts whatever the configs say.
    """
    for config in configs:
        _check_names(config)
    alone, in_file = _own_config(source)
    typed = _typed(changes)
    for name in sorted(typed):
        _check(name, configs, planning)
    for name in sorted(in_file - typed):
        _check(name, [*configs, *alone], planning or name != "fleet.cuts")  # the same file may serve hsfl plan


def _typed(changes: Iterable[str]) -> set[str]:
    return {name for change in changes for name in set_names(change)}


def _check_names(config: RunConfig) -> None:
    """Refuse names that nobody has registered and cuts that the model does not have, before anything is loaded for
    them."""
    kind = config.data.name.partition(":")[0]
    method(config.framework)
    if config.model.name != OWN_MODEL:
        find_recipe(config.model.name)
    if kind != OWN_DATA:
        known("data set", kind, READERS, plugins.WAY_OUT)
    check_loss(find_task(config.train.task), config.train.loss if config.train.task is not None else None)
    policy_row(own_policy(config.allocation.policy, config.framework), config.options)
    _check_given_cuts(config)


def _check_given_cuts(config: RunConfig) -> None:
    """Refuse cuts that a built-in model does not have, and a fleet file that cannot be read or contradicts the
    config."""
    described(config)
    recipe = None if config.model.name == OWN_MODEL else find_recipe(config.model.name)
    if recipe is None or recipe.num_units is None:
        return
    for name, value, num_clients in (
        ("fleet.cuts", config.fleet.cuts, config.fleet.num_clients),
        ("fleet.one_cut", config.fleet.one_cut, 1),
    ):
        if isinstance(value, int | tuple):
            one_each(name, value, num_clients, recipe.num_units)


def check_contenders_effects(
    source: str | Path | None,
    changes: Iterable[str],
    points: Sequence[RunConfig],
    labels: Iterable[str],
    planning: bool = False,
) -> None:
    """As `check_effects`, for contenders at every point; a contender's own settings must do something in its own runs."""
    made = {label: [contender(point, label) for point in points] for label in labels}
    used = {config.framework for configs in made.values() for config in configs}
    for point in points:
        if "framework" in _typed(changes) and point.framework not in used:
            raise InputError(
                f"framework = {point.framework!r} has no effect: the contenders are {', '.join(made)}; add -f {point.framework}, or "
                "leave it out"
            )
    check_effects(source, changes, [config for configs in made.values() for config in configs], planning)
    for label, configs in made.items():
        check_effects(None, split_label(label)[1:], configs, planning)


def _check(name: str, configs: Sequence[RunConfig], planning: bool) -> None:
    """Refuse a setting that does nothing in every config that sets it. A config in which it has its default does not
    count."""
    given = [config for config in configs if not _is_default(name, config)]
    reasons = [_no_effect(name, config, planning) for config in given]
    if given and all(reason is not None for reason in reasons):
        value = flatten(given[0].model_dump(mode="json")).get(name)
        raise InputError(f"{name} = {value!r} has no effect: {reasons[0]}")


def _no_effect(name: str, config: RunConfig, planning: bool) -> str | None:
    """Why a setting does nothing in this config; None where it does something."""
    section, _, rest = name.partition(".")
    if section == "options":
        return _other_framework(rest, config)
    rules = (rule for rule in RULES if name in rule.names and not (planning and rule.of_runs))
    return next((rule.why for rule in rules if not rule.works(config)), None)


def _is_default(name: str, config: RunConfig) -> bool:
    """Whether a setting has its default. The options of a plugin have no default here."""
    usual = flatten(RunConfig().model_dump(mode="json"))
    return name in usual and flatten(config.model_dump(mode="json"))[name] == usual[name]


def _other_framework(rest: str, config: RunConfig) -> str | None:
    """Why the options of a framework or model do nothing: another one runs."""
    of = rest.partition(".")[0]
    if of in (config.framework, config.model.name) or of not in type(config.options).model_fields:
        return None  # the options of a plugin may be of its policy, model or data
    if of in OF_MODELS:
        return f"these are options of the model {of} but the model is {config.model.name}; leave them out"
    return f"these are options of {of} but the framework is {config.framework}; leave them out"


def _own_config(source: str | Path | None) -> tuple[list[RunConfig], set[str]]:
    """The config of a user's own file by itself, and the names that the file sets. There is no config where the file
    alone makes none."""
    source = config_file(source)
    if source is None or str(source) in presets() or is_of_a_run(source):
        return [], set()
    tree: Mapping[str, Any] = read_tree(str(source))
    names = set(flatten({name: part for name, part in tree.items() if name != "plugins"}))
    try:
        return [parse_config(tree)], names
    except InputError:
        return [], names
