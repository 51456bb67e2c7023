"""No client counts more than it claims or the operator allows; where nobody sees its samples, the others bound it."""

from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from hsfl.deploy.main.earned_weights import Claim, earned_weights, weight_note
from tests.naming import names

NUM_UNITS = 5
CLAIMS = st.lists(
    st.builds(
        Claim,
        st.just("ada"),
        st.integers(1, 10**7),
        st.integers(0, NUM_UNITS),
        st.one_of(st.none(), st.integers(1, 10**6)),
    ),
    min_size=1,
    max_size=8,
)


@given(CLAIMS)
def test_the_limits_hold_and_a_reason_is_given_exactly_where_one_bites(claims: list[Claim]) -> None:
    by_seat = dict(enumerate(claims))
    for seat, earned in earned_weights(by_seat, NUM_UNITS).items():
        claim = by_seat[seat]
        assert 1 <= earned.weight <= claim.num_samples
        assert earned.weight <= (claim.most or claim.num_samples)
        assert (earned.why is None) == (earned.weight == claim.num_samples)
        others = [other.allowed for place, other in by_seat.items() if place != seat]
        if claim.cut == NUM_UNITS and claim.most is None and others:
            assert earned.weight <= max(1, 2 * median(others))
        if claim.cut < NUM_UNITS and claim.most is None:
            assert earned.weight == claim.num_samples


def test_unequal_clients_keep_their_weights_up_to_twice_the_median() -> None:
    claims = {seat: Claim(f"c{seat}", count, NUM_UNITS) for seat, count in enumerate([10, 20, 40, 90])}
    assert [earned.weight for earned in earned_weights(claims, NUM_UNITS).values()] == [10, 20, 40, 40]


def test_the_note_names_client_claim_weight_and_way_out() -> None:
    claims = {0: Claim("ada", 24, 5), 1: Claim("bo", 24, 5), 2: Claim("cy", 10**6, 5)}
    earned = earned_weights(claims, NUM_UNITS)[2]
    names(weight_note("cy", 10**6, earned), "cy", "1,000,000", "48", "max_samples")
