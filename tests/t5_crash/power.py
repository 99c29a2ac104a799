"""Power cuts on a simulated disk: a run is recorded once, then lost in every way a disk can (R21).

What must hold in every state, after the first and after a second cut during recovery:

    what was acknowledged is there · what is there was written, in that order · an effect that
    happened has its intent · a blob or a snapshot that an event names is there · recovery twice is
    recovery once · the next append works, or the file is refused and nothing of it is lost
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from branchkit import disk
from branchkit.boundary import recording as boundary
from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.boundary.recording import Recording, SnapshotFacts
from branchkit.boundary.session import Session
from branchkit.boundary.settlement import Observation, Tools
from branchkit.errors import BranchkitError, JournalDamaged, JournalPoisoned
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Checkpoint, InputReceived, ToolIntent, ToolResult
from branchkit.journal.file import Writer, read, verify
from branchkit.testing.simulated_disk import Recorder, State, Step, recorded, states

JOURNAL = "run.journal.jsonl"
TURNS = 3
DECLARED = [
    {"type": "function", "effect": "external", "function": {"name": "act", "parameters": {}}}
]


class Lost(NamedTuple):
    """A run before its power cuts: the steps, and every line that was ever written."""

    disk: Recorder
    lines: list[bytes]


class Counts(NamedTuple):
    """A campaign in numbers; ``problems`` says what was found, in which state."""

    states: int
    refused: int
    problems: list[str]


class _Model:
    spec = "function:scripted"

    def describe(self) -> dict[str, Any]:
        return {}

    def reply(self, request: ModelRequest) -> ModelReply:
        call = {"id": "c", "type": "function", "function": {"name": "act", "arguments": "{}"}}
        message = {"role": "assistant", "content": f"turn {request.turn}", "tool_calls": [call]}
        return ModelReply(message=message, finish_reason="", usage={}, served_model=self.spec)

    def close(self) -> None:
        """Nothing is held."""


def lost(folder: Path, seed: int, mutant: Callable[[Recorder], None] | None = None) -> Lost:
    """A run of three turns in ``folder``; ``mutant`` breaks something first, for as long as it."""
    size = random.Random(seed).choice((10, 1500, 5000))  # inline, inline over sectors, a blob
    with recorded(folder) as made, pytest.MonkeyPatch.context() as patch:
        _note_acknowledgements(made, patch)
        if mutant is not None:
            mutant(made)
        try:
            _run(folder, made, size)
        except JournalPoisoned:
            made.note("poisoned")
    path = folder / JOURNAL
    return Lost(made, path.read_bytes().splitlines(keepends=True) if path.exists() else [])


def _run(folder: Path, made: Recorder, size: int) -> None:
    writer = Writer(folder / JOURNAL, run_id="r", now=lambda: "2026-01-01T00:00:00.000000+00:00")
    taken = 0

    def act(_name: str, _arguments: Mapping[str, Any], turn: int, _key: str) -> Observation:
        made.note("effect", f"t{turn:04d}.1")
        return Observation("completed", f"{turn} " + "x" * size)

    def snapshot() -> SnapshotFacts:
        nonlocal taken
        taken += 1
        disk.write_durably(folder / f"snapshot-{taken}", b"files")
        return SnapshotFacts(f"snapshot-{taken}", "sha256:0", 1, 5)

    mode = Recording(
        writer, Blobs(folder / "blobs"), model=_Model(), tools=Tools(act), snapshot=snapshot,
        clock=lambda _turn: "2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    session = Session(mode, tools=DECLARED)
    session.begin(InputReceived(message={"role": "user", "content": "go"}))
    context: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for _ in range(TURNS):
        reply = session.model(context)
        context += [reply.message, *(session.tool(call) for call in reply.calls)]
    session.finish("completed")
    writer.close()


def _note_acknowledgements(made: Recorder, patch: pytest.MonkeyPatch) -> None:
    real = Writer.commit

    def commit(self: Writer) -> None:
        wanted = self.seq
        real(self)
        made.note("ack", wanted)

    patch.setattr(Writer, "commit", commit)


def check(run: Lost, seeds: range, folder: Path, *, again: int = 40, first: bool = False) -> Counts:
    """Every state of the run for each of ``seeds``; after some of them recovery is cut too.

    One state in ``again`` has its own power cuts during recovery checked as well. ``first``: stop
    at the first problem.
    """
    done = refused = 0
    problems: list[str] = []
    for seed in seeds:
        for state in states(run.disk.steps, seed):
            place = folder / "state"
            found = _problems(run, state, place, cut_again=done % again == 0)
            refused += found.refused
            done += found.states
            problems += [f"after step {state.after}, {state.how}: {p}" for p in found.problems]
            if problems and first:
                return Counts(done, refused, problems)
    return Counts(done, refused, problems)


def campaign(seed: int, folder: Path) -> Counts:
    """One run and all its states; for a worker process."""
    for name in ("run", "states"):
        (folder / name).mkdir(parents=True)
    found = check(lost(folder / "run", seed), range(seed, seed + 1), folder / "states")
    shutil.rmtree(folder)
    return found


def survives(name: str, folder: Path) -> str:
    """The mutant's name if no state shows that it is broken, else nothing."""
    place = folder / name.replace(" ", "-")
    for each in ("run", "states"):
        (place / each).mkdir(parents=True)
    with mutated(name) as mutant:
        run = lost(place / "run", 1, mutant)
    found = check(run, range(1), place / "states", again=10**6, first=True)
    return "" if found.problems else name


