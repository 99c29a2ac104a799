"""The record: what a run's events fold to. A view, never stored as truth (B03)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from branchkit.journal.events import Component
from branchkit.journal.format import ZERO_HASH, Json

REDUCER_VERSION = 1
CallWord = Literal["not sent", "in doubt", "completed"]


# What a call that may have acted elsewhere came back with, when nobody can say whether it acted. A
# timeout is no answer, not a failure (D11).
NO_ANSWER = ("timeout", "aborted", "unanswered", "mismatch")


class CallState(NamedTuple):
    """Which of the four events of a call exist, by seq (R3, C03), and what became of it."""

    call_id: str
    name: str
    turn: int
    proposed: int
    authorized: int | None = None
    intent: int | None = None
    result: int | None = None
    decision: str | None = None
    status: str | None = None
    effect: str | None = None
    contract: str = "plain"
    key: str = ""
    readable: bool = True  # whether the harness could read its arguments
    settled: str | None = None  # the outcome, where it was in doubt and then became known
    settled_by: str = ""

    @property
    def word(self) -> CallWord:
        """One of the three words that every interface shows (R21, R27); total and exclusive (D06).

        Only a call that was sent can be in doubt. An import has no intents: what has an answer
        there was sent.
        """
        if self.settled == "not sent":
            return "not sent"
        if self.intent is None and (
            self.result is None or self.status == "denied" or not self.readable
        ):
            return "not sent"
        if self.result is None or self.settled == "unknown":
            return "in doubt"
        if self.effect in (None, "external") and self.settled is None:
            return "in doubt" if self.status in self._no_answer else "completed"
        return "completed"

    @property
    def _no_answer(self) -> tuple[str, ...]:
        # Other tools' logs say "timeout" of what they watched themselves: that is their answer.
        return NO_ANSWER if self.intent is not None else ("unanswered",)

    @property
    def open(self) -> bool:
        """Whether something must be found out before anything new is sent (D07)."""
        return self.word == "in doubt" and self.settled is None


class Approval(NamedTuple):
    """What a person answered to a held call."""

    decision: str
    by: str
    reason: str
    expires_at: str | None


class Snapshot(NamedTuple):
    """The workspace snapshot that a checkpoint bound to the journal."""

    seq: int
    turn: int
    id: str
    tree_hash: str


class Record(msgspec.Struct, kw_only=True):
    """The state of a run after some prefix of its events.

    ``logical`` accumulates over the logical hashes of the events, so two records are equal in
    behaviour exactly when it is equal; it is the record's hash.
    """

    run_id: str = ""
    task: str = ""
    harness: str = ""
    status: str = "new"
    turn: int = 0
    last_seq: int = -1
    head_hash: str = ZERO_HASH
    logical: str = ZERO_HASH
    started_at: str = ""
    seed: int = 0
    components: dict[str, Component] = {}
    tools: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    budgets: dict[str, int] = {}
    usage: dict[str, int] = {}
    calls: dict[str, CallState] = {}
    pending_approvals: list[str] = []
    approvals: dict[str, Approval] = {}  # the last answer to each call that was ever held
    questions: dict[str, str] = {}  # by call: what only a person can say
    snapshots: list[Snapshot] = []
    volatile: list[str] = []
    base: str | None = None
    base_hash: str | None = None

    def copy(self) -> Record:
        """A record that can be folded on without touching this one."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        mutable = {k: v.copy() for k, v in fields.items() if isinstance(v, dict | list)}
        return Record(**(fields | mutable))

    def snapshot_at(self, turn: int) -> Snapshot | None:
        """The workspace as the tools of ``turn`` left it: the newest snapshot not after it."""
        past = [snapshot for snapshot in self.snapshots if snapshot.turn <= turn]
        return past[-1] if past else None

    def summary(self) -> dict[str, Json]:
        """The record as plain JSON for people and for ``--json``."""
        return {
            "run_id": self.run_id,
            "task": self.task,
            "status": self.status,
            "turn": self.turn,
            "hash": self.logical,
            "budgets": self.budgets,
            "usage": self.usage,
            "components": {name: part.spec for name, part in self.components.items()},
            "pending_approvals": self.pending_approvals,
            "questions": self.questions,
            "calls": [
                {"id": call.call_id, "name": call.name, "state": call.word, "status": call.status}
                for call in self.calls.values()
            ],
        }
