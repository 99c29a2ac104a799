"""The crash matrix: four stop points, two contracts of the outer service, some repeats (R25).

    with Workers(2) as workers:
        found = run(naive, folder, workers=workers)
    found.audit.rows            # 45: forty effects and five that happened twice

Each case is a run of its own in a new folder, under an operation id of its own: a scripted model
proposes one call, its tool asks the counting service for one effect, and the process dies by
SIGKILL at the stop point. Two more processes then read the journal one after the other. Then a
policy recovers, in a process of its own. The service's rows are counted by ``audit`` and by nobody
else; what a policy says it did is in the table beside them.

The repeats show that a case comes out the same each time. They are no sample of anything: how often
a run in production crashes at such a point does not follow from them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from branchkit import session as run_of  # now, not once in each process that is forked
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.session import Session, Waiting
from branchkit.errors import BranchkitError, UsageError
from branchkit.harness.tools import Key, ProbeAnswer, Tool, tool
from branchkit.journal.events import Message, Settled, ToolIntent, ToolResult, call_step
from branchkit.journal.file import Writer, read
from branchkit.record.fold import fold
from branchkit.testing.crash import arm, in_child
from branchkit.testing.effect_rows import State, count_rows
from branchkit.testing.effect_service import Audit, Contract, EffectService, effects, perform
from branchkit.testing.effect_service import probe as ask

if TYPE_CHECKING:
    import pandas as pd


class Stop(NamedTuple):
    """A crash point, armed before the call or inside the tool, where it comes by more than once."""

    crash_point: str
    armed: Literal["before", "inside"]


POINTS: dict[str, Stop] = {
    "before the tool start is written": Stop("commit.before_write", "before"),
    "before the external request": Stop("intent_durable", "before"),
    "after the external effect": Stop("effect_done", "before"),
    "after the result is written": Stop("commit.after_sync", "inside"),
}
CONTRACTS: tuple[Contract, ...] = ("plain", "keyed")
CALL = call_step(1, 1)


class Setup(NamedTuple):
    """One case, as its processes are told of it."""

    folder: Path
    point: str
    contract: Contract
    can_ask: bool
    url: str

    @property
    def journal(self) -> Path:
        """The run that is killed."""
        return self.folder / "run.journal.jsonl"

    @property
    def operation(self) -> str:
        """The id of what is to be done once; not the id of a message (N11)."""
        return self.folder.name


class History(NamedTuple):
    """What a process finds that opens the journal: all that recovery has to go by."""

    events: int
    calls: int
    receipts: int
    in_doubt: int
    word: str  # of the call; one that the journal does not know was not sent


class Case(NamedTuple):
    """What came of one case. ``before`` and ``after``: effects, as the service counted them."""

    operation: str
    contract: Contract
    point: str
    exit_code: int
    word: str
    reads_equal: bool
    before: int
    did: str
    after: int


class Matrix(NamedTuple):
    """All cases, and the audit of the service's own rows."""

    cases: list[Case]
    audit: Audit
    databases: list[Path]

    def frame(self) -> pd.DataFrame:
        """One row a case."""
        import pandas as pd

        return pd.DataFrame(self.cases)

    def table(self) -> pd.DataFrame:
        """Effects by contract and stop point: before recovery, after it, and what was done."""
        cases = self.frame()
        cases["point"] = cases["point"].astype("category").cat.set_categories(list(POINTS))
        by_place = cases.groupby(["contract", "point"], observed=True)
        return by_place.agg(
            runs=("operation", "count"),
            word=("word", "first"),
            effects_before=("before", "sum"),
            recovery=("did", "first"),
            effects_after=("after", "sum"),
        )


Policy = Callable[[Setup], str]  # recovers one run; returns in a few words what it did


def run(
    policy: Policy,
    folder: Path,
    *,
    workers: Executor,
    repeats: int = 5,
    can_ask: bool = False,
) -> Matrix:
    """The matrix under ``policy``, which is a function of a module.

    ``can_ask``: the services tell what became of an operation, and the tool has a probe for it.
    Raises UsageError if ``folder`` exists: two series in one folder cannot be told apart.
    """
    if folder.exists():
        raise UsageError(f"{folder.name} exists, and holds another series", hint="name a new one")
    folder.mkdir(parents=True)
    cases: list[Case] = []
    databases = [folder / f"{contract}.sqlite" for contract in CONTRACTS]
    for contract, db in zip(CONTRACTS, databases, strict=True):
        with EffectService(db, contract=contract, probe=can_ask, in_process=True) as service:
            futures = [
                workers.submit(
                    run_case,
                    policy,
                    Setup(
                        folder / _name(contract, point, n), point, contract, can_ask, service.url
                    ),
                    db,
                )
                for point in POINTS
                for n in range(1, repeats + 1)
            ]
            cases += [future.result() for future in futures]
    return Matrix(cases, _sum(databases), databases)


def _name(contract: str, point: str, number: int) -> str:
    return f"{contract}-{list(POINTS).index(point) + 1}-{number}"


def _sum(databases: list[Path]) -> Audit:
    return count_rows(effect.operation for db in databases for effect in effects(db))


def run_case(policy: Policy, setup: Setup, db: Path) -> Case:
    """One case from the first process to the last; in a process with one thread."""
    warm()
    setup.folder.mkdir()
    victim = in_child(record, setup)
    if not victim.killed:
        raise BranchkitError(
            f"{setup.operation} ended with {victim.code} instead of by SIGKILL\n{victim.error}"
        )
    first, second = (in_child(history, setup.journal).result() for _ in range(2))
    before = _count(db, setup.operation)
    did = in_child(policy, setup).result()
    return Case(
        operation=setup.operation,
        contract=setup.contract,
        point=setup.point,
        exit_code=victim.code,
        word=first.word,
        reads_equal=first == second,
        before=before,
        did=did,
        after=_count(db, setup.operation),
    )