def _problems(run: Lost, state: State, place: Path, *, cut_again: bool) -> Counts:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    state.put(place)
    problems = list(_wrong(run, state, place))
    good = _good(place / JOURNAL)
    with recorded(place) as made:
        problem = _recover(run, state, place)
    refused = problem == "refused"
    problems += [problem] if problem and not refused else []
    total = 1
    if cut_again and not refused:
        before, steps = _with_what_was_there(state, made)
        for second in states([*before, *steps], state.after, torn=1, start=len(before)):
            elsewhere = place.parent / "again"
            shutil.rmtree(elsewhere, ignore_errors=True)
            elsewhere.mkdir()
            second.put(elsewhere)
            total += 1
            problems += [f"recovery cut: {p}" for p in _wrong(run, state, elsewhere, before=good)]
    return Counts(total, refused, problems)


def _with_what_was_there(state: State, made: Recorder) -> tuple[list[Step], list[Step]]:
    """Steps that make the files that a recovery found, safe; and the steps of the recovery."""
    numbers = {step.name: step.file for step in made.steps if step.what == "create"}
    before: list[Step] = []
    for index, (name, content) in enumerate(state.files.items()):
        file = numbers.get(name, 1000 + index)
        before += [
            Step("create", name, file),
            Step("write", file=file, data=content),
            Step("sync", file=file),
            Step("sync_dir", str(Path(name).parent)),
        ]
    known = {step.name for step in before if step.what == "create"}
    rest = [s for s in made.steps if not (s.what == "create" and s.name in known)]
    return before, rest


def _wrong(run: Lost, state: State, place: Path, *, before: bytes | None = None) -> Iterator[str]:
    """What does not hold of the files in ``place``; a recovery may have appended to ``before``."""
    path = place / JOURNAL
    acknowledged = max((value for name, value in state.notes if name == "ack"), default=0)
    if not path.exists():
        if acknowledged:
            yield f"the journal is gone, {acknowledged} events were acknowledged"
        return
    verdict = verify(path)
    if verdict.events < acknowledged:
        yield f"{verdict.events} events are left of {acknowledged} acknowledged"
    good = path.read_bytes()[: verdict.end]
    written = b"".join(run.lines)
    if not written.startswith(good) and (before is None or not good.startswith(before)):
        yield "what is there was never written"
    events, _damage = read(path)
    intents = {e.payload.call_id for e in events if isinstance(e.payload, ToolIntent)}
    for name, value in state.notes:
        if name == "effect" and value not in intents:
            yield f"the effect of {value} has no intent"
    blobs = Blobs(place / "blobs")
    for event in events:
        if isinstance(event.payload, ToolResult) and event.payload.blob:
            try:
                blobs.get(event.payload.blob)
            except (KeyError, BranchkitError):
                yield f"the blob of {event.payload.call_id} is gone"
        if isinstance(event.payload, Checkpoint):
            snapshot = place / event.payload.snapshot
            if not snapshot.exists() or snapshot.read_bytes() != b"files":
                yield f"{event.payload.snapshot} is gone"


