"""A disk that forgets: every state in which a power cut can leave what was written (R21, R24).

    with recorded(folder) as disk:        # ``branchkit.disk`` notes what it does, and does it
        ... write a journal, note what was acknowledged: disk.note("ack", 12)
    for state in states(disk.steps, seed):
        state.put(elsewhere)              # the files as that power cut leaves them

What a disk may forget is what no barrier has covered: the bytes since a file's last fdatasync, in
any combination of sectors and in any order, and the names since a directory's last fsync, from any
point on. A file whose name was not made durable is gone, whatever was synced into it. After an
fdatasync that failed (`Recorder.fail_sync`) the bytes are gone and the next one says that all is
well, as ext4 and XFS do.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from branchkit import disk as port

SECTOR_BYTES = 512

What = Literal["create", "write", "truncate", "sync", "sync_dir", "rename", "lost", "note"]


class Step(NamedTuple):
    """One thing that happened, in order. ``file`` is a number that a rename does not change."""

    what: What
    name: str = ""
    file: int = -1
    offset: int = 0
    data: bytes = b""
    size: int = 0
    target: str = ""
    value: Any = None


class Recorder:
    """What was done to the files below a folder, and what the caller noted in between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: list[Step] = []
        self._files: dict[tuple[int, int], int] = {}
        self._failing = ("", -1)

    def fail_sync(self, name: str, number: int) -> None:
        """Have the fdatasync of ``name`` after ``number`` more fail, once."""
        self._failing = (name, number)

    def sync_fails(self, fd: int) -> bool:
        """Whether this fdatasync is the one that fails."""
        name, left = self._failing
        if self.inside(Path(f"/proc/self/fd/{fd}").readlink()) != name:
            return False
        self._failing = (name, left - 1)
        return left == 0

    def note(self, name: str, value: Any = None) -> None:
        """Remember that something happened here: an acknowledgement, an effect."""
        self.steps.append(Step("note", name, value=value))

    def file(self, fd: int) -> int | None:
        """The number of an open file below the folder; its creation is noted at first sight."""
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if not path.is_relative_to(self.folder):
            return None
        info = os.fstat(fd)
        key = (info.st_dev, info.st_ino)
        if key not in self._files:
            self._files[key] = len(self._files)
            name = str(path.relative_to(self.folder))
            self.steps.append(Step("create", name, self._files[key]))
        return self._files[key]

    def inside(self, path: Path) -> str | None:
        """``path`` relative to the folder, if it is below it."""
        return str(path.relative_to(self.folder)) if path.is_relative_to(self.folder) else None


@contextmanager
def recorded(folder: Path) -> Iterator[Recorder]:
    """Note what ``branchkit.disk`` does below ``folder``, which is new and empty."""
    made = Recorder(folder.resolve())
    wrappers: dict[str, Callable[..., Any]] = {
        "open_append": _opening(made, port.open_append),
        "write_all": _writing(made, port.write_all),
        "truncate": _cutting(made, port.truncate),
        "fdatasync": _syncing(made, port.fdatasync),
        "fsync_dir": _syncing_names(made, port.fsync_dir),
        "rename": _renaming(made, port.rename),
    }
    before = {name: getattr(port, name) for name in wrappers}
    for name, wrapper in wrappers.items():
        setattr(port, name, wrapper)
    try:
        yield made
    finally:
        for name, function in before.items():
            setattr(port, name, function)


def _opening(made: Recorder, real: Callable[[Path], int]) -> Callable[[Path], int]:
    def open_append(path: Path) -> int:
        fd = real(path)
        made.file(fd)
        return fd

    return open_append


def _writing(made: Recorder, real: Callable[[int, bytes], None]) -> Callable[[int, bytes], None]:
    def write_all(fd: int, data: bytes) -> None:
        file, offset = made.file(fd), os.lseek(fd, 0, os.SEEK_END)
        real(fd, data)
        if file is not None:
            made.steps.append(Step("write", file=file, offset=offset, data=bytes(data)))

    return write_all


def _cutting(made: Recorder, real: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def truncate(fd: int, length_bytes: int) -> None:
        real(fd, length_bytes)
        if (file := made.file(fd)) is not None:
            made.steps.append(Step("truncate", file=file, size=length_bytes))

    return truncate


def _syncing(made: Recorder, real: Callable[[int], None]) -> Callable[[int], None]:
    def fdatasync(fd: int) -> None:
        file = made.file(fd)
        if file is not None and made.sync_fails(fd):
            made.steps.append(Step("lost", file=file))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)
        if file is not None:
            made.steps.append(Step("sync", file=file))

    return fdatasync


def _syncing_names(made: Recorder, real: Callable[[Path], None]) -> Callable[[Path], None]:
    def fsync_dir(directory: Path) -> None:
        real(directory)
        if (name := made.inside(directory.resolve())) is not None:
            made.steps.append(Step("sync_dir", name))

    return fsync_dir


