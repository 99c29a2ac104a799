"""Which turn did it: ``when``, ``blame`` and ``history`` on recorded workspaces (R65)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from branchkit.errors import UsageError
from branchkit.harness.components import component
from branchkit.harness.record import record_run
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Component
from branchkit.replay.portable import pack
from branchkit.replay.recorded import Recorded
from branchkit.replay.when import blame, calls_of, versions, when
from branchkit.workspace import Workspaces

SAMPLE = (
    Path(__file__).resolve().parents[2]
    / "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"
)
CHECK = "git show-ref -q --verify refs/heads/release/2.1"
REF = ".git/refs/heads/release/2.1"

# One bash call a turn; each step is what a shell does to files without any edit tool.
STEPS = [
    "echo one > notes.txt",
    "echo three-turns-on >> log",
    "sed -i s/one/two/ notes.txt",
    "rm notes.txt",
    "echo one > notes.txt",
    "touch -d 2001-01-01 notes.txt",
    "mkdir -p made/deep && echo x > made/deep/file",
    "mv made moved",
]


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    """A store of this module's own; its daemon is stopped at the end."""
    path = tmp_path_factory.mktemp("when") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHKIT_STORE", str(path))
        opened = Workspaces.open(path)
        yield opened
        opened.stop()


@pytest.fixture(scope="module")
def sample(workspaces: Workspaces) -> Iterator[Recorded]:
    run = Recorded.open(SAMPLE)
    yield run
    run.close()


@pytest.fixture
def nothing_stays(workspaces: Workspaces) -> Iterator[None]:
    """No branch is there after the test that was not there before."""
    before = {branch.name for branch in workspaces.branches()}
    yield
    assert {branch.name for branch in workspaces.branches()} == before


def rulebook(steps: list[str]) -> str:
    """A stand-in that gives these commands, one a turn."""
    rules = [
        f"[[rule]]\nwhy = 'step {n}'\nunless = 'step-{n}-'\ncall = 'bash'\n"
        f"arguments = {{ command = '''{step} # step-{n}-''' }}\n"
        for n, step in enumerate(steps, 1)
    ]
    return "\n".join([*rules, "[[rule]]\nwhy = 'done'\nsay = 'done'\n"])


def record(folder: Path, steps: list[str], workspaces: Workspaces) -> Recorded:
    base, journal = folder / "base", folder / "steps.journal.jsonl"
    base.mkdir()
    (base / "log").write_text("begin\n")
    parts = {
        "model": Component(spec="rulebook:steps", content=rulebook(steps)),
        "sampling": Component(spec="slip:0"),
        "tools": component("tools", "bash"),
    }
    record_run(
        journal, "follow the steps", base=base, workspaces=workspaces,
        blobs=Blobs(workspaces.store / "blobs"), components=parts,
        started_at="2026-01-01T00:00:00+00:00", max_turns=len(steps) + 2,
    )  # fmt: skip
    pack(Recorded.open(journal), workspaces)
    return Recorded.open(journal)


