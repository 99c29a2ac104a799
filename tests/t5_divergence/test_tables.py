"""Data frames of branches, arms and hashes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from branchkit.divergence.align import TurnHashes, Vector
from branchkit.divergence.tables import (
    BranchRow,
    agreement_frame,
    arms_frame,
    branches_frame,
    drift_turn,
    hashes_frame,
)
from branchkit.errors import UsageError


def vector(actions: str, first: int = 1, models: str = "") -> Vector:
    return tuple(
        TurnHashes(turn, f"c{turn}", action, "o", "w", models[at] if models else "m")
        for at, (turn, action) in enumerate(enumerate(actions, first))
    )


RECORD = vector("abcdef")
ROWS = [
    BranchRow("prompt=@p", f"p{at}", "prompt", vector("dxf", 4), at < 8, "sha256:1")
    for at in range(10)
] + [
    BranchRow("control", "c0", None, vector("def", 4), None),
    *(BranchRow("control", f"c{at}", None, vector("def", 4), at > 9) for at in range(1, 11)),
]


def test_one_row_a_branch() -> None:
    """R62, R61: types hold also where values are missing."""
    frame = branches_frame(ROWS, RECORD)
    assert list(frame.columns) == [
        "arm", "journal", "swap", "first_turn", "last_turn", "t_div", "cause", "because", "ok",
        "workspace", "drift_turn",
    ]  # fmt: skip
    assert len(frame) == 21
    parted, control = frame.iloc[0], frame.iloc[10]
    assert (parted["t_div"], parted["cause"], parted["ok"]) == (5, "model_call", True)
    assert pd.isna(control["t_div"])
    assert pd.isna(control["ok"])
    assert control["cause"] is None
    assert str(frame["t_div"].dtype) == "Int64"


def test_empty_branch_counts_from_the_turn_that_is_said() -> None:
    frame = branches_frame([BranchRow("a", "j", "model", (), start=4)], RECORD)
    assert frame.iloc[0]["t_div"] == 4
    assert pd.isna(frame.iloc[0]["first_turn"])


def test_one_row_an_arm_control_first() -> None:
    """R61: rates, the difference to the control, and p corrected over the arms."""
    frame = arms_frame(ROWS, RECORD).set_index("arm")
    assert list(frame.index) == ["control", "prompt=@p"]
    control, arm = frame.loc["control"], frame.loc["prompt=@p"]
    assert (control["k"], control["n"], control["none"], control["branches"]) == (1, 10, 1, 11)
    assert (arm["k"], arm["n"], arm["diverged"], arm["distinct"]) == (8, 10, 10, 1)
    assert np.isnan(frame["p"].to_numpy()).tolist() == [True, False]
    assert arm["delta"] == pytest.approx(0.7)
    assert arm["p_holm"] == arm["p"] < 0.01


def test_no_control_no_comparison() -> None:
    frame = arms_frame(ROWS[:10], RECORD)
    assert frame["p"].isna().all()
    assert frame["rate"].iloc[0] == pytest.approx(0.8)


def test_arms_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="different swaps"):
        arms_frame([ROWS[0], ROWS[0]._replace(swapped="model")], RECORD)
    with pytest.raises(UsageError, match="2 control arms"):
        arms_frame([ROWS[-1], ROWS[-1]._replace(arm="other")], RECORD)


def seeded(arm: str, swapped: str | None, oks: str) -> list[BranchRow]:
    return [
        BranchRow(arm, f"{arm}{at}", swapped, vector("def", 4), ok == "+", start=4, number=at)
        for at, ok in enumerate(oks)
    ]


def test_pairs_of_equal_seed_and_what_would_be_found() -> None:
    """R61: the paired test stands beside, and decides where that is asked for."""
    rows = [*seeded("c", None, "+-------"), *seeded("a", "model", "+++++++-")]
    rows += seeded("b", "prompt", "+-------")
    beside, instead = (
        arms_frame(rows, RECORD, in_pairs=asked).set_index("arm") for asked in (False, True)
    )
    assert [beside[name].to_list()[1] for name in ("pairs", "gained", "lost")] == [8, 6, 0]
    assert beside["p_paired"].to_list()[1:] == pytest.approx([0.03125, 1.0])
    assert beside["p_holm"].tolist()[1:] == pytest.approx([2 * beside["p"].to_list()[1], 1.0])
    assert instead["p_holm"].tolist()[1:] == pytest.approx([0.0625, 1.0])
    assert (beside["test"].tolist(), instead["test"].tolist()) == (
        [None, "exact", "exact"], [None, "paired", "paired"],
    )  # fmt: skip
    assert beside["found_rise"].to_list()[1:] == pytest.approx([0.9, 0.9], abs=0.1)
    assert beside["found_fall"].isna().all()
    assert beside["noise"].to_list()[1:] == [0.5, 0.5]
    assert beside["pairs"].isna().to_list() == beside["noise"].isna().to_list() == [1, 0, 0]


def test_rows_without_numbers_have_no_pairs() -> None:
    assert arms_frame(ROWS, RECORD, in_pairs=True)["test"].tolist() == [None, "exact"]


def test_agreement_by_arm_and_turn() -> None:
    """R61: a branch that a limit cut off is not one that left."""
    cut = BranchRow("control", "cut", None, vector("d", 4), limited=True, start=4)
    rows = [*ROWS[:2], ROWS[11], cut]
    frame = agreement_frame(rows, RECORD)
    assert list(frame.columns) == ["arm", "turn", "at_risk", "left", "censored", "agree"]
    arm, control = (frame[frame["arm"] == name] for name in ("prompt=@p", "control"))
    assert arm["turn"].tolist() == [3, 4, 5, 6]
    assert arm["agree"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert control["agree"].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert control["censored"].tolist() == [0, 1, 0, 0]
    assert agreement_frame([], RECORD).empty


def test_branches_of_an_import_are_held_against_their_control() -> None:
    """R62: its record was made by another harness, so every table compares with the control."""
    control = vector("dyz", 4)
    rows = [
        BranchRow("control", "c", None, control, start=4, baseline=control),
        BranchRow("model=x", "m", "model", vector("dyw", 4), start=4, baseline=control),
    ]
    assert branches_frame(rows, RECORD)["t_div"].fillna(0).to_list() == [0, 6]
    assert arms_frame(rows, RECORD)["diverged"].to_list() == [0, 1]
    agree = agreement_frame(rows, RECORD).groupby("arm")["agree"].last()
    assert agree.to_list() == [1.0, 0.0]


def test_hashes_by_turn() -> None:
    """R81: the record's row first, columns from the first live turn."""
    frame = hashes_frame([ROWS[0], BranchRow("a", "j", None, vector("ef", 5))], RECORD)
    assert [str(turn) for turn in frame.columns] == ["4", "5", "6"]
    assert frame.index.tolist() == [("record", ""), ("prompt=@p", "p0"), ("a", "j")]
    assert frame.to_numpy().tolist() == [["d", "e", "f"], ["d", "x", "f"], [None, "e", "f"]]
    assert hashes_frame(ROWS, RECORD, "context").iloc[1].tolist() == ["c4", "c5", "c6"]


def test_empty_frames_keep_their_columns() -> None:
    assert len(branches_frame([], RECORD).columns) == 11
    assert len(arms_frame([], RECORD).columns) == 25
    assert hashes_frame([], ()).shape == (1, 0)


def test_the_turn_where_the_served_model_changed_is_in_the_tables() -> None:
    """R47: an evaluator can tell the turns before and after a drift apart."""
    drifted = vector("def", 4, models="mmn")
    assert drift_turn(drifted) == 6
    row = BranchRow("control", "c", None, drifted, True)
    assert branches_frame([row], RECORD)["drift_turn"].tolist() == [6]
    assert arms_frame([row], RECORD)["drifted"].tolist() == [1]


def test_the_page_names_every_figure_of_an_arm() -> None:
    """docs/statistics.md: what stands in the table is explained there."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "statistics.md").read_text()
    said = {word for line in page.splitlines() for word in line.replace("`", " ").split()}
    plain = {"arm", "swap", "branches", "diverged", "drifted", "test"}
    assert set(arms_frame([], RECORD).columns) - plain <= said
