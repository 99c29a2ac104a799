"""How a call in doubt is settled: by its key, by a probe, by a person; never by trying (R22, L01).

The rules are the same while a run is live (a timeout is no answer, D11) and when it is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from branchkit.boundary.calls import Call
from branchkit.boundary.contract import Contract, ProbeAnswer
from branchkit.journal.events import CallStatus, ToolIntent
from branchkit.record.record import NO_ANSWER


class Waiting(BaseException):
    """The run waits for a person: a call is held, or in doubt. Not an error, so no Exception."""


class Observation(NamedTuple):
    """What came of one tool call."""

    status: CallStatus
    text: str
    exit_code: int | None = None

    @property
    def is_answer(self) -> bool:
        """Whether it says what became of a call that may have acted elsewhere."""
        return self.status not in NO_ANSWER


def blind(_name: str, _arguments: Mapping[str, Any], _key: str) -> ProbeAnswer:
    """The probe of tools that have none."""
    return ProbeAnswer("unknown", "it has no probe")


class Tools(NamedTuple):
    """The tools as the boundary reaches them."""

    call: Callable[[str, Mapping[str, Any], int, str], Observation]  # name, arguments, turn, key
    probe: Callable[[str, Mapping[str, Any], str], ProbeAnswer] = blind  # name, arguments, key
    contracts: Mapping[str, Contract] = {}  # of those that declare one
    schemas: Mapping[str, dict[str, Any]] = {}  # as a model is sent them


class Known(NamedTuple):
    """The call is completed, and this is its result."""

    observation: Observation
    by: Literal["key", "probe"]
    detail: str


class NotSent(NamedTuple):
    """The call was not done and will not be: it may be sent."""

    detail: str


class Ask(NamedTuple):
    """Only a person can say."""

    question: str


def settle(
    call: Call,
    intent: ToolIntent,
    tools: Tools,
    *,
    again: Callable[[], Observation],
    age_s: float = 0.0,
    refused: str = "",
) -> Known | NotSent | Ask:
    """What became of ``call``, which was sent and not answered ``age_s`` seconds ago.

    ``again`` sends it once more as it was recorded; that is done only under a key that the server
    still remembers, and not where ``refused`` says that it is no longer allowed (N12). Only a
    result settles it: an error that the repeat meets may be one that the first request did not.
    """
    contract = tools.contracts.get(call.name, Contract())
    tried: list[str] = []
    if intent.contract == "keyed":
        obstacle = refused or _key_obstacle(contract, age_s)
        if not obstacle:
            answer = again()
            if answer.status == "completed":
                return Known(answer, "key", "sent again with its key")
            if answer.status == "mismatch":
                return Ask(_question(call, [f"its key stands for another request: {answer.text}"]))
            # "Connection refused", "403", "503" are about the repeat: nothing of the first time.
            obstacle = f"sent again with its key, and it is not known yet: {answer.text}"
        tried.append(obstacle)
    if not contract.probe:
        obstacle = "it takes no key and has no probe"
        return Ask(_question(call, [*tried, "it has no probe"] if tried else [obstacle]))
    seen = tools.probe(call.name, call.arguments or {}, intent.idempotency_key)
    match seen.state:
        case "completed":
            return Known(Observation("completed", str(seen.result)), "probe", "the probe found it")
        case "not_done":
            return NotSent("the probe says that it was not done")
        case "unknown":
            return Ask(_question(call, [*tried, f"the probe cannot tell: {seen.result}"]))


def _key_obstacle(contract: Contract, age_s: float) -> str:
    if not contract.key:
        return "the tool no longer takes a key"
    if contract.key_ttl_s is not None and age_s >= contract.key_ttl_s:
        return f"its key is {age_s:.0f} s old, the server forgets it after {contract.key_ttl_s:g} s"
    return ""


def _question(call: Call, tried: list[str]) -> str:
    return f"Was {call.name} ({call.call_id}) done? Nobody here can tell: {'; '.join(tried)}."
