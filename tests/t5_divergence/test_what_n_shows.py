"""What n branches can show: enumerated again, and said in words."""

import random

import pytest

from branchkit.divergence.exact import probability_found
from branchkit.divergence.power import detectable, detectable_frame, noise_floor, plan_sentence


@pytest.mark.parametrize(("n", "control_n", "rate"), [(30, 30, 0.5), (20, 30, 0.2), (6, 6, 0.4)])
def test_noise_floor_by_drawing(n: int, control_n: int, rate: float) -> None:
    """R61: of 20,000 pairs of arms that do the same, 19 in 20 lie no further apart; seeded."""
    dice = random.Random(0)

    def share(size: int) -> float:
        return sum(dice.random() < rate for _ in range(size)) / size

    floor = noise_floor(n, control_n, rate, rate)
    gaps = [abs(share(n) - share(control_n)) for _ in range(20_000)]
    within = sum(gap <= floor + 1e-9 for gap in gaps) / len(gaps)
    closer = sum(gap < floor - 1e-9 for gap in gaps) / len(gaps)
    assert within >= 0.945
    assert closer < 0.955


def test_noise_floor_takes_the_rate_that_varies_most() -> None:
    """R61: 0 of 6 does not mean that there is no noise."""
    assert noise_floor(30, 30, 0.2, 0.7) == noise_floor(30, 30, 0.5, 0.5)
    assert noise_floor(30, 30, 0.0, 0.2) == noise_floor(30, 30, 0.2, 0.2)
    assert noise_floor(6, 6, 0.0, 0.46) > 0.4
    assert noise_floor(0, 6, 0.0, 1.0) == 1.0


def test_what_would_be_found_as_a_frame() -> None:
    """R61: each edge has the power that is promised; several arms need more."""
    frame = detectable_frame(30, arms=1)
    assert list(frame["control"]) == pytest.approx([step / 10 for step in range(11)])
    assert probability_found(30, 30, frame["rise"].to_list()[3] + 1e-5, 0.3, 0.05) >= 0.8
    assert frame.loc[0].isna()["fall"]
    several = detectable_frame(30, arms=5)
    assert (several["rise"].dropna() >= frame["rise"][: len(several["rise"].dropna())]).all()


def test_plan_in_words() -> None:
    """R61: the detectable effect for the chosen n is printed before anything is spent."""
    assert plan_sentence(30) == (
        "30 branches an arm find 4 times in 5 a true difference of 18 points against a control arm "
        "at 0 % or of 34 points against a control arm at 50 %"
    )
    assert plan_sentence(1) == "1 branch an arm: too few to find any difference 4 times in 5"
    assert plan_sentence(20, arms=3).endswith("(3 arms share the control)")
    assert round((detectable(30, 0.5) or 0) * 100) == 34
