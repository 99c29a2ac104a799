"""What is measured inside a branch. Each load gives (row, seconds) pairs."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SMALL_FILES = 10_000
TAR_FILES = 5_000
BIG_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
PAGE_BYTES = 4096
RANDOM_PAGES = 8192
APPENDS = 5_000

# A new branch has new inode numbers and change times: git must not take that for a change. Nor
# may it tidy up in the background while something is measured.
_SETTINGS = ["core.checkStat=minimal", "core.trustctime=false", "gc.auto=0", "maintenance.auto=0"]
GIT = ["git", *(word for setting in _SETTINGS for word in ("-c", setting))]
PERSON = {f"GIT_{role}_{key}": "bench@example.org" for role in ("AUTHOR", "COMMITTER")
          for key in ("NAME", "EMAIL")}  # fmt: skip

Row = tuple[str, float]


def make_tree(root: Path, files: int, *, git: bool) -> Path:
    """A directory of ``files`` files of 1 kB, a hundred in each folder."""
    for number in range(files):
        path = root / f"d{number // 100}" / f"f{number}.txt"
        if number % 100 == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(b"line %06d\n" % number * 70)
    if git:
        for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
            subprocess.run([*GIT, *command], cwd=root, check=True, env={**os.environ, **PERSON})
    return root


def make_big(root: Path) -> Path:
    """A directory with one file of 256 MiB."""
    root.mkdir()
    block = os.urandom(CHUNK_BYTES)
    with (root / "big").open("wb") as file:
        for _ in range(BIG_BYTES // CHUNK_BYTES):
            file.write(block)
    return root


def make_tar(path: Path, tree: Path) -> Path:
    """An archive of the first folders of ``tree``."""
    with tarfile.open(path, "w") as tar:
        for number in range(TAR_FILES // 100):
            tar.add(tree / f"d{number}", f"d{number}")
    return path


def timed(call: Callable[[], object]) -> float:
    """How long ``call`` takes, in seconds."""
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def chill() -> None:
    """Empty the kernel's caches, as far as we may; what was written is on the disk."""
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("3")


def small(root: Path, base: Path, tar: Path) -> Iterator[Row]:
    """Many small files: looking at them, making them, removing them."""
    paths = [
        os.path.join(root, f"d{number // 100}", f"f{number}.txt") for number in range(SMALL_FILES)
    ]

    def stat_all() -> None:
        for path in paths:
            os.stat(path)

    looks: dict[str, Callable[[], object]] = {
        "stat 10k": stat_all,
        "git status": lambda: _run([*GIT, "status", "--short"], root),
        "grep -r": lambda: _run(["grep", "-rc", "--exclude-dir=.git", "nothing here", "."], root),
    }
    for name, look in looks.items():
        chill()
        yield f"{name}, cold", timed(look)
        yield f"{name}, warm", timed(look)
    made = root / "made"
    yield "create 10k × 1 kB", timed(lambda: _create(made))
    yield "rm -rf 10k", timed(lambda: shutil.rmtree(made))
    made.mkdir()
    yield "untar 5k", timed(lambda: _run(["tar", "xf", os.fspath(tar)], made))
    yield "append 100 B, 5,000 times", timed(lambda: _append(root / "log"))


def big(root: Path, base: Path, tar: Path) -> Iterator[Row]:
    """One file of 256 MiB."""
    path = root / "big"
    chill()
    yield "read 256 MiB, cold", timed(lambda: _read(path))
    yield "read 256 MiB, warm", timed(lambda: _read(path))
    pages = random.Random(1).sample(range(BIG_BYTES // PAGE_BYTES), RANDOM_PAGES)
    yield "8,192 random reads of 4 KiB, warm", timed(lambda: _pread(path, pages))
    yield "append 1 byte to the 256 MiB of the base", timed(lambda: _append(path, 1, b"x"))
    yield "8,192 random writes of 4 KiB", timed(lambda: _pwrite(path, pages))


def _run(command: list[str], root: Path) -> None:
    done = subprocess.run(command, cwd=root, stdout=subprocess.DEVNULL, check=False)
    if done.returncode > 1:  # grep: 1 = nothing found
        raise subprocess.CalledProcessError(done.returncode, command)


def _create(root: Path) -> None:
    root.mkdir()
    content = b"x" * 1000
    for number in range(SMALL_FILES):
        (root / str(number)).write_bytes(content)


def _append(path: Path, times: int = APPENDS, content: bytes = b"x" * 100) -> None:
    with path.open("ab", buffering=0) as file:
        for _ in range(times):
            file.write(content)


def _read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        while file.read(CHUNK_BYTES):
            pass


def _pread(path: Path, pages: list[int]) -> None:
    with path.open("rb", buffering=0) as file:
        for page in pages:
            os.pread(file.fileno(), PAGE_BYTES, page * PAGE_BYTES)


def _pwrite(path: Path, pages: list[int]) -> None:
    content = b"y" * PAGE_BYTES
    with path.open("r+b", buffering=0) as file:
        for page in pages:
            os.pwrite(file.fileno(), content, page * PAGE_BYTES)
