"""What one cell of the map stands for: two contexts side by side, computed when it is asked for.

Widget callbacks may run on any thread while a cell is busy. So this opens the journals anew, reads
them, and closes them; it shares nothing with the comparison that the user's code holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from branchkit.branch.text import message_lines
from branchkit.errors import BranchkitError
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import Rewound, rewind

if TYPE_CHECKING:
    from branchkit.journal.events import Message

AROUND = 3  # equal lines shown on each side of a difference
MAX_LINES = 1500  # of one side: what is sent on a click stays small
MAX_LINE_CHARS = 2000
MESSAGES_AT_ONCE = 40


class Line(TypedDict):
    """One line of the two columns; ``kind`` is same, changed, left, right, gap or head."""

    left: str
    right: str
    kind: str


class Detail(TypedDict):
    """What the widget draws below the map."""

    title: str
    lines: list[Line]


class Place(NamedTuple):
    """Which cell: the branch's journal, and the turn."""

    parent: str
    journal: str
    name: str
    turn: int


def detail(place: Place) -> Detail:
    """The contexts and actions of ``turn`` in the record (left) and in the branch (right)."""
    title = detail_title(place.turn, place.name)
    try:
        with opened(place.parent) as parent, opened(place.journal) as branch:
            lines = compared(moment(parent, place.turn), moment(branch, place.turn))
    except BranchkitError as error:
        return {"title": f"{title}: {error.message}", "lines": []}
    return {"title": title, "lines": lines}


def detail_title(turn: int, name: str) -> str:
    """What stands above two columns; ``offline.js`` says the same."""
    return f"turn {turn}: the record, and {name}"


@contextmanager
def opened(journal: str) -> Iterator[Recorded]:
    """A run that is closed afterwards, and its parent with it."""
    recorded = Recorded.open(Path(journal))
    try:
        yield recorded
    finally:
        recorded.close()
        if recorded.parent is not None:
            recorded.parent.close()


def moment(recorded: Recorded, turn: int) -> Rewound | None:
    """``rewind(turn)``; None where the run had ended by then."""
    return rewind(recorded, turn) if turn <= recorded.turns else None


def compared(left: Rewound | None, right: Rewound | None) -> list[Line]:
    """Two moments side by side: what the model saw, then what it did."""
    lines: list[Line] = [_head("context", left, right)]
    lines += _side_by_side(_context(left), _context(right))
    lines.append({"left": "did then", "right": "did then", "kind": "head"})
    lines += _side_by_side(_did(left), _did(right), around=MAX_LINES)
    return lines


def _head(word: str, left: Rewound | None, right: Rewound | None) -> Line:
    same = left is not None and right is not None and left.context_hash == right.context_hash
    said = f"{word}, equal on both sides" if same else word
    return {"left": said, "right": said, "kind": "head"}


def _context(moment: Rewound | None) -> list[str]:
    if moment is None:
        return ["(no such turn: it had ended)"]
    lines: list[str] = []
    for stop in range(len(moment.context), 0, -MESSAGES_AT_ONCE):
        part = moment.context[max(0, stop - MESSAGES_AT_ONCE) : stop]
        lines[:0] = [line for message in part for line in _lines(message)]
        if len(lines) > MAX_LINES:  # only the last ones are shown, and reading all takes long
            break
    return lines


def _did(moment: Rewound | None) -> list[str]:
    if moment is None:
        return ["(nothing)"]
    reply = moment.recorded["reply"]
    lines = list(_lines(reply["message"])) if reply and "message" in reply else ["(no reply)"]
    for result in moment.recorded["results"]:
        text = str(result["text"] or f"{result['bytes']} bytes").strip()
        first, *rest = text.splitlines() or [""]
        lines += [f"{result['status']:>9} │ {first}", *(f"{'':>9} │ {line}" for line in rest)]
    return lines


def _lines(message: Message) -> Iterator[str]:
    for line in message_lines(message):
        yield line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"


def _side_by_side(
    left: Sequence[str], right: Sequence[str], *, around: int = AROUND
) -> Iterator[Line]:
    """The lines in two columns; long equal stretches are one line that says how long."""
    left, cut_left = _capped(left)
    right, cut_right = _capped(right)
    blocks = SequenceMatcher(None, left, right, autojunk=False).get_opcodes()
    for tag, a, b, c, d in blocks:
        if tag == "equal":
            yield from _equal(left[a:b], around, first=a == 0)
            continue
        for index in range(max(b - a, d - c)):
            before = left[a + index] if a + index < b else None
            after = right[c + index] if c + index < d else None
            kind = "changed" if before is not None and after is not None else "left"
            yield {
                "left": before or "",
                "right": after or "",
                "kind": "right" if before is None else kind,
            }
    if cut_left or cut_right:
        said = "… earlier lines are left out: run.rewind(turn).context has all"
        yield {"left": said, "right": said, "kind": "gap"}


def _equal(lines: Sequence[str], around: int, *, first: bool) -> Iterator[Line]:
    if len(lines) <= 2 * around + 1:
        yield from (_same(line) for line in lines)
        return
    head, tail = (0 if first else around), around  # the end stands before the reply: it is shown
    yield from (_same(line) for line in lines[:head])
    said = f"… {len(lines) - head - tail} equal lines"
    yield {"left": said, "right": said, "kind": "gap"}
    yield from (_same(line) for line in lines[len(lines) - tail :])


def _same(line: str) -> Line:
    return {"left": line, "right": line, "kind": "same"}


def _capped(lines: Sequence[str]) -> tuple[Sequence[str], bool]:
    """The last lines: what is different just before a reply is what matters."""
    return lines[-MAX_LINES:], len(lines) > MAX_LINES
