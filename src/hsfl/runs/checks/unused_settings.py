"""Settings that have no effect in a run are refused, with the reason; `unused_settings_rules` has the table of reasons.

A setting of `--set` must have an effect in one of the runs that follow. A setting of a file may have one in the file's own
config instead, since a word on the command line may well overrule a part of the file. What a preset or a run folder sets is
not refused, except where the reason says so (`wherever_given`).
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hsfl import plugins
from hsfl.codec_table import allowed_links
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
from hsfl.data.registry import READERS
from hsfl.errors import InputError, known_name
from hsfl.framework_table import method
from hsfl.models.recipes import find_recipe
from hsfl.planning.cuts import cut_for_each
from hsfl.planning.fleet_from_file import with_fleet_file
from hsfl.planning.rounds.allocators import policy_of
from hsfl.runs.checks.unused_settings_rules import UNUSED
from hsfl.runs.studies.contenders import contender, read_contender
from hsfl.tasks import check_loss, find_task


def refuse_unused(
    source: str | Path | None, changes: Iterable[str], configs: Sequence[RunConfig], planning: bool = False
) -> None:
    """Refuse a setting that was given, differs from its default, and has no effect in any of the configs.

    Names that nobody registered, and cuts that the model does not have, are refused first.
    source, changes: as `read_config` takes them. planning: whether the settings are for a plan, which searches cuts whatever
    the configs say.
    """
    for config in configs:
        _check_names(config)
        _check_cuts(config)
    file_configs, file_names = _file_settings(source)
    typed = _typed(changes)
    _refuse_first({name: _unused(name, configs, planning) for name in sorted(typed)})
    everywhere = [*configs, *file_configs]
    _refuse_first(  # the same file may serve hsfl plan
        {name: _unused(name, everywhere, planning or name != "fleet.cuts") for name in sorted(file_names - typed)}
    )


def refuse_unused_by_contenders(
    source: str | Path | None,
    changes: Iterable[str],
    points: Sequence[RunConfig],
    texts: Iterable[str],
    planning: bool = False,
) -> None:
    """As `refuse_unused`, for contenders at every point; a contender's own settings must have an effect in its own runs."""
    contenders = {text: [contender(point, text) for point in points] for text in texts}
    configs = [config for at_points in contenders.values() for config in at_points]
    frameworks = {config.framework for config in configs}
    for point in points:
        if "framework" in _typed(changes) and point.framework not in frameworks:
            raise InputError(
                f"framework = {point.framework!r} has no effect: the contenders are {', '.join(contenders)}; "
                f"add -f {point.framework}, or leave it out"
            )
    refuse_unused(source, changes, configs, planning)
    for text, at_points in contenders.items():
        refuse_unused(None, read_contender(text).changes, at_points, planning)


def refuse_wherever_given(config: RunConfig) -> None:
    """Refuse unused settings that would pass for a part of the experiment, even where nobody typed them."""
    for name, reasons in UNUSED.items():
        for reason in reasons:
            if reason.wherever_given and reason.holds(config) and not _is_default(name, config):
                raise _refusal(name, config, reason.sentence_for(config))


def _typed(changes: Iterable[str]) -> set[str]:
    return {name for change in changes for name in set_names(change)}


def _unused(name: str, configs: Sequence[RunConfig], planning: bool) -> tuple[RunConfig, str] | None:
    """The first config that sets a setting which has no effect in any config that sets it, and why; None where it has one. A config in
    which the setting has its default does not count."""
    given = [config for config in configs if not _is_default(name, config)]
    whys = [_why_unused(name, config, planning) for config in given]
    return (given[0], whys[0]) if given and whys[0] is not None and None not in whys else None


def _refuse_first(unused: Mapping[str, tuple[RunConfig, str] | None]) -> None:
    """Refuse the first setting that has no effect; others with the same reason are told beside it."""
    refused = {name: found for name, found in unused.items() if found is not None}
    for name, (config, why) in refused.items():
        alike = [other for other, (_, other_why) in refused.items() if other_why == why and other != name]
        raise _refusal(name, config, why, alike)


def _refusal(name: str, config: RunConfig, why: str, alike: Sequence[str] = ()) -> InputError:
    value = flatten(config.model_dump(mode="json")).get(name)
    others = f"; nor {'has' if len(alike) == 1 else 'have'} {' and '.join(alike)}" if alike else ""
    return InputError(f"{name} = {value!r} has no effect: {why}{others}")


def _is_default(name: str, config: RunConfig) -> bool:
    """Whether a setting has its default. The options of a plugin have no default here."""
    usual = flatten(RunConfig().model_dump(mode="json"))
    return name in usual and flatten(config.model_dump(mode="json"))[name] == usual[name]


def _why_unused(name: str, config: RunConfig, planning: bool) -> str | None:
    """Why a setting has no effect in this config; None where it has one."""
    if name.startswith("options."):
        return _why_unused_option(name.split(".")[1], config)
    reasons = (reason for reason in UNUSED.get(name, ()) if not (planning and reason.runs_only))
    return next((reason.sentence_for(config) for reason in reasons if reason.holds(config)), None)


def _why_unused_option(owner: str, config: RunConfig) -> str | None:
    """Why the options of a framework or model have no effect: another one runs."""
    if owner in (config.framework, config.model.name) or owner not in type(config.options).model_fields:
        return None  # the options of a plugin may be of its policy, model or data
    if owner in OF_MODELS:
        return f"these are options of the model {owner} but the model is {config.model.name}; leave them out"
    return f"these are options of {owner} but the framework is {config.framework}; leave them out"


def _file_settings(source: str | Path | None) -> tuple[list[RunConfig], set[str]]:
    """The config of a user's own file by itself, and the names that the file sets. There is no config where the file
    alone makes none."""
    source = config_file(source)
    if source is None or str(source) in presets() or is_of_a_run(source):
        return [], set()
    tree: Mapping[str, Any] = read_tree(str(source))
    names = set(flatten({name: value for name, value in tree.items() if name != "plugins"}))
    try:
        return [parse_config(tree)], names
    except InputError:
        return [], names


def _check_names(config: RunConfig) -> None:
    """Refuse names that nobody has registered, before anything is loaded for them."""
    method(config.framework)
    if config.model.name != OWN_MODEL:
        find_recipe(config.model.name)
    data_kind = config.data.name.partition(":")[0]
    if data_kind != OWN_DATA:
        known_name("data set", data_kind, READERS, plugins.WAY_OUT)
    check_loss(find_task(config.train.task), config.train.loss if config.train.task is not None else None)
    policy_of(config)
    allowed_links(config.link)


def _check_cuts(config: RunConfig) -> None:
    """Refuse a fleet file that cannot be read or contradicts the config, and cuts that a built-in model does not have."""
    with_fleet_file(config)
    num_units = None if config.model.name == OWN_MODEL else find_recipe(config.model.name).num_units
    if num_units is None:
        return
    for name, value, num_clients in (
        ("fleet.cuts", config.fleet.cuts, config.fleet.num_clients),
        ("fleet.one_cut", config.fleet.one_cut, 1),
    ):
        if isinstance(value, int | tuple):
            cut_for_each(name, value, num_clients, num_units)
