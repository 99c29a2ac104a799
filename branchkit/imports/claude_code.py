"""Claude Code session JSONL: replies put together again, contexts rebuilt along the active path.

A reply is the group of assistant lines with one ``message.id``. The path is that of the last
message; results and further lines of replies on it belong to it wherever they hang. After a
compaction the context begins with the summary. System prompt, tool schemas and what attachments
looked like to the model are not in these files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from branchkit.errors import InputRefused
from branchkit.imports.claude_blocks import (
    CALLS,
    THINKING,
    blocks_of,
    imported_call,
    is_interruption,
    is_machine_text,
    result_of,
    token_counts,
    user_message,
)
from branchkit.imports.claude_children import children_beside, children_inside
from branchkit.imports.claude_records import items_of, path_of
from branchkit.imports.graph import Node, build_graph
from branchkit.imports.reader import Entry, Reading
from branchkit.imports.run import (
    Answer,
    Compaction,
    Context,
    ImportedRun,
    Input,
    Turn,
    note_calls,
    object_of,
    text_of,
)
from branchkit.journal.events import Issue, Message, call_step
from branchkit.journal.format import Json

NAME = "claude_code"


def read_claude_code(reading: Reading, path: Path) -> ImportedRun:
    """The run in the records of ``reading``; ``path`` is where side files are looked for.

    Raises InputRefused if no record holds a message.
    """
    run = ImportedRun(NAME, "rebuilt")
    main, side = items_of(reading.entries)
    if not main:
        raise InputRefused(
            "no record of this Claude Code file holds a message",
            hint="is it an index, or a session that never began?",
        )
    graph = build_graph([*main, *side])
    nodes = path_of(graph, main)
    _Reader(run, path).read(nodes)
    if not run.task:  # a session that a slash command began
        run.task = next((text_of(each.message["content"]) for each in run.inputs()), "")
    run.issues = sorted(
        [*reading.issues, *graph.issues, *run.issues], key=lambda issue: issue.line or 0
    )
    _facts(run, reading.entries, nodes)
    calls = [call for turn in run.turns for call in turn.calls]
    run.children = [*children_inside(graph, side, calls), *children_beside(path, calls)]
    note_calls(run)
    return run


class _Reader:
    """One pass over the active path."""

    def __init__(self, run: ImportedRun, path: Path) -> None:
        self._run, self._path = run, path
        self._pool: list[Message] = []
        self._start = 0  # where the context begins since the last compaction
        self._open: dict[str, Turn] = {}  # replies that further lines may belong to
        self._number: dict[int, int] = {}  # id() of a turn -> its number
        self._most_output: dict[int, int] = {}  # id() of a turn -> output tokens of its usage
        self._boundary: dict[str, Any] | None = None
        self._skipped: set[str] = set()

    def read(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            value, line = node.item.value, node.item.line
            kind = value.get("type")
            if value.get("subtype") == "compact_boundary":
                self._compacted([], time_of(value))
                self._boundary = value
                self._start, self._open = len(self._pool), {}
            elif kind == "assistant":
                self._assistant(value, line)
            elif kind == "user":
                self._user(value, line)
        self._compacted([], None)
        self._run.unknown = ["system prompt", "tool schemas", "attachments as the model saw them"]
        self._run.unknown += [f"blocks of type {kind}" for kind in sorted(self._skipped)]

    def _assistant(self, value: dict[str, Any], line: int) -> None:
        message = object_of(value.get("message"))
        if value.get("isApiErrorMessage") or message.get("model") == "<synthetic>":
            return  # words of the harness in the place of a reply; never sent back
        turn = self._turn_of(message, value)
        self._count(turn, message.get("usage"))
        turn.served_model = str(message.get("model") or turn.served_model)
        turn.finish_reason = str(message.get("stop_reason") or turn.finish_reason)
        for block in blocks_of(value):
            self._block(turn, block, line)

    def _turn_of(self, message: dict[str, Any], value: dict[str, Any]) -> Turn:
        reply_id = str(message.get("id") or "")
        if reply_id in self._open:
            return self._open[reply_id]
        self._compacted([], time_of(value))
        turn = Turn(
            context=Context(self._pool, self._start, len(self._pool)),
            reply={"role": "assistant", "content": ""},
            at=time_of(value),
            provider_id=reply_id,
        )
        self._pool.append(turn.reply)
        self._run.turns.append(turn)
        self._number[id(turn)] = len(self._run.turns)
        # Lines without an id are one reply only as long as nothing comes between them.
        self._open.pop("", None)
        self._open[reply_id] = turn
        return turn

    def _count(self, turn: Turn, usage: Json) -> None:
        counts = token_counts(usage)
        output = counts.get("completion_tokens", 0)
        if counts and output >= self._most_output.get(id(turn), 0):
            turn.usage = counts
            self._most_output[id(turn)] = output

    def _block(self, turn: Turn, block: dict[str, Any], line: int) -> None:
        kind, reply = block.get("type"), turn.reply
        if kind == "text" and isinstance(block.get("text"), str):
            before = reply["content"]
            reply["content"] = f"{before}\n\n{block['text']}" if before else block["text"]
        elif kind in THINKING:
            reply.setdefault("thinking_blocks", []).append(block)
            if kind == "thinking" and not block.get("thinking"):
                self._run.issues.append(Issue(code="hollow_thinking", line=line))
        elif kind in CALLS:
            call = imported_call(block)
            turn.calls.append(call)
            own = call_step(self._number[id(turn)], len(turn.calls))
            function = {"name": call.name, "arguments": _json_text(block.get("input"))}
            reply.setdefault("tool_calls", []).append(
                {"id": own, "type": "function", "function": function}
            )
        else:
            self._skipped.add(str(kind))

    def _user(self, value: dict[str, Any], line: int) -> None:
        self._open.pop("", None)
        at = time_of(value)
        blocks = blocks_of(value)
        results = [block for block in blocks if block.get("type") == "tool_result"]
        for block in results:
            self._result(block, value, line, at)
        message = user_message([block for block in blocks if block not in results])
        if message is None:
            return
        text = text_of(message["content"])
        if value.get("isCompactSummary"):
            self._compacted([message], at)
            return
        self._open = {}
        self._compacted([], at)
        by_machine = bool(value.get("isMeta")) or is_machine_text(text)
        self._pool.append(message)
        if by_machine:
            self._happened(Input(message, "harness", at))
        elif self._run.task:
            self._happened(Input(message, "person", at))
        else:
            self._run.task = text
            self._happened(Input(message, "task", at))

    def _happened(self, what: Input | Compaction) -> None:
        (self._run.turns[-1].happened if self._run.turns else self._run.opening).append(what)

    def _compacted(self, summary: list[Message], at: str | None) -> None:
        """A compaction is complete with its summary, or when something else comes first."""
        if self._boundary is None and not summary:
            return
        boundary = self._boundary or {}
        facts = object_of(boundary.get("compactMetadata"))
        if self._boundary is None:
            self._start, self._open = len(self._pool), {}
        self._boundary = None
        self._pool.extend(summary)
        before, after = facts.get("preTokens"), facts.get("postTokens")
        self._happened(
            Compaction(
                summary,
                str(facts.get("trigger") or "unknown"),
                before if type(before) is int else None,
                after if type(after) is int else None,
                at,
            )
        )

    def _result(
        self, block: dict[str, Any], value: dict[str, Any], line: int, at: str | None
    ) -> None:
        result = result_of(block, value)
        place = self._place(result.call, line)
        if place is None:
            return
        number, index = place
        turn = self._run.turns[number - 1]
        call = turn.calls[index]
        full = self._side_file(value, line)
        call.text = result.text if full is None else full
        call.status, call.denied = result.status, result.denied
        own = call_step(number, index + 1)
        message = {"role": "tool", "tool_call_id": own, "content": result.content}
        self._pool.append(message)
        shown = None if call.text == result.text else result.text
        turn.happened.append(Answer(index, message, shown=shown, at=at))

    def _place(self, call: str, line: int) -> tuple[int, int] | None:
        """The newest turn (from 1) and call that the result belongs to: by id, else position."""
        answered = False
        for number in range(len(self._run.turns), 0, -1):
            turn = self._run.turns[number - 1]
            for index, each in enumerate(turn.calls):
                if each.provider_id != call and call:
                    continue
                if not each.answered:
                    return number, index
                answered = True
            if not call:
                break
        code = "duplicate_result" if answered and call else "orphan_result"
        self._run.issues.append(Issue(code=code, line=line, id=call or None))
        return None

    def _side_file(self, value: dict[str, Any], line: int) -> str | None:
        """The whole of an output that was too big for the session file."""
        copy = value.get("toolUseResult")
        spilled = copy.get("persistedOutputPath") if isinstance(copy, dict) else None
        if not isinstance(spilled, str):
            return None
        name = spilled.replace("\\", "/").rpartition("/")[2]
        try:
            data = (self._path.with_suffix("") / "tool-results" / name).read_bytes()
        except OSError:
            self._run.issues.append(Issue(code="missing_side_file", line=line, id=name))
            return None
        return data.decode("utf-8", "replace")


def time_of(value: dict[str, Any]) -> str | None:
    """The record's time in UTC; None if it has none that can be read."""
    try:
        moment = datetime.fromisoformat(str(value.get("timestamp")))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return moment.astimezone(UTC).isoformat(timespec="milliseconds")
    except OverflowError:  # within hours of the first or the last year
        return None


