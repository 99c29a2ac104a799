"""Kills by the thousand: every class of tool at every place, and recovery itself killed (R21-R28).

Each case is a run of three calls. It is killed while one of them is under way; the processes that
recover it are killed too, up to twice, at places that go round; the last one is left alone. After
each death the journal's words are compared with the world, and at the end:

    nothing happened twice · what is called completed happened · what is called not sent did not
    · what is in doubt is put to a person · the world holds nothing that no intent describes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import NamedTuple

from kinds import CALLS, KINDS, Case, Kind, Place, lines_of, record, resume

from branchkit.journal.events import ToolIntent
from branchkit.journal.file import read, verify
from branchkit.record.fold import fold
from branchkit.record.record import Record
from branchkit.testing.crash import Ended, in_child
from branchkit.testing.crash_matrix import warm
from branchkit.testing.effect_service import Contract, Effect, EffectService, effects

PLACES = (
    Place("call.proposed", "before"),
    Place("call.authorized", "before"),
    Place("call.intended", "before"),
    Place("commit.before_write", "before"),
    Place("commit.after_write", "before"),
    Place("commit.after_sync", "before"),
    Place("intent_durable", "before"),
    Place("effect_done", "inside"),
    Place("call.observed", "inside"),
    Place("commit.before_write", "inside"),
    Place("commit.after_write", "inside"),
    Place("call.delivered", "inside"),
    Place("context_durable", "inside"),
    Place("model_answered", "inside"),
)
# Only runs with files take checkpoints: before, between and after the parts of one (R30, F02).
FILES = (
    Place("checkpoint.before_snapshot", "inside"),
    Place("checkpoint.snapshot_durable", "inside"),
    Place("checkpoint.written", "inside"),
)
RECOVERY = (
    Place("resume.locked", "start"),
    Place("settle.begin", "start"),
    Place("settle.found", "start"),
    Place("settle.durable", "start"),
    Place("escalated", "start"),
    Place("resume.written", "start"),
    Place("resume.durable", "start"),
    Place("resume.live", "start"),
    Place("commit.before_write", "start"),
    Place("commit.after_write", "start"),
    Place("intent_durable", "start"),
    Place("effect_done", "start"),
    Place("checkpoint.before_snapshot", "start"),
    Place("checkpoint.snapshot_durable", "start"),
    Place("checkpoint.written", "start"),
)

EXTERNAL: tuple[Kind, ...] = ("plain", "keyed", "probe")
LONGEST_S = 0.2  # a run that nobody disturbs is done by then


class Verdict(NamedTuple):
    """What one case came to. ``problems`` is empty, or the campaign has found something."""

    case: str
    kind: Kind
    kills: int
    ending: str
    effects: int
    problems: list[str]


class Counts(NamedTuple):
    """A campaign in numbers."""

    cases: int
    kills: int
    effects: int
    escalated: int
    problems: list[str]


def run(
    folder: Path,
    workers: Executor,
    *,
    repeats: int,
    first: int = 0,
    kinds: Iterable[Kind] = KINDS,
) -> Counts:
    """``repeats`` cases for each kind and place, numbered from ``first``.

    The number says which call is hit and where the recoveries die, so each is another case.
    """
    turns = range(first, first + repeats)
    return _run(
        folder,
        workers,
        run_case,
        kinds,
        lambda kind: [(place, number) for place in range(len(places(kind))) for number in turns],
    )


def places(kind: Kind) -> tuple[Place, ...]:
    """Where a run of that kind is killed first."""
    return PLACES + FILES if kind == "workspace" else PLACES


def run_at_moments(
    folder: Path, workers: Executor, *, repeats: int, kinds: Iterable[Kind] = KINDS
) -> Counts:
    """``repeats`` cases for each kind, killed from outside, most of them soon after the start."""
    moments = [(n, repeats) for n in range(repeats)]
    return _run(folder, workers, run_moment, kinds, lambda _: moments)


def _run(
    folder: Path,
    workers: Executor,
    one_case: Callable[[Path, Kind, str, int, int], Verdict],
    kinds: Iterable[Kind],
    numbers: Callable[[Kind], Sequence[tuple[int, int]]],
) -> Counts:
    verdicts: list[Verdict] = []
    for kind in kinds:
        db = folder / f"{kind}.sqlite"
        contract: Contract = "keyed" if kind == "keyed" else "plain"
        with EffectService(
            db, contract=contract, probe=kind == "probe", in_process=True
        ) as service:
            futures = [
                workers.submit(one_case, folder, kind, service.url, *pair) for pair in numbers(kind)
            ]
            verdicts += [future.result() for future in futures]
    return Counts(
        cases=len(verdicts),
        kills=sum(verdict.kills for verdict in verdicts),
        effects=sum(verdict.effects for verdict in verdicts),
        escalated=sum(verdict.ending.startswith("waiting") for verdict in verdicts),
        problems=[
            f"{verdict.case}: {problem}" for verdict in verdicts for problem in verdict.problems
        ],
    )


def run_case(folder: Path, kind: Kind, url: str, place: int, number: int) -> Verdict:
    """One case, its deaths and its end; in a process with one thread."""
    case = Case(folder / f"{kind}-{place}-{number}", kind, url, at=number % len(CALLS) + 1)
    warm()
    case.folder.mkdir()
    db = folder / f"{kind}.sqlite"
    wanted = places(kind)[place]
    first = in_child(record, case, wanted)
    problems = [] if first.killed else [f"not killed at {wanted}: {first.error}"]
    problems += after_a_death(case, db)
    kills = int(first.killed)
    for turn in range(number % 3):
        at = RECOVERY[(place + 7 * number + 4 * turn) % len(RECOVERY)]
        again = in_child(resume, case, at)
        kills += again.killed
        problems += after_a_death(case, db)
        if not again.killed:
            break
    return _verdict(case, db, kills, problems)


def run_moment(folder: Path, kind: Kind, url: str, number: int, of: int) -> Verdict:
    """One case that is killed from outside, first while it runs, then while it is recovered."""
    case = Case(folder / f"{kind}-{number}", kind, url, at=0)
    warm()
    case.folder.mkdir()
    db = folder / f"{kind}.sqlite"
    moment_s = LONGEST_S * ((number + 1) / of) ** 2
    first = in_child(record, case, None, kill_after_s=moment_s)
    kills, problems = int(first.killed), []
    if case.journal.exists():
        problems += after_a_death(case, db)
        if fold(None, read(case.journal)[0]).status != "completed":
            again = in_child(resume, case, kill_after_s=moment_s)
            kills += again.killed
            problems += after_a_death(case, db)
        return _verdict(case, db, kills, problems)
    # It died before its first event was durable, so nothing can have happened: it is begun anew.
    problems += [f"{row.operation} happened before there was a journal" for row in rows(case, db)]
    return Verdict(case.folder.name, kind, kills, "not begun", 0, problems)


def _verdict(case: Case, db: Path, kills: int, problems: list[str]) -> Verdict:
    last = _at_last(case)
    problems = problems + at_the_end(case, db, last)
    return Verdict(
        case.folder.name, case.kind, kills, str(last.value), len(rows(case, db)), problems
    )


def _at_last(case: Case) -> Ended:
    """The process that is left alone; a run that has ended is not resumed."""
    if fold(None, read(case.journal)[0]).status == "completed":
        return Ended(0, 0, "completed")
    return in_child(resume, case)


def rows(case: Case, db: Path) -> list[Effect]:
    """The effects of this case, as the service counted them."""
    return [one for one in effects(db) if one.operation.startswith(f"{case.folder.name}/")]


def after_a_death(case: Case, db: Path) -> list[str]:
    """What of the journal's words is not true of the world."""
    events, _ = read(case.journal)
    happened = Counter(row.operation for row in rows(case, db))
    problems = [f"{name} happened {n} times" for name, n in happened.items() if n > 1]
    if case.kind not in ("pure", "workspace"):
        problems += _untrue(case, fold(None, events), happened)
    keys = {
        event.payload.idempotency_key for event in events if isinstance(event.payload, ToolIntent)
    }
    problems += [
        f"{row.operation} is described by no intent"
        for row in rows(case, db)
        if row.key not in keys
    ]
    return problems


