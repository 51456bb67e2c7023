"""What the contenders of a comparison are called, and in which folders their runs lie.

A contender has the name that a person gave it; else its framework's title, with the fewest words that tell it from the other
contenders of that framework: `HSFL`, `HSFL (even allocation)`, `V1 (same allocation)` as HSFL has, `V1 (as published)`. Names are
chosen anew where further contenders join; a folder stays what it was when its contender came.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from hsfl.config import RunConfig, flatten
from hsfl.errors import InputError
from hsfl.framework_table import METHODS, PROPOSED
from hsfl.planning.fair_defaults import without_auto
from hsfl.planning.rounds.allocators import own_policy
from hsfl.runs.run_folder.folder import plain_name
from hsfl.runs.run_folder.records import ContenderRecord
from hsfl.runs.studies.contenders import contender, labels_of, read_contender

POLICY, CUTS, ONE_CUT = "allocation.policy", "fleet.cuts", "fleet.one_cut"  # what is told first
MANY_CUTS = 6  # a longer list of cuts is not written into a name
MANY_SETTINGS = 8  # of more settings not every choice is tried
LONGEST_VALUE = 24  # letters
LONGEST_FOLDER = 60  # letters


def settle_contenders(
    base: RunConfig, texts: Sequence[str], stored: Mapping[str, ContenderRecord], out: Path
) -> dict[str, ContenderRecord]:
    """The contenders that the texts name, and after them those that were in the folder `out` before, by label.

    base: the settings that all contenders share. stored: the contenders of the folder by label. A contender whose settings are there
    under another label takes over the runs: a name that is given later costs no training.
    """
    records = {
        label: ContenderRecord("", "", asked.framework, _own_settings(base, asked.text), asked.text, asked.is_named)
        for label, asked in zip(labels_of(texts), map(read_contender, texts))
    }
    firsts: dict[str, str] = {}
    for label, record in records.items():  # a default that is written out makes no other contender
        twin = firsts.setdefault(without_auto(contender(base, record.text)).model_dump_json(), label)
        if twin != label:
            raise InputError(f"a contender stands twice: {label} has the settings of {twin}; name each once")
        if label in stored and _identity(stored[label]) != _identity(record):
            raise InputError(
                f"{label} is {stored[label].text} in {out}, not {record.text}; give it another name, or choose another --out"
            )
    asked = {_identity(record) for record in records.values()}
    records |= {label: record for label, record in stored.items() if _identity(record) not in asked}
    folders = {_identity(record): record.folder for record in stored.values()}
    names, words = _choose_names(records, base.allocation.policy)
    settled: dict[str, ContenderRecord] = {}
    for label, record in records.items():
        if (identity := _identity(record)) not in folders:
            folders[identity] = _free_folder(label, record, words[label], folders.values())
        settled[label] = replace(record, name=names[label], folder=folders[identity])
    return settled


def _own_settings(base: RunConfig, text: str) -> dict[str, Any]:
    """Where a contender differs from its framework without settings of its own, by the field's full name."""
    config = contender(base, text)
    flat, plain = (flatten(of.model_dump(mode="json")) for of in (config, contender(base, config.framework)))
    return {name: value for name, value in flat.items() if plain.get(name) != value}


def _identity(record: ContenderRecord) -> str:
    """What makes a contender what it is, whatever it is called."""
    return json.dumps([record.framework, record.settings], sort_keys=True)


def name_by_itself(base: RunConfig, text: str) -> str:
    """The name of a contender that is seen without the others: the given one, else the title with all its own settings in words."""
    asked = read_contender(text)
    if asked.is_named:
        return asked.label
    record = ContenderRecord("", "", asked.framework, _own_settings(base, text), asked.text)
    fields = sorted(record.settings, key=lambda name: name != POLICY)
    return _joined_name(asked.framework, _words(record, fields, _Allocations.of([record], base.allocation.policy)))


def _free_folder(label: str, record: ContenderRecord, words: Sequence[str], taken: Collection[str]) -> str:
    """A folder's name that no other contender has."""
    texts = [label] if record.is_named else [record.framework, *words]
    name = plain_name("-".join(texts))[:LONGEST_FOLDER].strip("-.") or plain_name(record.framework)
    names = [name, *(f"{name}-{number}" for number in range(2, 3 + len(taken)))]
    return next(free for free in names if free not in taken)


# --- names


