"""Texts that name contenders: a framework, settings of its own, and a name before them."""

import pytest

from hsfl.errors import InputError
from hsfl.runs.studies.contenders import contender, labels_of, read_contender
from tests.naming import raises
from tests.small_runs import tiny


def test_a_name_stands_before_the_framework() -> None:
    named = read_contender("Ours=hsfl,options.hsfl.x=1,fleet.cuts=[1, 2,3]")
    assert (named.label, named.framework, named.is_named) == ("Ours", "hsfl", True)
    assert named.changes == ("options.hsfl.x=1", "fleet.cuts=[1, 2,3]")
    assert named.text == "hsfl,options.hsfl.x=1,fleet.cuts=[1, 2,3]"
    plain = read_contender("fl,train.lr=0.1")
    assert (plain.label, plain.framework, plain.is_named) == ("fl,train.lr=0.1", "fl", False)
    assert read_contender("  Our  méthode 2 = hsfl ").label == "Our méthode 2"
    assert read_contender("方法=fl").label == "方法"
    assert contender(tiny(), "Ours=hsfl,train.lr=0.5") == contender(tiny(), "hsfl,train.lr=0.5")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("Ours=hsfi", ("Ours=hsfi", "did you mean hsfl")),
        ("Ours=", ("Ours=", "framework ''")),
        ("=hsfl", ("no name", "NAME=hsfl")),
        ("v1.5=hsfl", ("'v1.5'", "without a dot")),
        ("fleet.cuts=fastest", ("'fleet.cuts'", "FRAMEWORK,fleet.cuts=fastest")),
        ("hsfl=train.lr=0.1", ("no comma", "hsfl,section.field=value")),
        ("framework=fl", ("framework is a setting", "fl alone")),
        ("train=fl", ("train is a setting", "NAME=fl")),
        ("FL=hsfl", ("FL", "another framework")),
        ("v1=hsfl", ("v1", "another framework")),
        ("SplitFed V1=hsfl", ("SplitFed V1", "another framework")),
        ("a\x07b=fl", ("can be printed",)),
        ("x" * 61 + "=fl", ("61 letters", "up to 60")),
        ("Ours=hsfl,", ("empty setting",)),
        ("Ours=hsfl,seed=3", ("changes seed", "contenders share")),
        ("Ours=Theirs=hsfl", ("name with =", "give Ours Theirs=hsfl")),
        ("V1, same allocation=splitfed_v1", ("name with a comma", "V1 (same allocation)=splitfed_v1")),
        ("A, b, c=fl,train.lr=0.1", ("name with a comma", "A (b c)=fl")),
    ],
)
def test_a_wrong_text_is_told_with_the_way_out(text: str, parts: tuple[str, ...]) -> None:
    with raises(InputError, *parts):
        contender(tiny(), text)


def test_a_label_stands_once() -> None:
    assert labels_of(["hsfl", "Ours=hsfl,train.lr=0.1"]) == ["hsfl", "Ours"]
    with raises(InputError, "hsfl stands twice"):
        labels_of(["hsfl", "hsfl"])
    for pair in (["Ours=hsfl", "ours=fl"], ["hsfl", "hsfl=hsfl,train.lr=0.1"]):
        with raises(InputError, "both called", "a name of its own", pair[1].partition("=")[2]):
            labels_of(pair)