def _untrue(case: Case, found: Record, happened: Counter[str]) -> list[str]:
    problems = []
    for number, call_id in enumerate(CALLS, 1):
        count = happened[case.operation(number)]
        word = found.calls[call_id].word if call_id in found.calls else "not sent"
        if (word, count) not in {
            ("not sent", 0),
            ("completed", 1),
            ("in doubt", 0),
            ("in doubt", 1),
        }:
            problems.append(f"{call_id} is {word!r} and happened {count} times")
    return problems


def at_the_end(case: Case, db: Path, last: Ended) -> list[str]:
    """What is wrong once nobody kills any more."""
    if last.code != 0:
        return [f"recovery ended with {last.code}: {last.error}"]
    problems = after_a_death(case, db)
    verdict = verify(case.journal)
    if not verdict.ok:
        problems.append(f"the journal is damaged: {verdict.damage}")
    found = fold(None, read(case.journal)[0])
    words = [found.calls[one].word if one in found.calls else "not sent" for one in CALLS]
    if last.value == "completed":
        problems += _incomplete(case, db, words)
    elif case.kind != "plain":
        problems.append(f"a person is asked without need: {last.value}")
    elif words.count("in doubt") != 1 or len(found.questions) != 1 or found.status != "waiting":
        problems.append(f"waits, and shows {words}, {found.questions}, {found.status}")
    else:
        problems += _sent_anyway(case, db)
    return problems


def _incomplete(case: Case, db: Path, words: Sequence[str]) -> list[str]:
    problems = [] if list(words) == ["completed"] * 3 else [f"ended, and its calls are {words}"]
    if case.kind == "workspace":
        lines = lines_of(case)
        if lines != ["begin", "1", "2", "3"]:
            problems.append(f"the file holds {lines}")
    elif case.kind != "pure" and len(rows(case, db)) != 3:
        problems.append(f"three effects were wanted, {len(rows(case, db))} happened")
    return problems


def _sent_anyway(case: Case, db: Path) -> list[str]:
    """One more resume of a run that waits: it has to wait on, and to send nothing."""
    before, size = rows(case, db), case.journal.stat().st_size
    again = in_child(resume, case)
    problems = []
    if not str(again.value).startswith("waiting"):
        problems.append(f"went on without an answer: {again.value or again.error}")
    if rows(case, db) != before:
        problems.append("something was sent while it waited")
    if case.journal.stat().st_size - size > 4096:
        problems.append("waiting makes the journal grow")
    return problems
