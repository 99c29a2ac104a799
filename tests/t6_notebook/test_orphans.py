"""Whatever ends a fork in a kernel, no process and no mount is left (FIELD, notebooks 7)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kernels import SAMPLE, Kernel, kernel

from branchkit.workspace import Workspaces

LINGER_S = 0.5  # the daemon leaves so soon after its last client
GONE_WITHIN_S = 10.0
FORK = "found = %fork 22 -n 50"


def until(true: Callable[[], bool], what: Callable[[], object]) -> None:
    """Wait for a state of the machine; fail with what is there instead."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while not true():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it went while we looked
            front, _, rest = path.read_text().rpartition(")")
            found[int(front.split()[0])] = int(rest.split()[1])
    return found


def below(pid: int) -> dict[int, str]:
    """The processes that descend from ``pid``, with what they run."""
    tree = parents()
    found: set[int] = set()
    while new := {child for child, of in tree.items() if of in {pid, *found}} - found:
        found |= new
    return {child: command(child) for child in found}


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def of_store(store: Path) -> dict[int, str]:
    """The processes that were told of the store or work in it (the sandboxes' bwrap)."""
    told = {pid: command(pid) for pid in parents() if pid != os.getpid()}
    return {pid: said for pid, said in told.items() if str(store) in said}


def mounted(store: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if f" {store}/" in line]


class Started:
    """A kernel in the middle of a fork of fifty branches."""

    def __init__(self, living: Kernel, store: Path, cell: str) -> None:
        self.kernel, self.store, self.cell = living, store, cell
        self.pid = living.pid
        self.children: dict[int, str] = {}
        until(self.in_sandboxes, lambda: self.children)

    def in_sandboxes(self) -> bool:
        """Whether tools run in a sandbox just now; between two branches none does."""
        self.children = below(self.pid)
        return any("bwrap" in said for said in self.children.values())

    def left(self) -> dict[int, str]:
        """What runs of the fork: whatever ran before, and whatever knows the store."""
        alive = {pid: said for pid, said in self.children.items() if said and command(pid) == said}
        return alive | of_store(self.store)

    def nothing_is_left(self) -> None:
        until(lambda: not self.left() and not mounted(self.store), lambda: self.all())

    def all(self) -> object:
        return self.left(), mounted(self.store)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    store = tmp_path / "store"
    workspaces = Workspaces.open(store, linger_s=LINGER_S)
    with kernel(tmp_path, BRANCHKIT_STORE=str(store), CI="") as living:
        living.printed(f"%load_ext branchkit\nrun = %journal {SAMPLE}")
        cell = living.send(FORK)
        living.outputs(cell, until=some_ended)
        found = Started(living, store, cell)
        workspaces.close()
        assert mounted(store)
        yield found
    if store.exists() and found.left():
        Workspaces.open(store).stop()


def some_ended(message: dict[str, Any]) -> bool:
    text = message.get("data", {}).get("text/plain", "")
    return " of 50 branches" in text and " 0 of 50" not in text


def test_an_interrupt_leaves_a_valid_partial_result(started: Started) -> None:
    """R82: Ctrl-C gives what has ended, and nothing goes on behind it."""
    started.kernel.interrupt()
    shown = started.kernel.outputs(started.cell)
    assert not [one for one in shown if one["type"] == "error"]
    ask = (
        "import json, branchkit\n"
        "sound = [branchkit.open(one.journal).verify().ok for one in found.results]\n"
        "print(json.dumps([found.partial, len(found.results), sound, found.parent_unchanged,"
        " [arm.branches for arm in found.summaries]]))"
    )
    partial, count, sound, unchanged, sizes = json.loads(started.kernel.printed(ask))
    assert partial
    assert unchanged
    assert 0 < count < 50
    assert sound == [True] * count
    assert sizes == [count]
    bundle = started.kernel.run("found")[-1]["data"]
    assert "interrupted: partial" in bundle["text/plain"]
    again = "again = branchkit.compare(found.directory)\nprint(again.partial, len(again.results))"
    assert started.kernel.printed(again) == f"True {count}"
    started.nothing_is_left()


def test_a_restart_leaves_nothing(started: Started) -> None:
    started.kernel.restart()
    started.nothing_is_left()
    assert started.kernel.printed("print(1)") == "1"


def test_a_shutdown_leaves_nothing(started: Started) -> None:
    started.kernel.shutdown()
    started.nothing_is_left()


def test_a_killed_kernel_leaves_nothing(started: Started) -> None:
    """The kernel has no chance to clean up: its workers see that it is gone."""
    os.kill(started.pid, signal.SIGKILL)
    started.nothing_is_left()
