"""HTML and text of a moment of a run, and of a run: no path of this machine, the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from html import escape
from typing import TYPE_CHECKING

from branchkit.branch.text import message_lines, rewound_text
from branchkit.journal.events import Message, ToolProposed
from branchkit.notebook.html import piece

if TYPE_CHECKING:
    from branchkit.branch.api import Run
    from branchkit.replay.hidden import Hidden
    from branchkit.replay.rewind import Rewound

LAST_MESSAGES = 4  # shown at once; what came before is folded
MAX_FOLDED_CHARS = 60_000  # of earlier messages: the page stays small, ``context`` has all
MESSAGES_AT_ONCE = 50
MAX_TURNS = 60


def rewound_plain(rewound: Rewound) -> str:
    """``rewound_text`` of the last messages, the workspace named inside its store."""
    text = rewound_text(rewound, last=LAST_MESSAGES)
    if rewound.branch is None:
        return text
    return text.replace(str(rewound.branch.path), _where(rewound))


def _where(rewound: Rewound) -> str:
    return f"{rewound.branch.name} (its directory: .branch.path)" if rewound.branch else "none"


def rewound_html(rewound: Rewound) -> str:
    """Each message with the event it came from and what of it was hidden; what then happened."""
    return piece("".join(_rewound(rewound)))


def _rewound(rewound: Rewound) -> Iterator[str]:
    name = escape(rewound.journal)
    yield f"<p class='h'>{name}, just before reply {rewound.turn} of {rewound.turns}</p>"
    yield from _dropped(rewound)
    shown = max(0, len(rewound.context) - LAST_MESSAGES)
    if shown:
        yield f"<details><summary>{shown} earlier messages</summary>"
        yield from _earlier(rewound, shown)
        yield "</details>"
    yield from _messages(rewound, shown, len(rewound.context))
    yield "<p class='h'>what the run then did</p>"
    yield from _recorded(rewound)
    where = f"workspace: {_where(rewound)}<br>{rewound.workspace_note}"
    yield f'<p class="dim">{where}<br>context {rewound.context_hash}</p>'


def _dropped(rewound: Rewound) -> Iterator[str]:
    """What the model had been shown before and was not shown any more."""
    dropped = rewound.origins.dropped
    if dropped is None:
        return
    count, why = len(dropped.messages), escape(rewound.origins.reason)
    yield f"<details><summary>{count} messages that were in the context before turn "
    yield f'{rewound.turn} and no longer are: {why}</summary><div class="dim">'
    room = MAX_FOLDED_CHARS
    for item in dropped.messages:
        block = _message(item.message, said=f"event {item.seq}" if item.seq is not None else "")
        room -= len(block)
        if room < 0:
            yield "<p>the others are in .origins.dropped.messages</p>"
            break
        yield block
    yield "</div></details>"


def _earlier(rewound: Rewound, stop: int) -> Iterator[str]:
    """As many of the messages before ``stop`` as the page has room for, the last ones."""
    room, begin, blocks = MAX_FOLDED_CHARS, stop, list[str]()
    while begin > 0 and room > 0:
        step = max(0, begin - MESSAGES_AT_ONCE)
        blocks[:0] = _messages(rewound, step, begin)
        begin, room = step, MAX_FOLDED_CHARS - sum(map(len, blocks))
    while room < 0 and len(blocks) > 1:
        room += len(blocks.pop(0))
    if len(blocks) < stop:
        yield f"<p>the first {stop - len(blocks)} messages are in .context</p>"
    yield from blocks


def _messages(rewound: Rewound, start: int, stop: int) -> Iterator[str]:
    origins = rewound.origins.part(start, stop)
    for message, origin in zip(rewound.context[start:stop], origins, strict=True):
        yield _message(message, said=str(origin), hidden=origin.hidden)


def _message(
    message: Message, *, said: str = "", hidden: Hidden | None = None, last: bool = False
) -> str:
    text = escape("\n".join(message_lines(message)))
    from_where = f'<div class="from">{escape(said)}</div>' if said else ""
    cut = "" if hidden is None else "".join(_hidden(hidden, str(message.get("content") or "")))
    return f'<div class="m{" last" if last else ""}">{from_where}<pre>{text}</pre>{cut}</div>'


def _hidden(hidden: Hidden, shown: str) -> Iterator[str]:
    """The whole result, with what the model was not shown in grey."""
    what = f"<b>hidden from the model:</b> {hidden.omitted_lines} lines ({hidden.omitted_bytes} "
    what += f"bytes) of {escape(hidden.call_id)}, by truncation {escape(hidden.rule)}"
    if hidden.full_text is None:
        yield f"<p>{what}; the full result is not here</p>"
        return
    yield f"<details><summary>{what}</summary><pre>"
    full = hidden.full_text[:MAX_FOLDED_CHARS]
    for line, seen in _lines_seen(full.splitlines(), shown.splitlines()):
        yield f"{escape(line)}\n" if seen else f'<span class="hid">{escape(line)}</span>\n'
    if len(full) < len(hidden.full_text):
        yield "… the rest is in .hidden[-1].full_text"
    yield "</pre></details>"


def _lines_seen(full: list[str], shown: list[str]) -> Iterator[tuple[str, bool]]:
    """Each line of a result, and whether it stands in what was shown of it."""
    blocks = SequenceMatcher(None, full, shown, autojunk=False).get_matching_blocks()
    seen = {at for block in blocks for at in range(block.a, block.a + block.size)}
    return ((line, at in seen) for at, line in enumerate(full))


def _recorded(rewound: Rewound) -> Iterator[str]:
    reply = rewound.recorded["reply"]
    if reply is None:
        yield "<p>no reply: the run ends here</p>"
        return
    if "message" in reply:
        yield _message(reply["message"], last=True)
    for decided in rewound.recorded["authorizations"]:
        policy = escape(str(decided["policy"]))
        yield f"<p>{escape(decided['call_id'])} {decided['decision']} by policy {policy}</p>"
    for result in rewound.recorded["results"]:
        text = str(result["text"] or f"{result['bytes']} bytes in the blobs").strip()
        shown = escape(text[:400] + ("…" if len(text) > 400 else ""))
        yield f"<pre>{escape(result['call_id'])} {result['status']}: {shown}</pre>"


def run_plain(run: Run) -> str:
    """The run's name and end, and a line a turn."""
    record = run.recorded.record
    lines = [
        f"{run.recorded.path.name}: {run.turns} turns, {record.status}",
        f"task: {record.task}",
    ]
    return "\n".join([*lines, *(f"{turn:>5}  {what}" for turn, what in _turns(run))])


