"""The law of equal hashes, on the sample: equal behaviour gives equal vectors, slips do not."""

from __future__ import annotations

from pathlib import Path

import branchkit

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
JOURNAL = SAMPLE / "branch_cleanup.journal.jsonl"


def test_twenty_branches_without_slip_are_one_and_with_slip_are_not(store: Path) -> None:
    """``sampling=slip:0``: 20 branches, one distinct vector; ``slip:0.3``: more than one.

    Each branch has its own seed, directory, process, sandbox and moment; git commits, indexes and
    reflogs included, nothing of that may show.
    """
    with branchkit.open(JOURNAL) as run:
        found = run.fork(
            23,
            swap=["sampling=slip:0", "sampling=slip:0.3"],
            sizes={"sampling=slip:0": 20, "sampling=slip:0.3": 8},
            control=False,
        )
    assert [view.result.error for view in found.branches] == [None] * 28
    distinct = {one.arm: one.distinct for one in found.summaries}
    assert distinct["sampling=slip:0"] == 1
    assert distinct["sampling=slip:0.3"] > 1
    still = [view for view in found.branches if view.result.arm == "sampling=slip:0"]
    assert len({view.result.seed for view in still}) == 20
    assert {view.t_div for view in still} == {None}, "the record did not slip in these turns either"
    slipped = {view.cause for view in found.branches if view.t_div is not None}
    assert slipped == {"swap"}
    assert found.parent_unchanged
