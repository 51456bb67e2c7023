"""Short names of contenders: unique, no longer than needed, and the same folders whoever joins later."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsfl.errors import InputError
from hsfl.framework_table import METHODS
from hsfl.runs.run_folder.records import ContenderRecord
from hsfl.runs.studies.contender_names import name_by_itself, settle_contenders
from tests.naming import raises
from tests.small_runs import tiny

OUT = Path("out")
PLAIN_FOLDER = re.compile(r"[a-z0-9_][a-z0-9._-]*")


def settled(*texts: str, stored: dict[str, ContenderRecord] | None = None) -> dict[str, ContenderRecord]:
    return settle_contenders(tiny("fleet.cuts=max_cut", "allocation.policy=proposed"), texts, stored or {}, OUT)


def names_of(*texts: str) -> list[str]:
    return [record.name for record in settled(*texts).values()]


def folders_of(*texts: str) -> list[str]:
    return [record.folder for record in settled(*texts).values()]


PUBLISHED = "splitfed_v1,allocation.policy=own"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["hsfl", "splitfed_v1", "fl", "sl"], ["HSFL", "SplitFed V1", "FL", "SL"]),
        (["hsfl", "splitfed_v1", PUBLISHED], ["HSFL", "V1 (same allocation)", "V1 (as published)"]),
        (
            ["hsfl", PUBLISHED],
            ["HSFL", "V1 (as published)"],
        ),  # though it is the only V1: nobody should think it the same
        ([PUBLISHED, "splitfed_v1"], ["V1 (as published)", "SplitFed V1"]),  # the same as whom?
        (["hsfl", "hsfl,allocation.policy=even"], ["HSFL", "HSFL (even allocation)"]),
        (["hsfl", "fl,allocation.policy=even"], ["HSFL", "FL (even allocation)"]),
        (["hsfl,fleet.cuts=fastest", "fl"], ["HSFL", "FL"]),
        (["hsfl", "hsfl,fleet.cuts=fastest"], ["HSFL", "HSFL (fastest cuts)"]),
        (["hsfl,fleet.cuts=1", "hsfl,fleet.cuts=[1,2,5]"], ["HSFL (cut 1)", "HSFL (cuts 1 2 5)"]),
        (["sl", "sl,fleet.one_cut=fastest", "sl,fleet.one_cut=2"], ["SL", "SL (fastest cut)", "SL (cut 2)"]),
        (["fl", "fl,options.fl.needs_storage=true"], ["FL", "FL (needs storage yes)"]),
        (["hsfl,train.lr=0.1", "hsfl,train.lr=0.02"], ["HSFL (lr 0.1)", "HSFL (lr 0.02)"]),
        (
            ["hsfl", "hsfl,train.lr=0.1", "hsfl,train.lr=0.1,train.optimizer=sgd"],
            ["HSFL", "HSFL (lr 0.1)", "HSFL (lr 0.1; optimizer sgd)"],
        ),
        (
            ["hsfl,train.lr=0.1,train.optimizer=sgd", "hsfl,train.lr=0.2,train.optimizer=sgd"],
            ["HSFL (lr 0.1)", "HSFL (lr 0.2)"],
        ),
        (["hsfl", "Ours=hsfl,train.lr=0.1"], ["HSFL", "Ours"]),
        (["A=hsfl", "B=splitfed_v1", PUBLISHED], ["A", "B", "V1 (as published)"]),
        (["hsfl,allocation.policy=proposed", "fl"], ["HSFL", "FL"]),  # what all have is no difference
    ],
)
def test_the_fewest_words_that_tell_contenders_apart(texts: list[str], expected: list[str]) -> None:
    assert names_of(*texts) == expected


def test_a_name_that_was_made_can_be_given() -> None:
    made = settled("hsfl", "hsfl,train.local_epochs=2,train.optimizer=sgd", PUBLISHED)
    texts = [f"{record.name}={record.text}" for record in made.values()]
    assert [record.name for record in settled(*texts).values()] == [record.name for record in made.values()]


def test_folders_follow_the_names() -> None:
    assert folders_of("hsfl", "splitfed_v1", PUBLISHED) == [
        "hsfl",
        "splitfed_v1-same-allocation",
        "splitfed_v1-as-published",
    ]
    assert folders_of("Our Méthode/2=hsfl", "方法=fl", "hsfl,train.lr=0.1") == ["our-methode-2", "fl", "hsfl"]
    assert folders_of("A b=hsfl", "A-b=fl", "a_b=sl") == ["a-b", "a-b-2", "a_b"]
    assert len(folders_of("x" * 60 + "=hsfl")[0]) == 60


OWN = [
    "train.lr=0.1",
    "train.lr=0.2",
    "train.optimizer=sgd",
    "train.local_epochs=2",
    "allocation.policy=even",
    "fleet.cuts=1",
]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(sorted(METHODS)), st.sets(st.sampled_from(OWN))), min_size=1, max_size=6))
def test_names_and_folders_are_unique(asked: list[tuple[str, set[str]]]) -> None:
    texts = list(dict.fromkeys(",".join([framework, *sorted(changes)]) for framework, changes in asked))
    texts = [text for text in texts if text.count("train.lr") < 2]
    if not texts:
        return
    records = settled(*texts).values()
    assert len({record.name for record in records}) == len(texts)
    assert len({record.folder for record in records}) == len(texts)
    assert all(PLAIN_FOLDER.fullmatch(record.folder) for record in records)


def test_a_folder_stays_whoever_joins_and_the_name_says_what_differs_now() -> None:
    alone = settled("hsfl", "splitfed_v1")
    both = settled(PUBLISHED, stored=alone)
    assert {record.name: record.folder for record in both.values()} == {
        "V1 (as published)": "splitfed_v1-as-published",
        "HSFL": "hsfl",
        "V1 (same allocation)": "splitfed_v1",
    }
    assert settled("hsfl", "splitfed_v1", PUBLISHED, stored=both)["splitfed_v1"].folder == "splitfed_v1"


def test_a_name_given_later_takes_over_the_runs() -> None:
    before = settled("hsfl", "hsfl,train.lr=0.1")
    after = settled("hsfl", "Ours=hsfl, train.lr=1e-1", stored=before)
    assert list(after) == ["hsfl", "Ours"]
    assert after["Ours"].folder == before["hsfl,train.lr=0.1"].folder == "hsfl-lr-0.1"
    assert after["Ours"].settings == {"train.lr": 0.1}


def test_a_name_means_one_thing() -> None:
    stored = settled("Ours=hsfl,train.lr=0.1")
    with raises(InputError, "Ours is hsfl,train.lr=0.1", "hsfl,train.lr=0.2", "another name"):
        settled("Ours=hsfl,train.lr=0.2", stored=stored)
    with raises(InputError, "stands twice", "hsfl,fleet.cuts=max_cut", "settings of hsfl"):
        settled("hsfl", "hsfl,fleet.cuts=max_cut")
    with raises(InputError, "stands twice", "hsfl,fleet.cuts=planned", "settings of hsfl"):  # a default, written out
        settle_contenders(tiny("fleet.cuts=auto"), ["hsfl", "hsfl,fleet.cuts=planned"], {}, OUT)
    with raises(InputError, "stands twice", "Ours"):
        settled("hsfl", "Ours=hsfl")
    with raises(InputError, "called HSFL", "another name"):
        settled("hsfl,train.lr=0.1", "hsfl=hsfl")


def test_cuts_that_a_name_cannot_hold_get_a_number() -> None:
    base = tiny("fleet.num_clients=8", "fleet.cuts=max_cut")
    texts = [f"hsfl,fleet.cuts=[1,1,1,1,1,1,1,{last}]" for last in (1, 2, 3)]
    names = [record.name for record in settle_contenders(base, texts, {}, OUT).values()]
    assert names == ["HSFL (given cuts)", "HSFL (given cuts) (2)", "HSFL (given cuts) (3)"]


def test_a_contender_that_is_seen_alone_says_all_its_settings() -> None:
    assert name_by_itself(tiny(), "hsfl") == "HSFL"
    assert name_by_itself(tiny(), "Mine=hsfl,train.lr=0.5") == "Mine"
    text = "splitfed_v1,train.lr=0.5,allocation.policy=gtra"
    assert name_by_itself(tiny(), text) == "V1 (gtra allocation; lr 0.5)"