def _choose_names(
    records: Mapping[str, ContenderRecord], usual_policy: str
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """The name of each contender, and the words that follow the framework's title in it. usual_policy: of contenders that set none."""
    allocations = _Allocations.of(list(records.values()), usual_policy)
    groups: dict[str, dict[str, ContenderRecord]] = {}
    for label, record in records.items():
        if not record.is_named:
            groups.setdefault(record.framework, {})[label] = record
    words: dict[str, list[str]] = {label: [] for label in records}
    for group in groups.values():
        words |= _words_of_group(group, allocations)
    given = {label.casefold() for label, record in records.items() if record.is_named}
    names: dict[str, str] = {}
    seen = Counter[str]()
    for label, record in records.items():
        name = label if record.is_named else _joined_name(record.framework, words[label])
        if not record.is_named and name.casefold() in given:
            raise InputError(f"{label} is called {name}, too; choose another name for the other contender")
        seen[name] += 1
        names[label] = f"{name} ({seen[name]})" if seen[name] > 1 else name
    return names, words


def _joined_name(framework: str, words: Sequence[str]) -> str:
    row = METHODS.get(framework)  # None where a plugin of an earlier contender is not loaded
    title = framework if row is None else row.title
    short = title if row is None else row.short_title or title
    return f"{short} ({'; '.join(words)})" if words else title  # no comma, which would end a name that is given


@dataclass(frozen=True)
class _Allocations:
    """Which policies allocate for the contenders."""

    usual: str  # the policy of contenders that set none
    reference: str  # HSFL, or the framework of the first contender
    reference_policy: str
    policies: frozenset[str]  # of all contenders that a policy allocates for

    @classmethod
    def of(cls, records: Sequence[ContenderRecord], usual: str) -> "_Allocations":
        proposed = sorted(
            (record for record in records if record.framework == PROPOSED), key=lambda record: len(record.settings)
        )
        first = [*proposed, *records][0]
        rows = [(record, METHODS.get(record.framework)) for record in records]
        policies = frozenset(_policy(record, usual) for record, row in rows if row is None or row.copy_per_client)
        return cls(usual, first.framework, _policy(first, usual), policies)


def _policy(record: ContenderRecord, usual: str) -> str:
    """The policy that allocates for a contender, where `own` is replaced by what its framework's authors chose."""
    name = str(record.settings.get(POLICY, usual))
    return own_policy(name, record.framework) if record.framework in METHODS else name


def _words_of_group(group: Mapping[str, ContenderRecord], allocations: _Allocations) -> dict[str, list[str]]:
    """The fewest words that tell contenders of one framework apart. An allocation of their own is always told, unless all
    contenders have the same."""
    fields = list(
        dict.fromkeys([POLICY, CUTS, ONE_CUT, *(name for record in group.values() for name in record.settings)])
    )
    fields = [name for name in fields if any(name in record.settings for record in group.values())]
    always = [POLICY] if POLICY in fields and len(allocations.policies) > 1 else []
    rest = [name for name in fields if name not in always]
    numbers = range(len(rest) + 1) if len(rest) <= MANY_SETTINGS else (0, 1, len(rest))
    choices = ([*always, *chosen] for number in numbers for chosen in combinations(rest, number))
    words: dict[str, list[str]] = {}
    for chosen in choices:
        words = {label: _words(record, chosen, allocations) for label, record in group.items()}
        if len(set(map(tuple, words.values()))) == len(words):
            break
    return words


def _words(record: ContenderRecord, fields: Sequence[str], allocations: _Allocations) -> list[str]:
    words = []
    for field in fields:
        if field == POLICY:
            words += _policy_words(record, allocations)
        elif field in record.settings:
            words.append(_setting_words(field, record.settings[field]))
    return words


def _policy_words(record: ContenderRecord, allocations: _Allocations) -> list[str]:
    """`as published`, `same allocation`, `even allocation`; nothing where a contender sets none and no other framework is set
    against it."""
    name = record.settings.get(POLICY)
    if (name or allocations.usual) == "own":
        return ["as published"]
    if record.framework != allocations.reference and _policy(record, allocations.usual) == allocations.reference_policy:
        return ["same allocation"]
    return [] if name is None else [f"{name} allocation"]


def _setting_words(field: str, value: Any) -> str:
    """A setting in a few words: `planned cuts`, `cut 3`, `lr 0.1`."""
    if field in (CUTS, ONE_CUT):
        if isinstance(value, str):
            return value if value == "max_cut" else f"{value} {'cuts' if field == CUTS else 'cut'}"
        if isinstance(value, list) and len(value) > MANY_CUTS:
            return "given cuts"
        return f"cuts {_value_text(value)}" if isinstance(value, list) else f"cut {_value_text(value)}"
    return f"{field.rpartition('.')[2].replace('_', ' ')} {_value_text(value)}"


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(_value_text, value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return (text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}...").replace(",", " ")
