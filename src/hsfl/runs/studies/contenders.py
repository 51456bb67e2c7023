"""Contenders of a comparison: a framework's name, which settings of its own may follow: `fl,options.fl.needs_storage=true`."""

import json

from hsfl import plugins
from hsfl.config import RunConfig, with_changes
from hsfl.errors import InputError
from hsfl.framework_table import method

SHARED = ("model", "data", "fleet", "network", "log")  # sections that all contenders share
OWN = ("cuts", "one_cut")  # fields of the fleet that a contender may change


def contender(base: RunConfig, label: str) -> RunConfig:
    """The config of the contender `label`, from the settings `base` that all contenders share."""
    name, *changes = split_label(label)
    if not all(changes):
        raise InputError(f"contender {label!r} has an empty setting; give NAME,section.field=value")
    plugins.find_installed(name)
    method(name)
    config = with_changes(base, [f"framework={json.dumps(name)}", *changes])
    if config.framework != name:
        raise InputError(f"{label} names two frameworks; give one contender for each")
    ours, theirs = _shared(config), _shared(base)
    if changed := [field for field in ours if ours[field] != theirs[field]]:
        raise InputError(f"{label} changes {changed[0]}, which all contenders share; change it with --set")
    return config


def _shared(config: RunConfig) -> dict[str, object]:
    """The settings that a contender may not change, by the field's full name."""
    fields: dict[str, object] = {"seed": config.seed, "device": config.device, "train.budget_s": config.train.budget_s}
    for section in SHARED:
        values = getattr(config, section)
        fields |= {f"{section}.{name}": getattr(values, name) for name in type(values).model_fields}
    return {name: value for name, value in fields.items() if name.removeprefix("fleet.") not in OWN}


def split_label(label: str) -> list[str]:
    """The parts of a label between commas; commas inside brackets do not count: `hsfl,fleet.cuts=[3,4]` has two parts."""
    texts, depth = [""], 0
    for letter in label:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            texts.append("")
        else:
            texts[-1] += letter
    return [text.strip() for text in texts]