def _renaming(made: Recorder, real: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def rename(source: Path, target: Path) -> None:
        real(source, target)
        old, new = made.inside(source.resolve()), made.inside(target.resolve())
        if old is not None and new is not None:
            made.steps.append(Step("rename", old, target=new))

    return rename


class State(NamedTuple):
    """The files that a power cut left, by name, and what had happened before it."""

    after: int  # steps
    how: str
    files: dict[str, bytes]
    notes: list[tuple[str, Any]]

    def put(self, folder: Path) -> None:
        """Make ``folder``, which is new, hold these files."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


class _File:
    """One file: what is safe, and what was done since."""

    def __init__(self) -> None:
        self.safe = b""
        self.pending: list[Step] = []

    def sync(self) -> None:
        self.safe = _carried_out(self.safe, self.pending)
        self.pending = []


class _Disk:
    """The disk after some steps."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        self.names: dict[str, int] = {}  # as they are durable
        self.renames: list[Step] = []  # creations and renames that are not
        self.notes: list[tuple[str, Any]] = []

    def take(self, step: Step) -> None:
        match step.what:
            case "create":
                self.files[step.file] = _File()
                self.renames.append(step)
            case "rename":
                self.renames.append(step)
            case "write" | "truncate":
                self.files[step.file].pending.append(step)
            case "sync":
                self.files[step.file].sync()
            case "lost":
                self.files[step.file].pending = []
            case "sync_dir":
                self._sync_names(step.name)
            case "note":
                self.notes.append((step.name, step.value))

    def _sync_names(self, directory: str) -> None:
        here = [one for one in self.renames if str(Path(one.name).parent) == directory]
        self.names = _named(self.names, here)
        self.renames = [one for one in self.renames if one not in here]


def states(steps: Sequence[Step], seed: int, *, torn: int = 3, start: int = 0) -> Iterator[State]:
    """The states of power cuts after each of ``steps``: nothing kept, all kept, ``torn`` others.

    ``torn`` states each, with a part of the sectors of what was not synced, are drawn by ``seed``.
    The first ``start`` steps happen without a cut.
    """
    disk, chance = _Disk(), random.Random(seed)
    for after in range(len(steps) + 1):
        if after >= start:
            yield from _after(disk, after, chance, torn)
        if after < len(steps):
            disk.take(steps[after])


def _after(disk: _Disk, after: int, chance: random.Random, torn: int) -> Iterator[State]:
    yield _state(disk, after, "nothing kept", 0, lambda file: file.safe)
    if not disk.renames and not any(file.pending for file in disk.files.values()):
        return
    everything = len(disk.renames)
    yield _state(disk, after, "all kept", everything, _whole)
    for how, draw in islice(cycle(_DRAWS.items()), torn):
        kept = chance.randint(0, everything)
        yield _state(disk, after, how, kept, partial(draw, chance=chance))


def _state(
    disk: _Disk, after: int, how: str, kept_names: int, content: Callable[[_File], bytes]
) -> State:
    names = _named(disk.names, disk.renames[:kept_names])
    files = {name: content(disk.files[file]) for name, file in names.items()}
    return State(after, how, files, list(disk.notes))


def _named(names: dict[str, int], steps: Sequence[Step]) -> dict[str, int]:
    found = dict(names)
    for step in steps:
        if step.what == "create":
            found[step.name] = step.file
        elif step.name in found:
            found[step.target] = found.pop(step.name)
    return found


def _carried_out(content: bytes, steps: Sequence[Step]) -> bytes:
    for step in steps:
        if step.what == "truncate":
            content = content[: step.size].ljust(step.size, b"\0")
        else:
            end = step.offset + len(step.data)
            content = content.ljust(end, b"\0")
            content = content[: step.offset] + step.data + content[end:]
    return content


def _whole(file: _File) -> bytes:
    return _carried_out(file.safe, file.pending)


def _torn(file: _File, chance: random.Random) -> bytes:
    """The first of the changed sectors and no more: the file ends there."""
    whole = _whole(file)
    if len(whole) <= len(file.safe):
        return whole if chance.random() < 0.5 else file.safe
    sectors = (len(whole) - len(file.safe)) // SECTOR_BYTES + 1
    return whole[: len(file.safe) + chance.randint(0, sectors) * SECTOR_BYTES]


def _holes(file: _File, chance: random.Random) -> bytes:
    """The new length is there, some of the changed sectors are not: zeros, or what was before."""
    whole = _whole(file)
    old = file.safe.ljust(len(whole), b"\0")[: len(whole)]
    found = bytearray(whole)
    for at in range(0, len(whole), SECTOR_BYTES):
        if chance.random() < 0.5:
            found[at : at + SECTOR_BYTES] = old[at : at + SECTOR_BYTES]
    return bytes(found)


def _reordered(file: _File, chance: random.Random) -> bytes:
    """Some of the writes, whichever: a later one may be there and an earlier one not."""
    return _carried_out(file.safe, [one for one in file.pending if chance.random() < 0.5])


_DRAWS = {"torn": _torn, "holes": _holes, "reordered": _reordered}
