"""A sandbox whose workspace is a branch on a real FUSE mount: where every live branch works."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from branchkit.harness.sandbox import Sandbox
from branchkit.supervise import descendants
from branchkit.workspace.mount import Workspaces


@pytest.fixture
def workspaces(tmp_path: Path) -> Iterator[Workspaces]:
    found = Workspaces.open(tmp_path / "store", backend="fuse")
    try:
        yield found
    finally:
        found.stop()


def test_tools_work_in_a_branch_and_two_branches_stay_apart(
    workspaces: Workspaces, tmp_path: Path
) -> None:
    """R59, R60: each branch writes through its own sandbox, the base stays as it was."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "file").write_text("from the base\n")
    base_id = workspaces.add_base(base)
    hashes = []
    for name in ("one", "two"):
        branch = workspaces.create(name, base=base_id)
        with Sandbox(branch.path) as sandbox:
            assert sandbox.call("read_file", {"path": "file"}).text == "from the base\n"
            command = f"pwd; echo {name} > new; mkdir -p d; mv file d/; ls; git init -q . ; cat new"
            outcome = sandbox.call("bash", {"command": command})
            assert outcome.text == f"/workspace\nd\nnew\n{name}\n"
            edited = sandbox.call("edit_file", {"path": "d/file", "old": "base", "new": name})
            assert edited.status == "completed"
            assert (branch.path / "d/file").read_text() == f"from the {name}\n"
            hashes.append(branch.tree_hash())
    assert hashes[0] != hashes[1]
    assert [each.name for each in base.iterdir()] == ["file"]


def test_a_killed_server_leaves_the_branch_usable(workspaces: Workspaces, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    branch = workspaces.create("main", base=workspaces.add_base(tmp_path / "base"))
    with Sandbox(branch.path) as sandbox:
        sandbox.call("write_file", {"path": "f", "content": "kept"})
        assert sandbox.server_pid is not None
        doomed = [sandbox.server_pid, *descendants(sandbox.server_pid)]
        os.kill(sandbox.server_pid, signal.SIGKILL)
        for pid in doomed:
            with suppress(ProcessLookupError):
                pid_fd = os.pidfd_open(pid)
                select.select([pid_fd], [], [], 15)
                os.close(pid_fd)
        assert sandbox.call("read_file", {"path": "f"}).text == "kept"
    branch.freeze()
