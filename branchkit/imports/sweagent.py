"""SWE-agent ``.traj``: steps beside a history; the request itself where the version stored it.

>= 1.1  ``query`` of a step is what the model was asked with: exact.
1.0     ``messages`` of a step is the same list after the step, which the next step was asked with:
        exact, too; the first context ends before the first reply.
0.x     only the history: contexts are its prefixes, rebuilt (history processors are not known).
"""

from __future__ import annotations

from typing import Any

import orjson

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

NAME = "sweagent"
# What SWE-agent sends of an item of its history; the rest is its own bookkeeping.
_SENT = ("role", "content", "tool_calls", "tool_call_id", "thinking_blocks")
_TIMEOUTS = ("EXECUTION TIMED OUT", "was cancelled because it took more than")
_ENDS: dict[str, EndStatus] = {"exit_cost": "max_calls", "exit_total_execution_time": "max_turns"}


def is_sweagent(value: Json) -> bool:
    """Whether ``value`` is the content of such a file."""
    return isinstance(value, dict) and (
        isinstance(value.get("trajectory"), list) or _is_history(value.get("history"))
    )


def _is_history(value: Json) -> bool:
    return isinstance(value, list) and any(
        isinstance(item, dict) and "role" in item and ("agent" in item or "action" in item)
        for item in value
    )


def read_sweagent(value: dict[str, Any]) -> ImportedRun:
    """The run in ``value``. Raises InputRefused if it holds no messages."""
    history = [item for item in list_of(value.get("history")) if _is_message(item)]
    steps = [step for step in list_of(value.get("trajectory")) if isinstance(step, dict)]
    if not history:
        raise InputRefused(
            "this SWE-agent file has no history: what the model saw is not in it",
            hint="use the .traj file that the run itself wrote",
        )
    key = next((key for key in ("query", "messages") if steps and _is_stored(steps, key)), "")
    run = ImportedRun(NAME, "exact" if key else "rebuilt")
    _Reader(run, history, steps, key).read()
    info = object_of(value.get("info"))
    _facts(run, info, _config(value.get("replay_config")), str(value.get("environment") or ""))
    _end(run, info, steps)
    note_calls(run)
    return run


def _is_stored(steps: list[dict[str, Any]], key: str) -> bool:
    return all(isinstance(step.get(key), list) for step in steps)


def _is_message(value: Json) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _is_reply(item: Message) -> bool:
    return item["role"] == "assistant" and not item.get("is_demo")


def _sent(item: Message) -> Message:
    message = {key: item[key] for key in _SENT if item.get(key) is not None}
    ids = item.get("tool_call_ids")
    if "tool_call_id" not in message and isinstance(ids, list) and ids:
        message["tool_call_id"] = ids[0]
    return message


class _Reader:
    """One pass over the history, with the step of each reply beside it."""

    def __init__(
        self, run: ImportedRun, history: list[Message], steps: list[dict[str, Any]], key: str
    ) -> None:
        self._run, self._history, self._steps, self._key = run, history, steps, key
        self._pool = [_sent(item) for item in history]
        self._matched = 0  # how many steps have found their reply
        self._step: dict[str, Any] = {}  # of the newest reply

    def read(self) -> None:
        for place, item in enumerate(self._history):
            sent = self._pool[place]
            if _is_reply(item):
                self._reply(place, item, sent)
            elif not self._run.turns:
                self._opening(item, sent)
            else:
                self._after(item, sent)
        self._finish_step()
        self._steps_without_history()

    def _opening(self, item: Message, sent: Message) -> None:
        text = text_of(item.get("content"))
        if item["role"] == "system":
            self._run.components.setdefault("prompt", Component(spec="imported", content=text))
            return
        is_demo = bool(item.get("is_demo"))
        if item["role"] == "user" and not is_demo and not self._run.task:
            self._run.task = text
        self._run.opening.append(Input(sent, "harness" if is_demo else "task"))

    def _reply(self, place: int, item: Message, sent: Message) -> None:
        self._finish_step()
        self._step = self._step_of(item)
        native = list_of(item.get("tool_calls"))
        action = str(item.get("action") or self._step.get("action") or "")
        found = [_native(object_of(call)) for call in native]
        if not found and action.strip():
            found = [ImportedCall("bash", {"command": action.strip("\n")})]
        self._run.turns.append(Turn(self._context(place), sent, found))

    def _step_of(self, item: Message) -> dict[str, Any]:
        """The next step whose response this reply is; steps without a reply are passed over."""
        content = text_of(item.get("content"))
        for number in range(self._matched, len(self._steps)):
            if str(self._steps[number].get("response") or "") == content:
                self._matched = number + 1
                return self._steps[number]
        return {}

    def _context(self, place: int) -> Context:
        at = self._matched - 1
        if not self._key or not self._step:
            return Context(self._pool, 0, place)
        if self._key == "messages":
            if at == 0:
                return Context(self._pool, 0, place)
            at -= 1
        stored = [_sent(item) for item in self._steps[at][self._key] if _is_message(item)]
        return Context(stored, 0, len(stored))

    def _after(self, item: Message, sent: Message) -> None:
        turn = self._run.turns[-1]
        index = self._answered(turn, item)
        if index is None:
            turn.happened.append(Input(sent, "harness"))
            return
        content = text_of(item.get("content"))
        observed = self._step.get("observation")
        self._observe(turn, index, observed if isinstance(observed, str) else content, sent)

    def _observe(self, turn: Turn, index: int, text: str, sent: Message | None) -> None:
        call = turn.calls[index]
        call.text, call.status = text, _status(text)
        content = text_of(sent.get("content")) if sent else text
        seconds = self._step.get("execution_time")
        turn.happened.append(
            Answer(
                index,
                sent,
                shown=None if text in content else content,
                duration_ms=1000 * seconds if isinstance(seconds, float) else None,
            )
        )

    def _answered(self, turn: Turn, item: Message) -> int | None:
        waiting = turn.waiting()
        ids = item.get("tool_call_ids")
        if isinstance(ids, list) and ids:
            same = [index for index in waiting if turn.calls[index].provider_id == ids[0]]
            if not same:
                self._run.issues.append(Issue(code="orphan_result", id=str(ids[0])))
            return same[0] if same else None
        return next(iter(waiting), None)

    def _finish_step(self) -> None:
        """A result that stands in the step and in no message: the run ended before it was sent."""
        if not self._run.turns:
            return
        turn, observed = self._run.turns[-1], self._step.get("observation")
        waiting = turn.waiting()
        if waiting and isinstance(observed, str) and observed:
            self._observe(turn, waiting[0], observed, None)

    def _steps_without_history(self) -> None:
        """A file cut off inside its history still holds the steps after it."""
        for number in range(self._matched, len(self._steps)):
            step = self._steps[number]
            stored = step.get(self._key) if self._key == "query" else None
            response = step.get("response")
            if not isinstance(stored, list) or not isinstance(response, str) or not response:
                continue
            if response.startswith("Exit"):
                continue  # the harness's own words for why it stopped
            self._step, self._matched = step, number + 1
            action = str(step.get("action") or "").strip("\n")
            calls = [ImportedCall("bash", {"command": action})] if action else []
            reply = {"role": "assistant", "content": response}
            self._run.turns.append(Turn(self._context(0), reply, calls))
            self._finish_step()