@cache
def warm() -> None:
    """Record and resume a run in this process, once.

    Patterns, decoders and schemas are made when first used: each process that is forked from a cold
    one would make them again, and that is more than half of the work of a short run.
    """
    with TemporaryDirectory(prefix="branchkit-warm-") as name:
        nowhere = Setup(Path(name), "", "keyed", False, "http://127.0.0.1:9")  # nobody listens
        tools = [order_tool(nowhere)]
        with run_of(nowhere.journal, model=model_of(nowhere), tools=tools) as session:
            loop(session)
        lines = nowhere.journal.read_bytes().splitlines(keepends=True)
        nowhere.journal.write_bytes(b"".join(lines[:-1]))  # as if killed before its end
        with run_of(nowhere.journal, "resume", model=model_of(nowhere), tools=tools) as session:
            loop(session)


def _count(db: Path, operation: str) -> int:
    return sum(effect.operation == operation for effect in effects(db))


def history(journal: Path) -> History:
    """What the journal says; opens it for writing, as a recovery does, and adds nothing."""
    events, _ = read(journal)
    Writer(journal, run_id=events[0].run_id, now=lambda: "").close()
    events, damage = read(journal)
    if damage:
        raise BranchkitError(f"{journal.name} is damaged after it was taken over: {damage[0]}")
    calls = fold(None, events).calls
    return History(
        events=len(events),
        calls=len(calls),
        receipts=sum(call.result is not None for call in calls.values()),
        in_doubt=sum(call.word == "in doubt" for call in calls.values()),
        word=calls[CALL].word if CALL in calls else "not sent",
    )


def record(setup: Setup) -> None:
    """The run that is killed: one call of a tool with an effect."""
    stop = POINTS[setup.point]

    def before_the_call() -> None:
        if stop.armed == "before":
            arm(stop.crash_point)

    def after_the_effect() -> None:
        if stop.armed == "inside":
            arm(stop.crash_point)

    tools = [order_tool(setup, after_the_effect)]
    with run_of(setup.journal, model=model_of(setup), tools=tools) as session:
        loop(session, before_the_call)


def loop(session: Session, before_the_call: Callable[[], None] = lambda: None) -> str:
    """The harness: the tool-calling loop that everybody writes."""
    messages = [session.input({"role": "user", "content": "Place the order, once."})]
    while (answer := session.model(messages)).calls:
        before_the_call()
        messages += [answer.message, *(session.tool(call) for call in answer.calls)]
    return answer.text


def model_of(setup: Setup) -> Callable[[ModelRequest], Message]:
    """The deterministic model: the order first, then the end."""
    arguments = json.dumps({"operation": setup.operation})
    wanted = {"id": "1", "type": "function", "function": {"name": "order", "arguments": arguments}}
    replies: list[Message] = [
        {"role": "assistant", "content": "", "tool_calls": [wanted]},
        {"role": "assistant", "content": "It is ordered."},
    ]

    def order_then_end(request: ModelRequest) -> Message:
        return replies[min(request.turn, len(replies)) - 1]

    return order_then_end


def order_tool(setup: Setup, after_the_effect: Callable[[], None] = lambda: None) -> Tool:
    """The tool with the effect, which says of its service what is true of it."""

    def order(operation: str, key: Key) -> str:
        receipt = perform(setup.url, operation, key=key).receipt
        after_the_effect()
        return receipt

    def look(arguments: dict[str, Any], _key: str) -> ProbeAnswer:
        known = ask(setup.url, arguments["operation"])
        # What waits in a queue is not done, and will be: "not done" would be a promise.
        words: dict[State, Literal["completed", "not_done", "unknown"]] = {
            "done": "completed",
            "absent": "not_done",
            "queued": "unknown",
        }
        return ProbeAnswer(words[known.state], known.receipt or "")

    keyed = setup.contract == "keyed"
    can_ask = setup.can_ask and not keyed  # with a key nobody has to be asked
    return tool(effect="external", key=keyed, probe=look if can_ask else None)(order)


def naive(setup: Setup) -> str:
    """The policy of the bench: with a receipt nothing, without one a single try (N07).

    It is what an error message "failed, try again" leads to. The former key goes along; whether
    that helps is up to the service's contract.
    """
    events, _ = read(setup.journal)
    if any(isinstance(event.payload, ToolResult) for event in events):
        return "receipt found, nothing sent"
    intents = [event.payload for event in events if isinstance(event.payload, ToolIntent)]
    former_key = intents[0].idempotency_key if intents else f"first-of-{setup.operation}"
    perform(setup.url, setup.operation, key=former_key)
    return "no receipt, sent once more"


def settled(setup: Setup) -> str:
    """Branchkit's own recovery: go on with the run, and settle what is in doubt first (R22)."""
    before = len(read(setup.journal)[0])
    try:
        with run_of(
            setup.journal, "resume", model=model_of(setup), tools=[order_tool(setup)]
        ) as session:
            loop(session)
    except Waiting:
        return "put to a person, nothing sent"
    new = [event.payload for event in read(setup.journal)[0][before:]]
    by = [payload.by for payload in new if isinstance(payload, Settled)]
    sent = any(isinstance(payload, ToolIntent) for payload in new)
    how = {"key": "sent again under its key", "probe": "the service was asked"}
    said = [how[one] for one in by] + (["sent"] if sent else [])
    return ", then ".join(said) or "nothing to settle"
