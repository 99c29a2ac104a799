"""HTML and text of a moment of a run, and of a run: no path of this machine, the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from branchkit.branch.text import message_lines, rewound_text
from branchkit.journal.events import Message, ToolProposed
from branchkit.notebook.html import piece

if TYPE_CHECKING:
    from branchkit.branch.api import Run
    from branchkit.replay.rewind import Rewound

LAST_MESSAGES = 4  # shown at once; what came before is folded
MAX_FOLDED_CHARS = 60_000  # of earlier messages: the page stays small, ``context`` has all
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
    """Context with the earlier messages folded, what was hidden, what then happened, the files."""
    return piece("".join(_rewound(rewound)))


def _rewound(rewound: Rewound) -> Iterator[str]:
    name = escape(rewound.journal)
    yield f"<h4>{name}, just before reply {rewound.turn} of {rewound.turns}</h4>"
    earlier = rewound.context[:-LAST_MESSAGES]
    if earlier:
        yield f"<details><summary>{len(earlier)} earlier messages</summary>"
        text = "\n".join(line for message in earlier for line in message_lines(message))
        cut = text[-MAX_FOLDED_CHARS:]
        if len(cut) < len(text):
            yield f"<p>the first {len(text) - len(cut)} characters are in .context</p>"
        yield f"<pre>{escape(cut)}</pre></details>"
    yield from (_message(message) for message in rewound.context[-LAST_MESSAGES:])
    yield from _hidden(rewound)
    yield "<h4>what the run then did</h4>"
    yield from _recorded(rewound)
    where = f"workspace: {_where(rewound)}<br>{rewound.workspace_note}"
    yield f'<p class="dim">{where}<br>context {rewound.context_hash}</p>'


def _message(message: Message, *, last: bool = False) -> str:
    text = escape("\n".join(message_lines(message)))
    return f'<div class="m{" last" if last else ""}"><pre>{text}</pre></div>'


def _hidden(rewound: Rewound) -> Iterator[str]:
    for hidden in rewound.hidden[-1:]:
        yield f"<p><b>hidden from the model:</b> {hidden.omitted_lines} lines "
        yield f"({hidden.omitted_bytes} bytes) of {escape(hidden.call_id)}, by truncation "
        yield f"{escape(hidden.rule)}</p>"
        if hidden.full_text is None:
            continue
        full = escape(hidden.full_text[:MAX_FOLDED_CHARS])
        yield f"<details><summary>the full result</summary><pre>{full}</pre></details>"


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
    head = f"<h4>{escape(run.recorded.path.name)}: {run.turns} turns, {record.status}</h4>"
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
