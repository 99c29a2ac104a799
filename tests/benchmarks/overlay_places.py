"""Where the same load is run: a plain directory, two overlay file systems, and ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from branchkit.workspace import Workspaces
from branchkit.workspace.handover import PLAIN


class Place(Protocol):
    """Something that makes writable views of a base directory."""

    name: str

    def branch(self, base: Path, name: str) -> Path:
        """A view of ``base`` that nobody has looked into yet."""

    def drop(self, name: str) -> None:
        """Remove a view."""


class Native:
    """``cp -a``: what everything else is compared with."""

    name = "plain directory"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "native"
        self._folder.mkdir(parents=True)

    def branch(self, base: Path, name: str) -> Path:
        """A copy."""
        subprocess.run(["cp", "-a", base, self._folder / name], check=True)
        return self._folder / name

    def drop(self, name: str) -> None:
        """Remove it."""
        shutil.rmtree(self._folder / name)


class Overlay:
    """One mount a branch: the kernel's overlayfs, or fuse-overlayfs."""

    def __init__(self, folder: Path, name: str, command: list[str]) -> None:
        self.name = name
        self._folder = folder / name.replace(" ", "-")
        self._command = command

    def branch(self, base: Path, name: str) -> Path:
        """A mount over ``base``."""
        upper, work, merged = (self._folder / name / part for part in ("upper", "work", "merged"))
        for path in (upper, work, merged):
            path.mkdir(parents=True)
        options = f"lowerdir={base},upperdir={upper},workdir={work}"
        subprocess.run([*self._command, "-o", options, merged], check=True, capture_output=True)
        return merged

    def drop(self, name: str) -> None:
        """Unmount and remove it."""
        subprocess.run(["umount", self._folder / name / "merged"], check=True)
        shutil.rmtree(self._folder / name)


class Ours:
    """A branch of a store."""

    def __init__(self, ws: Workspaces, name: str) -> None:
        self.name = name
        self.ws = ws
        self._bases: dict[Path, str] = {}

    def base(self, directory: Path) -> str:
        """The id of ``directory``; it is hashed once."""
        if directory not in self._bases:
            self._bases[directory] = self.ws.add_base(directory)
        return self._bases[directory]

    def branch(self, base: Path, name: str) -> Path:
        """A branch on ``base``."""
        return self.ws.create(name, base=self.base(base)).path

    def drop(self, name: str) -> None:
        """Remove it."""
        self.ws.branch(name).drop()


@contextmanager
def ours(folder: Path, *, plain: bool) -> Iterator[Ours]:
    """A store with a daemon of its own; ``plain`` leaves INIT to libfuse."""
    os.environ[PLAIN] = "1" if plain else "0"
    name = "branchkit, plain INIT" if plain else "branchkit"
    ws = Workspaces.open(folder / ("store-plain" if plain else "store"), backend="fuse")
    try:
        yield Ours(ws, name)
    finally:
        ws.stop()


@contextmanager
def places(folder: Path) -> Iterator[tuple[list[Place], list[str]]]:
    """Every place that works here, and why the others do not."""
    with ExitStack() as stack:
        found: list[Place] = [Native(folder)]
        missing: list[str] = []
        commands = {
            "kernel overlayfs": ["mount", "-t", "overlay", "overlay"],
            "fuse-overlayfs": ["fuse-overlayfs"],
        }
        (folder / "probe").mkdir()
        for name, command in commands.items():
            place = Overlay(folder, name, command)
            try:
                place.branch(folder / "probe", "probe")
                place.drop("probe")
            except (OSError, subprocess.CalledProcessError) as error:
                missing.append(f"{name}: {error}")
            else:
                found.append(place)
        found += [stack.enter_context(ours(folder, plain=plain)) for plain in (False, True)]
        yield found, missing
