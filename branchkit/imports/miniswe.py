"""mini-swe-agent ``.traj.json``: every context is a prefix of the messages, word for word.

Version 1 is a bare list (or an envelope ``mini-swe-agent-1``) with commands in fenced blocks;
version 2 is ``mini-swe-agent-1.1`` with native calls or fenced blocks and bookkeeping in ``extra``,
and closes with a pseudo message of role ``exit`` that no model ever saw.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from branchkit.errors import InputRefused
from branchkit.imports.run import (
    Answer,
    Context,
    ImportedCall,
    ImportedRun,
    Input,
    Turn,
    arguments_of,
    list_of,
    note_calls,
    object_of,
    text_of,
)
from branchkit.journal.events import CallStatus, Component, EndStatus, Issue, Message
from branchkit.journal.format import Json

NAME = "miniswe"
FENCE = re.compile(r"^```(?:bash|mswea_bash_command)[ \t]*\n(.*?)^```[ \t]*$", re.M | re.S)
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_FORMAT = re.compile(r"mini-swe-agent-(\d+)(?:\.\d+)*")
_RETURN_CODE = re.compile(r"<returncode>(-?\d+)</returncode>")
_ENDS: dict[str, EndStatus] = {
    "Submitted": "completed",
    "LimitsExceeded": "max_turns",
    "TimeExceeded": "max_turns",
    "UserInterruption": "cancelled",
}


def is_miniswe(value: Json) -> bool:
    """Whether ``value`` is the content of such a file."""
    if isinstance(value, dict):
        info = value.get("info")
        named = _FORMAT.match(str(value.get("trajectory_format", "")))
        return isinstance(value.get("messages"), list) and (
            named is not None or (isinstance(info, dict) and "mini_version" in info)
        )
    if not isinstance(value, list) or not value or not all(map(_is_message, value)):
        return False
    return any(
        message["role"] == "assistant" and FENCE.search(text_of(message.get("content")))
        for message in value
    )


def read_miniswe(value: Json) -> ImportedRun:
    """The run in ``value``. Raises InputRefused for a version that is not known."""
    envelope = {"messages": value} if isinstance(value, list) else value
    _refuse_unknown(envelope)
    messages = [message for message in envelope["messages"] if _is_message(message)]
    info = object_of(envelope.get("info"))
    run = ImportedRun(NAME, "exact")
    if isinstance(value, list):
        run.issues.append(Issue(code="legacy_layout", detail="a bare list of messages"))
    _Reader(run, messages).read()
    _facts(run, info)
    _end(run, messages, info)
    note_calls(run)
    return run


def _refuse_unknown(envelope: dict[str, Any]) -> None:
    version = str(envelope.get("trajectory_format", "mini-swe-agent-1"))
    match = _FORMAT.fullmatch(version)
    if match is None or int(match[1]) > 1:
        raise InputRefused(
            f"trajectory format {version!r} is not known",
            hint="known are mini-swe-agent-1 and mini-swe-agent-1.1",
        )
    for message in envelope["messages"]:
        if isinstance(message, dict) and message.get("object") == "response":
            raise InputRefused(
                "the messages are items of the Responses API, not chat messages",
                hint="runs of mini-swe-agent's response models are not read yet",
            )


def _is_message(message: Json) -> bool:
    return isinstance(message, dict) and isinstance(message.get("role"), str)


def _time(message: Message) -> str | None:
    stamp = object_of(message.get("extra")).get("timestamp", message.get("timestamp"))
    if not isinstance(stamp, int | float):
        return None
    try:
        return datetime.fromtimestamp(stamp, UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError, OSError):
        return None


class _Reader:
    """One pass over the messages."""

    def __init__(self, run: ImportedRun, messages: list[Message]) -> None:
        self._run = run
        self._messages = messages
        # What was sent: the messages without the harness's own notes.
        self._pool: list[Message] = [
            {key: item for key, item in message.items() if key not in ("extra", "timestamp")}
            for message in messages
            if message["role"] != "exit"
        ]

    def read(self) -> None:
        place = 0
        for message in self._messages:
            if message["role"] == "exit":
                continue
            sent = self._pool[place]
            if message["role"] == "assistant":
                self._run.turns.append(self._turn(message, sent, place))
            elif not self._run.turns:
                self._opening(message, sent)
            else:
                self._after(message, sent)
            place += 1

    def _opening(self, message: Message, sent: Message) -> None:
        text = text_of(sent.get("content"))
        if message["role"] in ("system", "developer"):
            self._run.components.setdefault("prompt", Component(spec="imported", content=text))
            return
        self._run.task = self._run.task or text
        self._run.opening.append(Input(sent, "task", _time(message)))

    def _turn(self, message: Message, sent: Message, place: int) -> Turn:
        extra = object_of(message.get("extra"))
        response = object_of(extra.get("response"))
        usage = object_of(response.get("usage"))
        first = object_of(next(iter(list_of(response.get("choices"))), None))
        return Turn(
            context=Context(self._pool, 0, place),
            reply=sent,
            calls=_calls(message, extra),
            at=_time(message),
            served_model=str(response.get("model") or ""),
            provider_id=str(response.get("id") or ""),
            finish_reason=str(first.get("finish_reason") or ""),
            usage={name: count for name, count in usage.items() if type(count) is int},
        )

    def _after(self, message: Message, sent: Message) -> None:
        turn = self._run.turns[-1]
        index = self._answered(turn, message)
        if index is None:
            kind = object_of(message.get("extra")).get("interrupt_type")
            by_hand = kind == "UserInterruption"
            turn.happened.append(Input(sent, "person" if by_hand else "harness", _time(message)))
            return
        call, extra = turn.calls[index], object_of(message.get("extra"))
        content = text_of(sent.get("content"))
        raw = extra.get("raw_output")
        call.text = raw if isinstance(raw, str) else content
        call.status = _status(content, extra)
        code = extra.get("returncode", _return_code(content))
        whole = call.text in content
        turn.happened.append(
            Answer(
                index,
                sent,
                shown=None if whole else content,
                exit_code=code if type(code) is int and code >= 0 else None,
                at=_time(message),
            )
        )

    def _answered(self, turn: Turn, message: Message) -> int | None:
        """The call of ``turn`` that ``message`` answers: by id, else by position."""
        waiting = turn.waiting()
        if message["role"] == "tool":
            provider_id = str(message.get("tool_call_id") or "")
            same = [index for index in waiting if turn.calls[index].provider_id == provider_id]
            if not same and provider_id:
                self._run.issues.append(Issue(code="orphan_result", id=provider_id))
                return None
            return same[0] if same else next(iter(waiting), None)
        if message["role"] != "user" or turn.reply.get("tool_calls"):
            return None
        return next(iter(waiting), None)


def _calls(message: Message, extra: dict[str, Any]) -> list[ImportedCall]:
    native = list_of(message.get("tool_calls"))
    if native:
        return [_native(object_of(call)) for call in native]
    actions = extra.get("actions")
    if isinstance(actions, list):
        return [
            ImportedCall("bash", {"command": str(object_of(action).get("command", ""))})
            for action in actions
        ]
    blocks = FENCE.findall(text_of(message.get("content")))
    # Anything but one block was answered by a complaint, and nothing was run.
    return [ImportedCall("bash", {"command": blocks[0].rstrip("\n")})] if len(blocks) == 1 else []


def _native(call: dict[str, Any]) -> ImportedCall:
    function = object_of(call.get("function"))
    arguments, problem = arguments_of(function.get("arguments"))
    return ImportedCall(
        str(function.get("name", "")), arguments, str(call.get("id") or ""), problem
    )


def _return_code(content: str) -> int | None:
    match = _RETURN_CODE.search(content)
    return int(match[1]) if match else None


def _status(content: str, extra: dict[str, Any]) -> CallStatus:
    problem = f"{extra.get('exception_type', '')} {extra.get('exception_info', '')}".strip()
    if not problem and content.startswith("<exception>"):
        problem = content.partition("</exception>")[0]
    old = content.startswith("The last command <command>") and "timed out" in content
    if old or re.search(r"timeout|timed out", problem, re.IGNORECASE):
        return "timeout"
    return "error" if problem else "completed"


def _facts(run: ImportedRun, info: dict[str, Any]) -> None:
    config = object_of(info.get("config"))
    model, environment = object_of(config.get("model")), object_of(config.get("environment"))
    served = next((turn.served_model for turn in run.turns if turn.served_model), "")
    run.model = str(model.get("model_name") or served)
    run.sampling = {
        name: value
        for name, value in object_of(model.get("model_kwargs")).items()
        if type(value) in (int, float) and name in ("temperature", "top_p")
    }
    native = any(turn.reply.get("tool_calls") for turn in run.turns)
    said = "\n".join(str(turn.reply.get("content") or "") for turn in run.turns)
    language = "mswea_bash_command" if "```mswea_bash_command" in said else "bash"
    run.components["parser"] = Component(spec="native" if native else f"fenced:{language}")
    run.components["tools"] = Component(spec="bash")
    facts = {
        "mini_swe_agent": info.get("mini_version"),
        "agent": config.get("agent_type"),
        "environment": config.get("environment_type"),
        "base.image": environment.get("image"),
        "base.cwd": environment.get("cwd"),
    }
    run.facts = {name: str(value) for name, value in facts.items() if value}
    run.totals = _totals(run, object_of(info.get("model_stats")))
    known = {
        "model": bool(run.model),
        "tokens": any(turn.usage for turn in run.turns),
        "times": any(turn.at for turn in run.turns),
        "exit status": "exit_status" in info,
        "tool schemas": not native,
    }
    run.unknown = [name for name, is_known in known.items() if not is_known]
    run.unknown.append("files of the workspace")
    times = [turn.at for turn in run.turns if turn.at]
    run.started_at = times[0] if times else None


def _totals(run: ImportedRun, stats: dict[str, Any]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for name, key in (("input", "prompt_tokens"), ("output", "completion_tokens")):
        counts = [turn.usage[key] for turn in run.turns if key in turn.usage]
        if counts:
            totals[name] = sum(counts)
    cost = stats.get("instance_cost")
    if isinstance(cost, int | float):
        totals["cost"] = cost
    return totals


def _end(run: ImportedRun, messages: list[Message], info: dict[str, Any]) -> None:
    last = messages[-1] if messages else {}
    extra = object_of(last.get("extra"))
    reason = str(info.get("exit_status") or extra.get("exit_status") or "")
    turn = run.turns[-1] if run.turns else None
    submitting = [
        index
        for index, call in enumerate(turn.calls if turn else [])
        if _SUBMIT in str((call.arguments or {}).get("command", ""))
    ]
    if not reason and turn is not None and submitting and turn.calls[submitting[-1]].answered:
        reason = "Submitted"  # version 1 sends what was submitted as the last message
    run.end = _ENDS.get(reason, "failed" if reason else "unknown")
    run.end_reason = reason
    if turn is None or reason != "Submitted" or not submitting:
        return
    # The submitting call has no message of its own: the run ends inside it, which is no doubt.
    call = turn.calls[submitting[-1]]
    if not call.answered:
        submission = info.get("submission") or extra.get("submission") or last.get("content")
        call.text, call.status = text_of(submission), "completed"
        turn.happened.append(Answer(submitting[-1], None, at=_time(last)))
