"""A sample of ``make crash``, and proof that the campaign would see what it looks for (R21-R28)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import campaign
import pytest
from kinds import KINDS, Kind

from branchkit.process import Workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as two:
        yield two


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_place(tmp_path: Path, workers: Workers, kind: Kind) -> None:
    """R21, R26, R28: each class of tool at each place; every other recovery is killed as well."""
    found = campaign.run(tmp_path, workers, repeats=1, first=KINDS.index(kind), kinds=[kind])
    assert not found.problems, "\n".join(found.problems)
    assert found.kills >= found.cases == len(campaign.places(kind)) >= 14


def test_killed_at_any_moment(tmp_path: Path, workers: Workers) -> None:
    """N19: from outside, wherever it is just then."""
    found = campaign.run_at_moments(tmp_path, workers, repeats=6, kinds=["keyed", "workspace"])
    assert not found.problems, "\n".join(found.problems)
    assert found.kills


def test_the_campaign_sees_an_effect_that_happens_twice(tmp_path: Path, workers: Workers) -> None:
    """The check of the check: a tool that promises keys which its service does not keep."""
    found = campaign.run(tmp_path, workers, repeats=1, kinds=["lied"])
    twice = [problem for problem in found.problems if "happened 2 times" in problem]
    # Wherever the effect was there and its result was not.
    assert len({problem.partition(":")[0] for problem in twice}) >= 3
