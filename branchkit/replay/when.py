"""``when``: which turn did it? A check on every turn's recorded workspace, no model (R65)."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import NamedTuple

from branchkit.errors import UsageError
from branchkit.harness.sandbox import Sandbox
from branchkit.harness.standard_tools import WORKSPACE
from branchkit.journal.events import ToolProposed
from branchkit.journal.format import Json, canonical
from branchkit.record.record import Snapshot
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Workspaces
from branchkit.workspace.history import Taken, Version, history

CHECK_TIMEOUT_S = 120.0
NO_VERDICT = 126  # the shell's own codes for "cannot be run" and "killed" begin here
Progress = Callable[[int, int, str], None]


class TurnResult(NamedTuple):
    """The check after one turn; ``exit`` is None if it ran out of time or was never run."""

    turn: int
    exit: int | None


class When(NamedTuple):
    """``turn`` is the first whose end gives another verdict than the start did; None if none."""

    check: str
    turn: int | None
    calls: list[str]  # what that turn's calls were
    results: list[TurnResult]

    def to_json(self) -> dict[str, Json]:
        """The stable fields of ``branchkit when --json``."""
        return {
            "turn": self.turn,
            "check": self.check,
            "calls": self.calls,
            "results": [result._asdict() for result in self.results],
        }


class Blame(NamedTuple):
    """The last change of a path, and the calls of the turn that made it."""

    version: Version
    calls: list[str]


def when(
    recorded: Recorded,
    check: str,
    *,
    workspaces: Workspaces,
    bisect: bool = False,
    isolated: bool = True,
    timeout_s: float = CHECK_TIMEOUT_S,
    progress: Progress = lambda _done, _all, _what: None,
) -> When:
    """Run ``check`` on the workspace as each turn left it, in parallel; equal trees are run once.

    ``bisect`` looks at few of them and finds *a* turn where the verdict changes, which is the only
    one if it changes once. A check that runs out of ``timeout_s`` or exits with 126 or more gives
    no verdict and is passed over. Raises UsageError for a run without recorded workspace.

    Nothing of it is left when this ends, also by Ctrl-C: running checks are killed then.
    """
    snapshots = _snapshots(recorded)
    recorded.adopt_workspace(workspaces)
    states = _distinct(snapshots)
    total = len({one.tree_hash for one in states})
    prefix = recorded.record.run_id[:8]
    with _Checks(prefix, check, workspaces, isolated, timeout_s, progress, total) as checks:
        if bisect:
            _bisect(checks, states)
        else:
            checks.run(states)
    exits = checks.exits
    results = [
        TurnResult(turn, exits.get(_at(snapshots, turn).tree_hash))
        for turn in range(recorded.turns + 1)
    ]
    turn = _first_change(states, exits)
    calls = calls_of(recorded, turn) if turn is not None else []
    return When(check, turn, calls, results)


def blame(recorded: Recorded, path: str, *, workspaces: Workspaces) -> Blame:
    """Which turn and call last changed ``path``. Raises UsageError if the run never had it."""
    last = versions(recorded, path, workspaces=workspaces)[-1]
    return Blame(last, calls_of(recorded, last.turn))


def versions(recorded: Recorded, path: str, *, workspaces: Workspaces) -> list[Version]:
    """The versions of ``path`` over the run, oldest first; /workspace/PATH is that path too."""
    snapshots = _snapshots(recorded)
    recorded.adopt_workspace(workspaces)
    taken = [Taken(one.id, one.turn) for one in snapshots]
    base = workspaces.snapshot(snapshots[0].id).base
    inside = path.removeprefix(WORKSPACE) if f"{path}/".startswith(f"{WORKSPACE}/") else path
    return history(workspaces, base=base, taken=taken, path=inside)


def calls_of(recorded: Recorded, turn: int) -> list[str]:
    """The calls of a turn as ``id name arguments``; in a branch's prefix they are its parent's."""
    run = recorded
    while run.parent is not None and turn <= run.fork_turn:
        run = run.parent
    return [
        f"{event.payload.call_id} {event.payload.name} {_arguments(event.payload)}"
        for event in run.events
        if event.turn == turn and isinstance(event.payload, ToolProposed)
    ]


def _arguments(call: ToolProposed) -> str:
    """As the model would write them; a call that could not be read has its reason there."""
    if call.arguments is None:
        return f"({call.problem})"
    return canonical(call.arguments).decode()


def _snapshots(recorded: Recorded) -> list[Snapshot]:
    found = recorded.record.snapshots
    if not found:
        raise UsageError(
            f"{recorded.path.name} has no recorded workspace",
            hint="only runs that branchkit recorded know their files turn by turn",
        )
    return found


def _at(snapshots: list[Snapshot], turn: int) -> Snapshot:
    return [one for one in snapshots if one.turn <= turn][-1]


def _distinct(snapshots: list[Snapshot]) -> list[Snapshot]:
    """The snapshots that differ from the one before."""
    pairs = zip([None, *snapshots], snapshots, strict=False)
    return [two for one, two in pairs if one is None or one.tree_hash != two.tree_hash]


def _verdict(code: int | None) -> bool | None:
    """Whether a check that ended so says yes; None if it says nothing."""
    return None if code is None or not 0 <= code < NO_VERDICT else code == 0


def _first_change(states: list[Snapshot], exits: dict[str, int | None]) -> int | None:
    """The turn of the first known verdict that differs from the first one."""
    said = [(one.turn, _verdict(exits.get(one.tree_hash))) for one in states]
    known = [(turn, verdict) for turn, verdict in said if verdict is not None]
    return next((turn for turn, verdict in known if verdict != known[0][1]), None)


def _bisect(checks: _Checks, states: list[Snapshot]) -> None:
    """Run the check where a change of the verdict must lie; states without one are passed over."""
    low, high = 0, len(states) - 1
    while low < high and checks.verdict(states[low]) is None:
        low += 1
    while low < high and checks.verdict(states[high]) is None:
        high -= 1
    first = checks.verdict(states[low])
    if first is None or checks.verdict(states[high]) == first:
        return
    between = list(range(low + 1, high))
    while between:
        middle = between[len(between) // 2]
        match checks.verdict(states[middle]):
            case None:
                between.remove(middle)
            case verdict if verdict == first:
                between = [at for at in between if at > middle]
            case _:
                between = [at for at in between if at < middle]


class _Checks:
    """The check's exit codes by tree hash; equal trees share one run.

    The checks run in threads, where no KeyboardInterrupt can come between the making of a branch
    and its removal. Leaving by an exception kills those that run, and waits for the removals.
    """

    def __init__(
        self,
        prefix: str,
        check: str,
        workspaces: Workspaces,
        isolated: bool,
        timeout_s: float,
        progress: Progress,
        total: int,
    ) -> None:
        self._prefix, self._check, self._workspaces = prefix, check, workspaces
        self._isolated, self._timeout_s = isolated, timeout_s
        self._progress, self._total = progress, total
        self.exits: dict[str, int | None] = {}
        self._pool = ThreadPoolExecutor(os.cpu_count() or 1)
        self._lock = threading.Lock()  # between starting a check and stopping all of them
        self._stopped = False
        self._running: set[Sandbox] = set()

    def __enter__(self) -> _Checks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._stop()
        self._pool.shutdown(wait=True)

    def run(self, states: list[Snapshot]) -> None:
        """Run the check on what was not run yet."""
        unknown = {one.tree_hash: one for one in states if one.tree_hash not in self.exits}
        waiting = {self._pool.submit(self._run, one): one for one in unknown.values()}
        for done in as_completed(waiting):
            state = waiting[done]
            self.exits[state.tree_hash] = done.result()
            self._progress(len(self.exits), self._total, f"turn {state.turn}")

    def verdict(self, state: Snapshot) -> bool | None:
        """What the check says of one state."""
        self.run([state])
        return _verdict(self.exits[state.tree_hash])

    def _run(self, state: Snapshot) -> int | None:
        name = f"{self._prefix}-when-{state.turn}-{uuid.uuid4().hex[:8]}"
        branch = self._workspaces.create(name, snapshot=state.id)
        try:
            with Sandbox(branch.path, isolated=self._isolated) as sandbox:
                with self._lock:
                    if self._stopped:
                        return None
                    self._running.add(sandbox)
                try:
                    return sandbox.check(self._check, timeout_s=self._timeout_s).exit_code
                finally:
                    with self._lock:
                        self._running.discard(sandbox)
        finally:
            branch.drop()

    def _stop(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._stopped = True
            for sandbox in self._running:
                # Not close(): that waits for the check to end.
                if sandbox.server_pid is not None:
                    with suppress(ProcessLookupError):
                        os.kill(sandbox.server_pid, signal.SIGKILL)
