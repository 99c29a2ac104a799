"""The paired test against its definition, and why it decides only where that was said before."""

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.divergence.exact import p_value
from branchkit.divergence.paired import Paired, paired, sign_p


def test_pairs_by_hand() -> None:
    """R61: pairs that end alike say nothing; a pair without two verdicts is left out."""
    arm = {0: True, 1: True, 2: False, 3: True, 4: None, 5: True}
    control = {0: False, 1: True, 2: True, 3: False, 4: True, 6: False}
    assert paired(arm, control) == Paired(4, gained=2, lost=1, p=1.0)
    assert paired({0: True}, {1: False}) == Paired(0, 0, 0, 1.0)


@given(st.integers(0, 40), st.integers(0, 40))
def test_sign_test_by_counting_coins(gained: int, lost: int) -> None:
    """R61: both tails of a fair coin, in whole numbers."""
    n, least = gained + lost, min(gained, lost)
    tail = sum(comb(n, k) for k in range(least + 1))
    assert sign_p(gained, lost) == pytest.approx(min(1.0, 2 * tail / 2**n))
    assert sign_p(gained, lost) == sign_p(lost, gained)


def test_it_finds_a_common_cause_that_counting_alone_misses() -> None:
    """R61: most seeds decide alone; the swap mends 6 of the others and harms none."""
    assert sign_p(6, 0) == pytest.approx(0.03125)
    assert p_value(16, 40, 10, 40) > 0.1


def test_it_misses_what_counting_alone_finds() -> None:
    """Why it does not decide by itself: 6 of 6 against 0 of 6."""
    assert sign_p(6, 0) > 0.03
    assert p_value(6, 6, 0, 6) < 0.001