def run_html(run: Run) -> str:
    """The same as a table."""
    record = run.recorded.record
    head = f"<p class='h'>{escape(run.recorded.path.name)}: {run.turns} turns, {record.status}</p>"
    head += f"<p>task: {escape(str(record.task))}</p>"
    rows = "".join(
        f'<tr><td class="r">{turn}</td><td>{escape(what)}</td></tr>' for turn, what in _turns(run)
    )
    return piece(f"{head}<table><tr><th>turn</th><th>action</th></tr>{rows}</table>")


def _turns(run: Run) -> list[tuple[str, str]]:
    actions: dict[int, list[str]] = {turn: [] for turn in range(1, run.turns + 1)}
    for event in run.recorded.events:
        if isinstance(call := event.payload, ToolProposed) and event.turn in actions:
            actions[event.turn].append(f"{call.name} {_short(call.arguments)}")
    found = [(str(turn), "; ".join(said) or "(says something)") for turn, said in actions.items()]
    if len(found) <= MAX_TURNS:
        return found
    half = MAX_TURNS // 2
    return [*found[:half], ("…", f"{len(found) - MAX_TURNS} more turns"), *found[-half:]]


def _short(arguments: object) -> str:
    text = str(arguments)
    return text if len(text) <= 80 else text[:79] + "…"