def _native(call: dict[str, Any]) -> ImportedCall:
    function = object_of(call.get("function"))
    arguments, problem = arguments_of(function.get("arguments"))
    return ImportedCall(
        str(function.get("name", "")), arguments, str(call.get("id") or ""), problem
    )


def _status(text: str) -> CallStatus:
    return "timeout" if any(word in text for word in _TIMEOUTS) else "completed"


def _config(value: Json) -> dict[str, Any]:
    """``replay_config``, which is an object in old files and a JSON string in new ones."""
    if isinstance(value, str):
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return {}
    return object_of(value)


def _facts(
    run: ImportedRun, info: dict[str, Any], config: dict[str, Any], environment: str
) -> None:
    model = object_of(object_of(config.get("agent")).get("model"))
    env = object_of(config.get("env"))
    repo, deployment = object_of(env.get("repo")), object_of(env.get("deployment"))
    setup = env.get("post_startup_commands")
    run.model = str(model.get("name") or "")
    run.sampling = {
        name: model[name]
        for name in ("temperature", "top_p")
        if type(model.get(name)) in (int, float)
    }
    native = any(turn.reply.get("tool_calls") for turn in run.turns)
    run.components["parser"] = Component(spec="native" if native else "fenced:bash")
    facts = {
        "swe_agent": info.get("swe_agent_version"),
        "swe_agent.commit": info.get("swe_agent_hash"),
        "environment": environment,
        "base.repo": repo.get("repo_name") or repo.get("github_url") or repo.get("path"),
        "base.commit": repo.get("base_commit"),
        "base.image": deployment.get("image"),
        "base.setup": orjson.dumps(setup).decode() if setup else None,
    }
    run.facts = {name: str(value) for name, value in facts.items() if value}
    stats = object_of(info.get("model_stats"))
    names = {"input": "tokens_sent", "output": "tokens_received", "cost": "instance_cost"}
    run.totals = {
        name: stats[key] for name, key in names.items() if isinstance(stats.get(key), int | float)
    }
    run.unknown = ["tool schemas", "times", "tokens of each turn"]
    known = {"model": run.model, "base commit": repo.get("base_commit"), "exit status": info}
    run.unknown += [name for name, value in known.items() if not value]
    if run.fidelity == "rebuilt":
        run.unknown.append("what history processors left out")
    run.unknown.append("files of the workspace")


def _end(run: ImportedRun, info: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    reason = str(info.get("exit_status") or "")
    run.end_reason = reason
    submitted = reason.startswith("submitted")
    run.end = "completed" if submitted else _ENDS.get(reason, "failed" if reason else "unknown")
    if not submitted or not run.turns:
        return
    turn = run.turns[-1]
    for index in turn.waiting()[:1]:
        observed = str(steps[-1].get("observation") or "") if steps else ""
        call = turn.calls[index]
        call.text, call.status = observed or str(info.get("submission") or ""), "completed"
        turn.happened.append(Answer(index, None))
