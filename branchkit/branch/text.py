"""Plain text of what rewind and fork found: for terminals, and the text twin of every widget."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from branchkit.branch.comparison import BranchView, Comparison
from branchkit.divergence.tables import ArmSummary
from branchkit.journal.events import Message
from branchkit.replay.rewind import Rewound

WIDTH = 100


def rewound_text(rewound: Rewound, *, last: int | None = None) -> str:
    """The context before reply t, what the harness then decided, and where the workspace is.

    ``last`` shows only so many messages from the end.
    """
    shown = rewound.context if last is None else rewound.context[-last:]
    lines = [f"{rewound.journal}, just before reply {rewound.turn} of {rewound.turns}", ""]
    if len(shown) < len(rewound.context):
        lines.append(f"… {len(rewound.context) - len(shown)} earlier messages")
    for message in shown:
        lines.extend(message_lines(message))
    for hidden in rewound.hidden[-1:]:
        lines += [
            "",
            f"hidden from the model: {hidden.omitted_lines} lines ({hidden.omitted_bytes} bytes) "
            f"of {hidden.call_id}, by truncation {hidden.rule}",
        ]
    lines += ["", f"context {rewound.context_hash}", *_recorded_lines(rewound)]
    where = str(rewound.branch.path) if rewound.branch else "none"
    lines += [f"workspace: {where}", f"  {rewound.workspace_note}"]
    return "\n".join(lines)


def message_lines(message: Message) -> Iterator[str]:
    """One message, its role in the margin."""
    role = str(message.get("role", "?"))
    body = message.get("content")
    text = body if isinstance(body, str) else json.dumps(body) if body else ""
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        text += ("\n" if text else "") + f"→ {function.get('name')} {function.get('arguments')}"
    for number, line in enumerate(text.splitlines() or [""]):
        yield f"{role if number == 0 else '':>9} │ {line}"


def _recorded_lines(rewound: Rewound) -> Iterator[str]:
    reply = rewound.recorded["reply"]
    yield "recorded:"
    if reply is None:
        yield "  no reply: the run ends here"
        return
    if "message" in reply:
        yield from ("  " + line for line in message_lines(reply["message"]))
    for decided in rewound.recorded["authorizations"]:
        yield f"  {decided['call_id']} {decided['decision']} by policy {decided['policy']}"
    for result in rewound.recorded["results"]:
        text = str(result["text"] or f"{result['bytes']} bytes in the blobs").strip()
        yield f"  {result['call_id']} {result['status']}: {textwrap.shorten(text, 70)}"


def comparison_text(comparison: Comparison, *, width: int = WIDTH) -> str:
    """Rates with intervals, the map, the outcome groups, and what may be concluded."""
    facts = comparison.facts
    sizes = ", ".join(f"{name} × {n}" for name, _, n in facts.arms)
    head = f"fork at turn {facts.turn} of {comparison.recorded.path.name}: {sizes}"
    lines = [head + (" (interrupted: partial)" if comparison.partial else "")]
    if facts.check is not None:
        ok = {True: "passes", False: "fails", None: "gives no verdict on"}[facts.record_ok]
        lines += [f"check: {facts.check}", f"record's own end: the check {ok} it"]
    if facts.workspace_note:
        lines.append(f"note: {facts.workspace_note}")
    lines += ["", *_rate_lines(comparison.summaries), ""]
    lines += comparison.map(width).rstrip("\n").splitlines()
    lines += ["", *_group_lines(comparison)]
    for sentence in comparison.verdicts():
        lines += ["", *textwrap.wrap(sentence, width)]
    lines += _trouble_lines(comparison.branches)
    lines += [
        "",
        f"parent {'unchanged' if comparison.parent_unchanged else 'CHANGED'}; "
        f"model calls for turns 1..{facts.turn}: {comparison.prefix_model_calls}",
        f"left out of workspace hashes: {', '.join(facts.volatile)}",
    ]
    return "\n".join(lines)


def _rate_lines(summaries: Sequence[ArmSummary]) -> Iterator[str]:
    width = max((len(one.arm) for one in summaries), default=8)
    yield f"{'arm':<{width}}  success        95 % interval   p       distinct  diverged"
    for one in summaries:
        rate = one.success
        share = "no verdict" if rate.n == 0 else f"{rate.k}/{rate.n} = {rate.k / rate.n:.0%}"
        p = "" if one.against is None else f"{one.against.p:.4f}"
        spare = f"  ({rate.none} without verdict)" if rate.none else ""
        yield (
            f"{one.arm:<{width}}  {share:<13}  {rate.low:>5.0%} … {rate.high:<5.0%}   {p:<6}  "
            f"{one.distinct:>8}  {one.diverged:>8}{spare}"
        )


def _group_lines(comparison: Comparison) -> Iterator[str]:
    yield "ends (equal workspaces together):"
    words = {True: "pass", False: "fail", None: "no verdict"}
    for group in comparison.outcomes():
        yield f"  ×{group.count:<4} {words[group.ok]:<10} {(group.workspace or 'not hashed')[:23]}…"


def _trouble_lines(views: Sequence[BranchView]) -> list[str]:
    """What kept branches from ending by themselves, each reason once with its number."""
    ends = [view.result for view in views]
    reasons = Counter(
        end.error or f"{end.status}: {end.reason}" for end in ends if end.status != "completed"
    )
    return [f"×{count} did not complete: {reason}" for reason, count in sorted(reasons.items())]
