"""What the table says of each policy."""

import pytest

from hsfl.allocation.policy_table import POLICIES, RULE_CLAUSES, PolicyRow, policy_row
from tests.naming import names


@pytest.mark.parametrize("name", POLICIES)
def test_a_sentence_names_every_rule_and_what_is_left_to_the_solver(name: str) -> None:
    row = policy_row(name)
    sentence = row.sentence.lower()
    rules = {field: getattr(row, field) for field in ("cuts", "cycles", "subchannels", "power")}
    for field, rule in rules.items():
        if rule not in ("optimal", "optimised"):
            assert RULE_CLAUSES[field, rule] in sentence
        elif field != "cuts":
            names(sentence, field)
            names(sentence, "optimised")
    assert sentence.endswith(".")


def test_policies_have_different_sentences() -> None:
    assert len({row.sentence for row in POLICIES.values()}) == len(POLICIES)
    assert policy_row("ecfa+etra").sentence == (
        "The main server's cycles are divided evenly; the servers' power is divided evenly; subchannels are optimised; cuts are planned or given."
    )


def test_a_plugin_allocates_by_a_function_of_its_own() -> None:
    row = PolicyRow("mine", cuts=lambda samples: [1], allocator=lambda scenario: None)
    names(row.sentence, "chooses the cuts", "plugin's function allocates")
