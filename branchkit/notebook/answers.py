"""HTML and text of short answers: which turn did it, who changed a path last, is a replay equal."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from branchkit.notebook.html import piece

if TYPE_CHECKING:
    from branchkit.durable.cadence import Advice
    from branchkit.durable.resume import Resumption
    from branchkit.replay.strict import Replayed
    from branchkit.replay.when import Blame, When

MAX_CALL_CHARS = 300


def when_plain(found: When) -> str:
    """The turn, its calls, and the verdicts of all turns, equal neighbours together."""
    rows = [f"  {turns:>12}  {said}" for turns, said in _stretches(found)]
    return "\n".join([f"check: {found.check}", *rows, _turn(found), *map(_short, found.calls)])


def when_html(found: When) -> str:
    """The same as a table."""
    table = _table(("after turn", "the check"), _stretches(found))
    head = f"<p>check: <code>{escape(found.check)}</code></p>"
    return piece(f"{head}{table}<p class='h'>{escape(_turn(found))}</p>{_calls(found.calls)}")


def blame_plain(found: Blame) -> str:
    """Path, turn, what happened to it, and the calls of that turn."""
    return "\n".join([_blamed(found), *map(_short, found.calls)])


def blame_html(found: Blame) -> str:
    """The same as a piece of a page."""
    return piece(f"<p class='h'>{escape(_blamed(found))}</p>{_calls(found.calls)}")


def replayed_plain(found: Replayed) -> str:
    """One line if all was equal, else where it was not."""
    if found.divergence is not None:
        rows = (f"  {name}: {value}" for name, value in found.divergence.items())
        return "\n".join(["diverged:", *rows])
    note = f" ({found.note})" if found.note else ""
    return (
        f"equal: {found.consumed} of {found.events} events consumed, each once; "
        f"model calls: {found.model_calls}, tool calls: {found.tool_calls}{note}"
    )


def replayed_html(found: Replayed) -> str:
    """The same as a piece of a page."""
    if found.divergence is None:
        return piece(f"<p><b>{escape(replayed_plain(found))}</b></p>")
    rows = [(name, str(value)) for name, value in found.divergence.items()]
    return piece(f"<p class='h'>diverged</p>{_table(('', ''), rows)}")


def resumed_plain(found: Resumption) -> str:
    """How the run stands now, what was settled or done again, and what a person is asked."""
    name = found.journal.rpartition("/")[2]
    lines = [f"{name}: {found.status} after {found.turns} turns"]
    lines += [found.reason] if found.reason else []
    lines += [f"  settled {one.call_id}: {one.outcome}, by {one.by}" for one in found.settled]
    lines += [f"  done again {call_id}" for call_id in found.redone]
    lines += [f"  {row.call_id} is {row.state}: {row.waits_for}" for row in found.waits_for]
    return "\n".join(lines)


def resumed_html(found: Resumption) -> str:
    """The same as a piece of a page."""
    head, *rest = resumed_plain(found).splitlines()
    return piece(
        f"<p class='h'>{escape(head)}</p>" + "".join(f"<p>{escape(line)}</p>" for line in rest)
    )


def advice_html(found: Advice, picture: bytes) -> str:
    """The advice in one line, its curve, and what other intervals cost."""
    rows = [
        (each.name, f"{each.interval_turns:.4g}", f"{each.overhead:.2%}", f"{each.lost_turns:.4g}")
        for each in found.choices
    ]
    image = f'<img alt="overhead against interval" src="data:image/png;base64,{_b64(picture)}">'
    heads = ("checkpoint", "turns apart", "time lost", "turns lost by a crash")
    return piece(
        f"<p class='h'>{escape(str(found).splitlines()[0])}</p>{image}{_table(heads, rows)}"
    )


def _b64(data: bytes) -> str:
    return b64encode(data).decode()


def _stretches(found: When) -> list[tuple[str, str]]:
    """Turns with the same exit code, one after the other, as one row."""
    rows = []
    for code, group in groupby(found.results, key=lambda one: one.exit):
        turns = [one.turn for one in group]
        span = str(turns[0]) if len(turns) == 1 else f"{turns[0]} to {turns[-1]}"
        rows.append((span, _verdict(code)))
    return rows


def _verdict(code: int | None) -> str:
    if code is None:
        return "not looked at, or out of time"
    if code >= 126 or code < 0:
        return f"no verdict (exit {code})"
    return "passes (exit 0)" if code == 0 else f"fails (exit {code})"


def _turn(found: When) -> str:
    return "no turn changes the verdict" if found.turn is None else f"turn {found.turn} did it"


def _blamed(found: Blame) -> str:
    version = found.version
    size = "" if version.size is None else f" ({version.size} bytes)"
    if version.turn == 0:
        return f"{version.path}: {version.what}{size} since the run began"
    return f"{version.path}: {version.what}{size} by turn {version.turn}"


def _calls(calls: Sequence[str]) -> str:
    return "".join(f"<pre>{escape(_short(call))}</pre>" for call in calls)


def _short(call: str) -> str:
    return call if len(call) <= MAX_CALL_CHARS else f"{call[: MAX_CALL_CHARS - 1]}…"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
