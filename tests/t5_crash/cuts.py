"""Real power cuts: a file system that is shut down under a writer, and mounted again (R21, R24).

The kernel drops everything that no barrier has brought to the disk (FS_IOC_SHUTDOWN without a
flush), for ext4 and XFS in images on a loop device. Needs root. A writer in a process of its own
tells what was acknowledged through a pipe; only what has come through *before* the cut counts: an
fdatasync under way while the file system goes down may say OK.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from branchkit.journal.events import InputReceived
from branchkit.journal.file import Writer, verify

KINDS = ("ext4", "xfs")
IMAGE_BYTES = 320 << 20  # the least that mkfs.xfs takes; the image is sparse
_SHUTDOWN, _NO_FLUSH = 0x8004587D, struct.pack("=I", 2)
_COUNT = struct.Struct("=Q")
_MKFS = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
_INSTALL = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}


class Cut(NamedTuple):
    """One power cut: how many events were acknowledged before it, how many are there after it."""

    acknowledged: int
    found: int
    problem: str


def cut(kind: str, folder: Path, seed: int, *, sync: bool = True) -> Cut:
    """A journal on a new file system of ``kind``, cut at a moment that ``seed`` chooses.

    Without ``sync`` the writer skips its barriers: the cut has to lose something.
    """
    image, place = folder / "image", folder / "mounted"
    _make(kind, image)
    place.mkdir(exist_ok=True)
    with _mounted(image, place):
        acknowledged = _write_and_cut(place, random.Random(seed).uniform(0.0, 0.03), sync)
    with _mounted(image, place):
        path = place / "run.journal.jsonl"
        if not path.exists():
            return Cut(acknowledged, 0, "the journal is gone" if acknowledged else "")
        found = verify(path)
        problem = "" if found.events >= acknowledged else "acknowledged events are gone"
        if not problem:
            with _writer(path) as writer:  # what is there can be written on
                _append(writer)
            problem = "" if verify(path).ok else "the next append does not verify"
        return Cut(acknowledged, found.events, problem)


def _make(kind: str, image: Path) -> None:
    if shutil.which(_MKFS[kind][0]) is None:
        raise RuntimeError(f"{_MKFS[kind][0]} is missing: apt-get install {_INSTALL[kind]}")
    image.unlink(missing_ok=True)
    with image.open("wb") as stream:
        stream.truncate(IMAGE_BYTES)
    subprocess.run([*_MKFS[kind], str(image)], check=True, stdout=subprocess.DEVNULL)


@contextmanager
def _mounted(image: Path, place: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(place)], check=True)


def _write_and_cut(place: Path, after_s: float, sync: bool) -> int:
    """Let a child write until the cut; returns what it had acknowledged by then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _be_the_writer(place / "run.journal.jsonl", writing, sync)
        finally:
            os._exit(0)
    os.close(writing)
    try:
        _wait_for_first(reading, after_s)
        acknowledged = _drained(reading)
        directory = os.open(place, os.O_RDONLY)
        try:
            fcntl.ioctl(directory, _SHUTDOWN, _NO_FLUSH)
        finally:
            os.close(directory)
        return acknowledged
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


def _be_the_writer(path: Path, writing: int, sync: bool) -> None:
    if not sync:
        Writer._sync = lambda _self, _fd: None  # type: ignore[method-assign, assignment]
    with _writer(path) as writer:
        while True:
            _append(writer)
            os.write(writing, _COUNT.pack(writer.seq))


@contextmanager
def _writer(path: Path) -> Iterator[Writer]:
    writer = Writer(path, run_id="r", now=lambda: "2026-01-01T00:00:00.000000+00:00")
    try:
        yield writer
    finally:
        writer.close()


def _append(writer: Writer) -> None:
    message = {"role": "user", "content": "x" * (writer.seq * 37 % 3000)}
    writer.append(InputReceived(message=message), turn=0, step_id="t0000")
    writer.commit()


def _wait_for_first(reading: int, then_s: float) -> None:
    """Return some time after the first acknowledgement: the cut comes in the middle of writing."""
    select.select([reading], [], [], 30)
    select.select([], [], [], then_s)


def _drained(reading: int) -> int:
    """The last count in the pipe; what comes later is not known to be safe."""
    os.set_blocking(reading, False)
    last = b""
    while True:
        try:
            data = os.read(reading, 1 << 16)
        except BlockingIOError:
            break
        if not data:
            break
        last = (last + data)[-_COUNT.size :]
    return int(_COUNT.unpack(last)[0]) if last else 0