def _json_text(value: Json) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # lone surrogates, long integers
        return json.dumps(value)


def _facts(run: ImportedRun, entries: Sequence[Entry], nodes: Sequence[Node]) -> None:
    run.model = next((turn.served_model for turn in run.turns if turn.served_model), "")
    values = [entry.value for entry in entries if isinstance(entry.value, dict)]
    for name, key in (
        ("claude_code", "version"),
        ("git_branch", "gitBranch"),
        ("base.cwd", "cwd"),
        ("session", "sessionId"),
    ):
        found = next((value[key] for value in values if isinstance(value.get(key), str)), "")
        if found:
            run.facts[name] = found
    for value in values:
        state = value.get("worktreeSession")
        if isinstance(state, dict) and isinstance(state.get("originalHeadCommit"), str):
            run.facts["base.commit"] = state["originalHeadCommit"]
    run.checkpoint_hints = sum(value.get("type") == "file-history-snapshot" for value in values)
    if "base.commit" not in run.facts:
        run.unknown.append("base commit")
    run.unknown.append("files of the workspace")
    times = [time for node in nodes if (time := time_of(node.item.value))]
    run.started_at, run.ended_at = (times[0], times[-1]) if times else (None, None)
    for name, key in (("input", "prompt_tokens"), ("output", "completion_tokens")):
        if counts := [turn.usage[key] for turn in run.turns if key in turn.usage]:
            run.totals[name] = sum(counts)
    _end(run)


def _end(run: ImportedRun) -> None:
    """A session has no end of its own: it is done when the last reply asked for nothing."""
    if not run.turns:
        return
    last = run.turns[-1]
    inputs = [each for each in last.happened if isinstance(each, Input)]
    if not last.calls and not inputs:
        run.end, run.end_reason = "completed", last.finish_reason
    elif inputs and is_interruption(text_of(inputs[-1].message["content"])):
        run.end, run.end_reason = "cancelled", "interrupted"
