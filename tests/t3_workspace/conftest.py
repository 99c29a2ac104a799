"""Bases, stores and both backends; nothing may be mounted or running when a test ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from branchkit.workspace import Workspaces

from .kit import Open, daemons, git


@pytest.fixture(params=["fuse", "copy"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Opens workspaces; at the end their daemons are stopped and nothing is left of them."""
    made: list[tuple[Path, Workspaces]] = []

    def open_store(store: Path | None = None, *, backend: str = "fuse") -> Workspaces:
        path = store or tmp_path / "store"
        ws = Workspaces.open(path, backend=backend)  # type: ignore[arg-type]
        made.append((path, ws))
        return ws

    yield open_store
    for _, ws in made:
        ws.close()
    for path in {path for path, _ in made}:
        if (path / "control.sock").exists():
            Workspaces.open(path, backend="fuse").stop()
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert daemons(tmp_path) == []


@pytest.fixture(scope="module")
def one_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    """One store for all tests of a module that need no more than a branch of their own."""
    folder = tmp_path_factory.mktemp("store")
    with Workspaces.open(folder / "store", backend="fuse") as ws:
        yield ws
        ws.stop()
    assert daemons(folder) == []


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory with one of everything that a workspace must keep."""
    root = tmp_path / "base"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "README").write_text("read me\n")
    (root / "src" / "main.py").write_text("print('hello')\n")
    (root / "src" / "deep" / "data").write_bytes(bytes(range(256)) * 1000)
    (root / "src" / "link").symlink_to("main.py")
    (root / "src" / "hard").hardlink_to(root / "README")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "odd \n naïve").write_bytes(b"")
    os.setxattr(root / "README", "user.origin", b"test")
    os.mkfifo(root / "pipe")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "README", "src")
    git(root, "commit", "-q", "-m", "one")
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(10**18, 10**18 + number), follow_symlinks=False)
    return root
