"""Which cuts and which allocation a run had, in words."""

import pytest

from hsfl.runs.cuts_and_allocation import allocation_words, cuts_words
from tests.small_runs import tiny


@pytest.mark.parametrize(
    ("framework", "settings", "cuts", "allocation"),
    [
        ("hsfl", ["fleet.cuts=planned", "allocation.policy=proposed"], "cuts planned (1 to 4)", "allocation proposed"),
        ("hsfl", ["fleet.cuts=max_cut"], "cuts max_cut (1 to 4)", "allocation even"),
        ("hsfl", ["fleet.cuts=[1, 2, 4]"], "cuts given (1 to 4)", "allocation even"),
        ("splitfed_v1", ["fleet.cuts=max_cut"], "one cut 4 (smallest max_cut)", "allocation even"),
        ("splitfed_v1", ["fleet.one_cut=fastest", "allocation.policy=proposed"], "one cut 4 (fastest)", "allocation proposed"),
        ("splitfed_v1", ["fleet.one_cut=4", "allocation.policy=own"], "one cut 4 (given)", "allocation as published (splitfed)"),
        ("sl", ["fleet.one_cut=fastest"], "one cut 4 (fastest)", "allocation even, whole band in turns"),
        ("psl", ["fleet.one_cut=fastest"], "one cut 4 (fastest)", "allocation even"),
        ("cpsl", ["fleet.cuts=max_cut", "allocation.policy=own"], "one cut 4 (fastest)", "allocation as published (cpsl)"),
        ("cpsl", ["fleet.one_cut=4"], "one cut 4 (given)", "allocation even, whole band in turns of a cluster"),
        ("fl", ["allocation.policy=proposed"], "whole model on each client", "allocation proposed"),
        ("cl", [], "data pooled on the server", "allocation none, the server trains alone"),
    ],
)  # fmt: skip
def test_words(framework: str, settings: list[str], cuts: str, allocation: str) -> None:
    config = tiny(f"framework={framework}", *settings)
    numbers = [1, 2, 4] if "to" in cuts else [4, 4, 4]
    assert (cuts_words(config, numbers), allocation_words(config)) == (cuts, allocation)


def test_words_before_the_cuts_are_known_and_of_a_framework_that_is_not_loaded() -> None:
    assert cuts_words(tiny("fleet.cuts=planned"), []) == "cuts planned"
    assert cuts_words(tiny("framework=sl", "fleet.one_cut=fastest"), []) == "one cut (fastest)"
    unknown = tiny("fleet.cuts=planned").model_copy(update={"framework": "theirs"})
    assert cuts_words(unknown, [2, 3]) == "cuts planned (2 to 3)"
    assert allocation_words(unknown, "even") == "allocation even"
    assert allocation_words(tiny("framework=sl", "network.kind=measured", "network.main_up_bps=1e6", "network.main_down_bps=1e6")) == (
        "allocation even, in turns"
    )  # fmt: skip
