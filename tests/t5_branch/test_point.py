"""Where a branch begins: only the swapped thing is different (R59). No branch runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import Tiny

from branchkit.branch.point import ForkPoint, fork_point
from branchkit.branch.swap import parse_swap
from branchkit.errors import BlobMissing, UsageError
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import rewind

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
JOURNAL = SAMPLE / "branch_cleanup.journal.jsonl"


@pytest.fixture(scope="module")
def sample() -> Recorded:
    return Recorded.open(JOURNAL)


def at(recorded: Recorded, turn: int, swap: str | None = None, **options: Any) -> ForkPoint:
    parsed = parse_swap(swap, recorded.record.components) if swap else None
    return fork_point(recorded, turn, parsed, **options)


def contents(point: ForkPoint) -> list[str]:
    return [str(message["content"]) for message in point.context]


@pytest.mark.parametrize("turn", [0, 1, 5, 22, 23, 25, 26])
def test_the_control_arm_starts_from_the_state_of_rewind(sample: Recorded, turn: int) -> None:
    """fork(t) starts from the state of rewind(t + 1)."""
    point, seen = at(sample, turn), rewind(sample, turn + 1)
    assert point.context == seen.context
    assert point.record == seen.record
    assert point.event.turn == turn
    assert point.components == sample.started.components
    snapshot = seen.record.snapshot_at(turn)
    assert snapshot is not None
    assert point.snapshot == snapshot.id


@pytest.mark.parametrize(
    "swap",
    ["sampling=slip:0", "policy=deny:delete_branch", "parser=fenced:bash", "truncation=head:12l"],
)
def test_what_does_not_shape_contexts_leaves_the_context(sample: Recorded, swap: str) -> None:
    control, point = at(sample, 22), at(sample, 22, swap)
    assert point.context == control.context
    name = swap.partition("=")[0]
    others = {key: part for key, part in control.components.items() if key != name}
    assert {key: part for key, part in point.components.items() if key != name} == others
    assert point.components[name].spec == swap.partition("=")[2]


def test_a_prompt_swap_changes_the_first_message_alone(sample: Recorded, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Mind the task: $task")
    control, point = at(sample, 22), at(sample, 22, f"prompt=@{tmp_path / 'p.txt'}")
    assert point.context[1:] == control.context[1:]
    assert point.context[0] == {
        "role": "system",
        "content": f"Mind the task: {sample.record.task}",
    }


def test_a_truncation_swap_delivers_from_the_full_text(sample: Recorded) -> None:
    """R9: what the recorded rule hid is in the pack, and is shown now."""
    control, point = at(sample, 22), at(sample, 22, "truncation=none")
    changed = [n for n, (a, b) in enumerate(zip(control.context, point.context, strict=True))
               if a != b]  # fmt: skip
    assert changed == [len(control.context) - 1]
    assert point.context[-1]["content"] == sample.contexts.full_text("t0022.1")
    assert "protected by" in contents(point)[-1]
    assert "protected by" not in contents(control)[-1]


def test_a_stricter_rule_reaches_all_turns_or_those_from_k_on(sample: Recorded) -> None:
    """``--from K``: results of earlier turns stay as they were delivered."""
    control = at(sample, 22)
    everywhere = at(sample, 22, "truncation=head:1l")
    late = at(sample, 22, "truncation=head:1l", redeliver_from=16)
    nowhere = at(sample, 22, "truncation=head:1l", redeliver_from=23)
    assert nowhere.context == control.context
    for message, before, cut in zip(late.context, control.context, everywhere.context, strict=True):
        turn = int(message.get("tool_call_id", "t0000.1")[1:5])
        assert message == (cut if turn >= 16 else before)
    long_results = [m for m in control.context if m["role"] == "tool" and "\n" in m["content"]]
    assert len(long_results) > 5
    assert sum(a != b for a, b in zip(control.context, everywhere.context, strict=True)) == (
        len([m for m in long_results if len(m["content"].splitlines()) > 1])
    )


def test_a_missing_full_text_names_its_turn_and_the_way_around(bare_sample: Path) -> None:
    bare = Recorded.open(bare_sample)
    with pytest.raises(BlobMissing, match="turn 22 cannot be delivered anew") as caught:
        at(bare, 22, "truncation=none")
    assert "--from 23" in caught.value.hint
    assert at(bare, 22, "truncation=none", redeliver_from=23).context == at(bare, 22).context
    assert at(bare, 22, "sampling=slip:0").context == at(bare, 22).context
    assert at(bare, 21, "truncation=none").turn == 21, "nothing of turns 1..21 was cut"


def test_another_observation_replaces_one_result_of_turn_t(
    sample: Recorded, tmp_path: Path
) -> None:
    (tmp_path / "o.txt").write_text("release/2.1 protected\n" * 3)
    point = at(sample, 22, f"observation=t0022.1:@{tmp_path / 'o.txt'}")
    assert point.context[:-1] == at(sample, 22).context[:-1]
    assert point.context[-1] == {
        "role": "tool", "tool_call_id": "t0022.1", "content": "release/2.1 protected\n" * 3,
    }  # fmt: skip


def test_another_observation_goes_through_the_runs_own_truncation(
    sample: Recorded, tmp_path: Path
) -> None:
    (tmp_path / "o.txt").write_text("".join(f"line {number}\n" for number in range(99)))
    shown = contents(at(sample, 22, f"observation=t0022.1:@{tmp_path / 'o.txt'}"))[-1]
    assert shown.startswith("line 0\n")
    assert "line 90" not in shown


@pytest.mark.parametrize("call", ["t0021.1", "t0022.2", "t9", "nonsense"])
def test_an_observation_of_a_call_that_turn_t_has_not(
    sample: Recorded, tmp_path: Path, call: str
) -> None:
    (tmp_path / "o.txt").write_text("x")
    with pytest.raises(UsageError, match=f"turn 22 has no call {call}") as caught:
        at(sample, 22, f"observation={call}:@{tmp_path / 'o.txt'}")
    assert caught.value.hint == "calls of turn 22: t0022.1"


def test_another_decision_is_reply_t_plus_1(sample: Recorded, tmp_path: Path) -> None:
    """A person writes arguments as an object; the reply has them as text, as providers do."""
    (tmp_path / "d.json").write_text(
        '{"role": "assistant", "tool_calls": [{"type": "function", "function":'
        ' {"name": "show_branch", "arguments": {"name": "release/2.1"}}}]}'
    )
    point = at(sample, 22, f"decision=@{tmp_path / 'd.json'}")
    assert point.context == at(sample, 22).context
    assert point.decision is not None
    function = point.decision["tool_calls"][0]["function"]
    assert function == {"name": "show_branch", "arguments": '{"name":"release/2.1"}'}


def test_what_a_branch_refers_to_is_in_its_parent(sample: Recorded) -> None:
    """No prefix is copied: messages of the base are names of parent events."""
    for turn in (0, 22, 26):
        point = at(sample, turn)
        assert point.base.in_parent
        items = [*point.base.context, *point.base.later]
        assert [item.message for item in items] == point.context or turn == 0
        assert all(item.in_parent for item in items if item.seq is not None)


def test_the_tiny_runs_hidden_line(tiny: Tiny) -> None:
    recorded = tiny.open()
    assert recorded.turns == 4
    assert "SECRET" not in "".join(contents(at(recorded, 1)))
    assert "SECRET keep" in contents(at(recorded, 1, "truncation=none"))[-1]