@pytest.fixture(scope="module")
def steps(workspaces: Workspaces, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    run = record(tmp_path_factory.mktemp("steps"), STEPS, workspaces)
    yield run
    run.close()


def test_the_turn_that_deleted_the_branch(
    sample: Recorded, workspaces: Workspaces, nothing_stays: None
) -> None:
    """R65: turn 23 is named, in seconds, and bisection agrees on fewer checks."""
    started_s = time.monotonic()
    seen: list[str] = []
    found = when(
        sample, CHECK, workspaces=workspaces, progress=lambda done, _all, what: seen.append(what)
    )
    assert found.turn == 23
    assert found.calls == ['t0023.1 delete_branch {"name":"release/2.1"}']
    assert [one.exit for one in found.results] == [0] * 23 + [1] * 4
    assert len(seen) == 13  # the workspace changed twelve times
    assert time.monotonic() - started_s < 60

    halved: list[str] = []
    again = when(
        sample, CHECK, workspaces=workspaces, bisect=True,
        progress=lambda done, _all, what: halved.append(what),
    )  # fmt: skip
    assert (again.turn, again.calls) == (found.turn, found.calls)
    assert len(halved) <= 6
    known = {one.turn: one.exit for one in again.results if one.exit is not None}
    assert known.items() <= {one.turn: one.exit for one in found.results}.items()
    assert {22, 23} <= known.keys()


@pytest.mark.parametrize("bisect", [False, True])
@pytest.mark.parametrize(("check", "code"), [("true", 0), ("exit 3", 3), ("exit 127", 127)])
def test_a_check_that_never_changes(
    steps: Recorded,
    workspaces: Workspaces,
    nothing_stays: None,
    bisect: bool,
    check: str,
    code: int,
) -> None:
    found = when(steps, check, workspaces=workspaces, bisect=bisect)
    assert (found.turn, found.calls) == (None, [])
    assert {one.exit for one in found.results} <= {code, None}
    assert found.results[0].exit == code
    assert [one.turn for one in found.results] == list(range(steps.turns + 1))


@pytest.mark.parametrize("bisect", [False, True])
def test_time_outs_and_codes_from_126_on_are_no_verdict(
    steps: Recorded, workspaces: Workspaces, nothing_stays: None, bisect: bool
) -> None:
    """A turn whose check says nothing is neither good nor bad: the next that speaks is named."""
    check = (
        'case "$(cat notes.txt 2>/dev/null)" in two) sleep 30;; esac;'
        "grep -q three log || exit 127; test ! -e moved"
    )
    found = when(steps, check, workspaces=workspaces, bisect=bisect, timeout_s=2.0)
    assert found.turn == 8
    exits = [one.exit for one in found.results]
    if not bisect:
        assert exits == [127, 127, 0, None, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("bisect", [False, True])
def test_what_a_check_writes_is_seen_by_no_other(
    steps: Recorded, workspaces: Workspaces, nothing_stays: None, bisect: bool
) -> None:
    check = "test ! -e litter && touch litter && echo more >> log"
    found = when(steps, check, workspaces=workspaces, bisect=bisect)
    assert found.turn is None
    assert found.results[0].exit == 0
    last = versions(steps, "log", workspaces=workspaces)[-1]
    assert last.turn == 2


def test_a_run_without_a_workspace_is_an_error(
    sample: Recorded, workspaces: Workspaces, tmp_path: Path
) -> None:
    """An imported run knows no files."""
    from branchkit.imports import import_file

    source = tmp_path / "run.traj.json"
    source.write_text(
        '{"trajectory_format": "mini-swe-agent-1.1", "info": {}, "messages": ['
        '{"role": "system", "content": "s"}, {"role": "user", "content": "u"},'
        '{"role": "assistant", "content": "```bash\\nls\\n```"},'
        '{"role": "user", "content": "<returncode>0</returncode>\\n<output>\\n</output>"}]}'
    )
    out = tmp_path / "imported.journal.jsonl"
    import_file(source, out)
    run = Recorded.open(out)
    for ask in (
        lambda: when(run, "true", workspaces=workspaces),
        lambda: blame(run, "a", workspaces=workspaces),
        lambda: versions(run, "a", workspaces=workspaces),
    ):
        with pytest.raises(UsageError, match="no recorded workspace") as caught:
            ask()
        assert caught.value.hint


def test_blame_names_turn_and_call(sample: Recorded, workspaces: Workspaces) -> None:
    """R65, for a path inside the repository that the agent worked on."""
    found = blame(sample, REF, workspaces=workspaces)
    assert (found.version.turn, found.version.what) == (23, "removed")
    assert found.calls == ['t0023.1 delete_branch {"name":"release/2.1"}']
    begun = blame(sample, "/workspace/app.py", workspaces=workspaces)
    assert (begun.version.turn, begun.version.what, begun.calls) == (0, "present", [])
    with pytest.raises(UsageError, match="never had"):
        blame(sample, "app", workspaces=workspaces)


def test_history_of_what_a_shell_did(steps: Recorded, workspaces: Workspaces) -> None:
    """Added, changed, removed and added again without any edit tool; a touch is no version."""
    found = versions(steps, "notes.txt", workspaces=workspaces)
    assert [(one.turn, one.what) for one in found] == [
        (1, "added"),
        (3, "changed"),
        (4, "removed"),
        (5, "added"),
    ]
    assert found[0].sha256 == found[3].sha256
    assert blame(steps, "notes.txt", workspaces=workspaces).calls == [
        f't0005.1 bash {{"command":"{STEPS[4]} # step-5-"}}'
    ]


def test_history_of_a_directory_that_moved(steps: Recorded, workspaces: Workspaces) -> None:
    def told(path: str) -> list[tuple[int, str, str]]:
        return [(v.turn, v.path, v.what) for v in versions(steps, path, workspaces=workspaces)]

    names = ["", "/deep", "/deep/file"]
    assert told("made") == [
        (turn, f"made{name}", what) for turn, what in [(7, "added"), (8, "removed")]
        for name in names
    ]  # fmt: skip
    assert told("moved") == [(8, f"moved{name}", "added") for name in names]


def test_the_turns_of_a_branch_reach_back_into_its_parent(
    workspaces: Workspaces, tmp_path: Path
) -> None:
    """Its prefix is not copied: calls and snapshots of turns up to the fork are the parent's."""
    from branchkit.branch.api import Run

    for suffix in ("journal.jsonl", "pack"):
        shutil.copy(SAMPLE.with_name(f"branch_cleanup.{suffix}"), tmp_path)
    with Run(tmp_path / SAMPLE.name) as run:
        forked = run.fork(24, n=1, control=False, swap="sampling=slip:0")
        (journal,) = [one.journal for one in forked.results]
    branch = Recorded.open(journal)
    assert branch.fork_turn == 24
    assert calls_of(branch, 23) == ['t0023.1 delete_branch {"name":"release/2.1"}']
    assert blame(branch, REF, workspaces=workspaces).version.turn == 23
    assert when(branch, CHECK, workspaces=workspaces, bisect=True).turn == 23


def test_an_error_in_the_middle_leaves_no_branch(
    sample: Recorded, workspaces: Workspaces, nothing_stays: None
) -> None:
    def fail(done: int, total: int, what: str) -> None:
        raise RuntimeError("the one who watches failed")

    with pytest.raises(RuntimeError):
        when(sample, CHECK, workspaces=workspaces, progress=fail)


@pytest.mark.parametrize("bisect", [False, True])
def test_an_interrupt_ends_it_at_once_and_leaves_no_branch(
    sample: Recorded, workspaces: Workspaces, nothing_stays: None, tmp_path: Path, bisect: bool
) -> None:
    """Ctrl-C while checks run: they are killed, not waited for, and every branch is dropped."""
    started = threading.Event()

    def interrupt() -> None:
        while not any("-when-" in one.name for one in workspaces.branches()):
            time.sleep(0.05)
        started.set()
        time.sleep(1.0)  # the sandbox is up by then, or still starting: both must end well
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    began_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        when(sample, "sleep 100", workspaces=workspaces, bisect=bisect)
    killer.join()
    assert started.is_set()
    assert time.monotonic() - began_s < 20


def test_two_at_once_do_not_disturb_each_other(
    steps: Recorded, workspaces: Workspaces, nothing_stays: None
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(when, steps, "test -e moved", workspaces=workspaces) for _ in range(2)]
        assert [one.result().turn for one in asked] == [8, 8]


def test_the_command_line_says_the_same(workspaces: Workspaces) -> None:
    """The fields that are promised: turn, results[{turn, exit}]."""
    import json

    said = subprocess.run(
        [sys.executable, "-m", "branchkit.cli", "when", SAMPLE, "--check", CHECK, "--json"],
        capture_output=True, text=True, check=True,
        env={**os.environ, "BRANCHKIT_STORE": str(workspaces.store)},
    )  # fmt: skip
    told = json.loads(said.stdout)
    assert told["turn"] == 23
    assert told["results"][22:24] == [{"turn": 22, "exit": 0}, {"turn": 23, "exit": 1}]
