"""Why a branch left the record: one of five kinds, and a sentence for a person (R62, I01, I05).

    swap          the component that this arm swapped
    model_call    the model chose differently from the same context (sampling, serving, floats)
    model_drift   as model_call, and another model than the record's served the reply
    harness       our own code: assembled another context, parsed otherwise, stopped or went on
    environment   the world answered the same action differently

The vectors hold hashes, so the cause is read from *what differs first*. Within a turn things happen
in this order: context, reply, action, observation, workspace. A turn's context is an accumulator
over all before it, so equal contexts at t_div mean that nothing earlier can have reached the model.

1. Contexts equal at t_div: the model saw the same. What acts between context and action is the
   model (``model``, ``sampling``), or our code behind it (``parser``, ``policy``), or, on the first
   live turn alone, a given reply (``decision``: it is over after that turn).
2. Contexts differ at t_div. Let u be the turn where they begin to differ (and stay so until t_div).
   All actions before u are equal. Then the first of these that holds:
   a. an observation or a workspace before u differs: environment, except where the swap is one
      that shapes observations (``observation``, ``tools``, ``policy``);
   b. the swap shapes contexts (``prompt``, ``truncation``, ``compaction``, ``tools``,
      ``observation``: the swapped result belongs to the turn before the first live one): swap;
   c. u lies after the first live turn, and the reply of u-1 differs in words only: the model's
      side, judged as in 1. A swapped model whose first effect is another wording ends here, and so
      does a control arm at temperature 0.7. If the replies are not known, a swap of the model's
      side is believed, and so is a change of the served model's name;
   d. harness. A context that differs on the *first* live turn is there too: no reply of the branch
      can have shaped it, whatever of the model's side was swapped.
3. One of the two has no turn t_div. Its context cannot be compared, so we judge by the last common
   turn: if contexts differ there, or something before differs, as in 2. Else the same was seen
   and done, and only the going on differs. That is the loop's (harness), unless the swap takes part
   in it: ``parser`` and ``policy`` may end a run, and a swapped ``model`` or ``sampling`` may fail
   to reply at all. An end by a limit is the loop's in any case.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from branchkit.divergence.align import TurnHashes, Vector, by_turn, first_divergence, first_live
from branchkit.errors import UsageError

Kind = Literal["swap", "model_call", "model_drift", "harness", "environment"]

KINDS: tuple[Kind, ...] = ("swap", "model_call", "model_drift", "harness", "environment")

REPLY = frozenset({"model", "sampling"})
BEHIND_REPLY = frozenset({"parser", "policy"})
CONTEXT = frozenset({"prompt", "truncation", "compaction", "tools", "observation"})
OBSERVES = frozenset({"observation", "tools", "policy"})
COMPONENTS = REPLY | BEHIND_REPLY | CONTEXT | {"decision"}


class Cause(NamedTuple):
    """Why the branch left the record at ``turn``; ``because`` is one sentence for a person."""

    turn: int
    kind: Kind
    because: str


class _Fork(NamedTuple):
    """What every rule looks at: both sides by turn, the first live turn, t_div, the swap."""

    branch: dict[int, TurnHashes]
    record: dict[int, TurnHashes]
    start: int
    t_div: int
    swapped: str | None

    def differs(self, turn: int, field: str) -> bool:
        """Whether both sides know ``field`` of ``turn`` and it is not the same."""
        if turn not in self.branch or turn not in self.record:
            return False
        left, right = getattr(self.branch[turn], field), getattr(self.record[turn], field)
        return left is not None and right is not None and left != right

    def known(self, turn: int, field: str) -> bool:
        sides = (self.branch.get(turn), self.record.get(turn))
        return all(side is not None and getattr(side, field) is not None for side in sides)

    def cause(self, kind: Kind, because: str) -> Cause:
        return Cause(self.t_div, kind, because)

    def swap(self, because: str) -> Cause:
        return self.cause("swap", f"the swapped {self.swapped} did it: {because}")


def cause(
    branch: Vector,
    record: Vector,
    *,
    swapped: str | None,
    start: int | None = None,
    limited: bool = False,
) -> Cause | None:
    """The cause of the first divergence of ``branch`` from ``record``; None if there is none.

    ``swapped`` is the arm's component, None for the control arm; UsageError for an unknown one.
    ``start`` as in ``first_divergence``. ``limited``: the shorter of the two was ended by one of
    its limits or by a person, which the hashes cannot show.
    """
    if swapped is not None and swapped not in COMPONENTS:
        names = ", ".join(sorted(COMPONENTS))
        raise UsageError(f"{swapped!r} is not a component", hint=f"components: {names}")
    t_div = first_divergence(branch, record, start=start)
    if t_div is None:
        return None
    live = first_live(branch, record, start)
    fork = _Fork(by_turn(branch), by_turn(record), live, t_div, swapped)
    if t_div not in fork.branch or t_div not in fork.record:
        return _one_ended(fork, limited)
    if fork.differs(t_div, "context"):
        return _other_context(fork, _parting(fork, t_div))
    return _same_context(fork)


def _same_context(fork: _Fork) -> Cause:
    """Rule 1: the model saw the same at t_div."""
    turn = fork.t_div
    seen = f"turn {turn} had the record's context and chose another action"
    if fork.swapped in BEHIND_REPLY or (fork.swapped == "decision" and turn == fork.start):
        return fork.swap(seen)
    if fork.known(turn, "reply") and not fork.differs(turn, "reply"):
        # The model said the very same, so whatever made another action of it is our own code.
        return fork.cause("harness", f"turn {turn} had the record's reply, yet another action")
    if fork.swapped in REPLY:
        return fork.swap(seen)
    return _model_side(fork, turn, seen)


def _other_context(fork: _Fork, begins: int) -> Cause:
    """Rule 2: contexts differ from turn ``begins`` on; every action before it was equal."""
    found = _upstream(fork, begins)
    if found is not None:
        return found
    where = f"the context of turn {begins} was assembled differently"
    if begins == fork.start:
        where += " before the branch's first reply"
    return fork.cause("harness", f"{where}, with the same replies and results before it")


def _upstream(fork: _Fork, begins: int) -> Cause | None:
    """What before or at turn ``begins`` explains another context there: 2a, 2b, 2c, or None."""
    before = begins - 1
    for turn in range(fork.start, begins):
        for field, noun in (("observation", "result"), ("workspace", "workspace")):
            if fork.differs(turn, field):
                seen = f"turn {turn} did the same and the {noun} was another"
                if fork.swapped in OBSERVES:
                    return fork.swap(seen)
                return fork.cause("environment", seen)
    if fork.swapped in CONTEXT and fork.differs(begins, "context"):
        return fork.swap(f"the context of turn {begins} is the first that differs")
    if begins == fork.start:
        return None
    return _wording(fork, before)


def _wording(fork: _Fork, turn: int) -> Cause | None:
    """2c: turn ``turn`` chose the same; did its reply, in other words, change what came after?"""
    seen = f"the reply of turn {turn} chose the same in other words, which later turns read"
    said_by_swap = fork.swapped in REPLY or (fork.swapped == "decision" and turn == fork.start)
    if fork.differs(turn, "reply"):
        return fork.swap(seen) if said_by_swap else _model_side(fork, turn, seen)
    if fork.swapped in BEHIND_REPLY and fork.differs(turn + 1, "context"):
        return fork.swap(f"turn {turn} chose the same, and the next context differs")
    if fork.known(turn, "reply"):
        return None
    if said_by_swap and fork.differs(turn + 1, "context"):
        return fork.swap(f"turn {turn} chose the same, and the next context differs")
    if fork.differs(turn, "model") and fork.differs(turn + 1, "context"):
        return _model_side(fork, turn, f"the context after turn {turn} differs")
    return None


def _one_ended(fork: _Fork, limited: bool) -> Cause:
    """Rule 3: only one side has turn t_div; all actions of the common turns are equal."""
    turn, last = fork.t_div, fork.t_div - 1
    goes_on = turn in fork.branch
    seen = f"the {'record' if goes_on else 'branch'} has no turn {turn}"
    if limited:
        return fork.cause("harness", f"{seen}: a limit or a person ended it")
    if turn == fork.start:
        # Nothing is common. A given reply or result *is* the turn that the record never had.
        if fork.swapped in {"decision", "observation"}:
            return fork.swap(f"{seen}, and the branch starts from it")
        if goes_on or fork.swapped not in REPLY | BEHIND_REPLY:
            return fork.cause("harness", f"{seen}, so there is nothing to compare with")
    elif fork.differs(last, "context"):
        return _other_context(fork, _parting(fork, last))
    else:
        found = _upstream(fork, turn)
        if found is not None:
            return found
    may_end = BEHIND_REPLY if goes_on else BEHIND_REPLY | REPLY
    if fork.swapped in may_end:
        return fork.swap(f"{seen}, and all before it was the same")
    return fork.cause("harness", f"{seen}, and all before it was the same: the loop ended it")


def _model_side(fork: _Fork, turn: int, seen: str) -> Cause:
    """model_drift where another model served ``turn``, else model_call."""
    if fork.differs(turn, "model"):
        was, now = fork.record[turn].model, fork.branch[turn].model
        return fork.cause("model_drift", f"{seen}; {now} served it and not {was}")
    return fork.cause("model_call", f"{seen}; the same model varies from call to call")


def _parting(fork: _Fork, turn: int) -> int:
    """The turn where contexts begin to differ and stay so until ``turn``.

    Not simply the first difference: a compaction may make contexts equal again, and what was
    different before that has then not reached the model.
    """
    while turn > fork.start and fork.differs(turn - 1, "context"):
        turn -= 1
    return turn