def _good(path: Path) -> bytes:
    return path.read_bytes()[: verify(path).end] if path.exists() else b""


def _recover(run: Lost, state: State, place: Path) -> str:
    """Open the journal for writing, append, close; twice. What went wrong, "refused" apart."""
    path = place / JOURNAL
    if not path.exists():
        return ""
    found = verify(path)
    # A last line of which only the newline is missing is whole: it gets one.
    before = found.events + any(one.code == "lost_newline" for one in found.damage)
    for number in (1, 2):
        try:
            writer = Writer(path, run_id="r", now=lambda: "2026-01-01T00:00:01.000000+00:00")
        except JournalDamaged:
            # Holes before good lines: nobody can tell them from damage. Nothing is cut off.
            return "refused" if number == 1 else "recovered and then refused"
        if writer.seq != before + number - 1:
            return f"opened at {writer.seq}, not {before + number - 1}"
        writer.append(InputReceived(message={"role": "user", "content": "on"}), turn=0, step_id="t")
        writer.close()
    found = verify(path)
    return "" if found.ok and found.events == before + 2 else "the next append does not verify"


@contextmanager
def mutated(name: str) -> Iterator[Callable[[Recorder], None]]:
    """What breaks our own code in the way of that name, while the block lasts."""
    with pytest.MonkeyPatch.context() as patch:
        yield {mutant: make(patch) for mutant, make in MUTANTS.items()}[name]


def _no_fdatasync(patch: pytest.MonkeyPatch) -> Callable[[Recorder], None]:
    return lambda _made: patch.setattr(disk, "fdatasync", lambda _fd: None)


def _no_directory_fsync(patch: pytest.MonkeyPatch) -> Callable[[Recorder], None]:
    return lambda _made: patch.setattr(disk, "fsync_dir", lambda _directory: None)


def _ack_before_sync(patch: pytest.MonkeyPatch) -> Callable[[Recorder], None]:
    def apply(made: Recorder) -> None:
        real = Writer.commit

        def commit(self: Writer) -> None:
            made.note("ack", self.seq)
            real(self)

        patch.setattr(Writer, "commit", commit)

    return apply


def _intent_after_send(patch: pytest.MonkeyPatch) -> Callable[[Recorder], None]:
    def send(commit: Callable[[], None], effect: Callable[[], Any]) -> Any:
        result = effect()
        commit()
        return result

    return lambda _made: patch.setattr(boundary, "send", send)


def _checkpoint_before_snapshot(patch: pytest.MonkeyPatch) -> Callable[[Recorder], None]:
    def apply(_made: Recorder) -> None:
        late: list[tuple[Path, bytes]] = []
        real, commit = disk.write_durably, Writer.commit

        def write_durably(path: Path, data: bytes) -> None:
            if path.name.startswith("snapshot"):
                late.append((path, data))
            else:
                real(path, data)

        def then(self: Writer) -> None:
            commit(self)
            while late:
                real(*late.pop())

        patch.setattr(disk, "write_durably", write_durably)
        patch.setattr(Writer, "commit", then)

    return apply


def _retry_after_failure(patch: pytest.MonkeyPatch) -> Callable[[Recorder], None]:
    def apply(made: Recorder) -> None:
        def sync(_self: Writer, fd: int) -> None:
            try:
                disk.fdatasync(fd)
            except OSError:
                disk.fdatasync(fd)

        patch.setattr(Writer, "_sync", sync)
        made.fail_sync(JOURNAL, 3)

    return apply


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], Callable[[Recorder], None]]] = {
    "no fdatasync": _no_fdatasync,
    "no fsync of the directory": _no_directory_fsync,
    "acknowledged before it is synced": _ack_before_sync,
    "intent after the send": _intent_after_send,
    "checkpoint before its snapshot": _checkpoint_before_snapshot,
    "retry after a failed fdatasync": _retry_after_failure,
}
