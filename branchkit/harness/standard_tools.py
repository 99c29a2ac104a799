"""The six standard tools: bash, read_file, write_file, edit_file, list_dir, grep.

The workspace is the current directory. Paths are relative to it, or start with /workspace, and
may not lead out of it, not even through a symbolic link. Output is sorted and names no place
outside the workspace, so that the same call gives the same text in every branch.
"""

from __future__ import annotations

import os
import re
import resource
import select
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from branchkit.harness.tools import Tool, ToolOutcome, ToolRefused, clean, tool

WORKSPACE = "/workspace"  # where every workspace is, as far as the model can see
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
READ_LIMIT_LINES = 2000
TIMEOUT_S = 30.0

_BINARY_PROBE_BYTES = 8192


class Finished(NamedTuple):
    """How a command ended: ``exit_code`` is None after a time-out, 128 + n after signal n."""

    exit_code: int | None
    output: str


def standard_tools(names: Sequence[str], *, sandboxed: bool) -> list[Tool]:
    """The named standard tools; ``bash`` is external unless it is sandboxed."""
    shell = tool(effect="workspace" if sandboxed else "external")(bash)
    known = {each.name: each for each in (shell, *_FILE_TOOLS)}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ToolRefused(f"there is no standard tool {unknown[0]!r}: {', '.join(known)}")
    return [known[name] for name in names]


def run_command(argv: Sequence[str], timeout_s: float) -> Finished:
    """Run ``argv`` in the current directory, stdout and stderr merged.

    Ends when the command itself does: what it left in the background is killed, as is all of its
    group on a time-out. Output beyond OUTPUT_LIMIT_BYTES is read and dropped.
    """
    deadline = time.monotonic() + timeout_s
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
    ) as process:
        assert process.stdout is not None
        output = _Output(process.stdout.fileno())
        ended = _collect(process.pid, output, deadline)
        # Its own zombie keeps the group's number from being given to anyone else until wait().
        os.killpg(process.pid, signal.SIGKILL)
        output.drain()
        code = process.wait()
    return Finished(None if not ended else code if code >= 0 else 128 - code, output.text())


class _Output:
    """What came out of a pipe so far, up to the limit."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.open = True
        self._parts: list[bytes] = []
        self._left_bytes = OUTPUT_LIMIT_BYTES
        self._dropped = False
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Take what is there; False when there is nothing (more)."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return False
        self.open = bool(data)
        self._dropped |= len(data) > self._left_bytes
        self._parts.append(data[: self._left_bytes])
        self._left_bytes -= len(self._parts[-1])
        return self.open

    def drain(self) -> None:
        while self.read():
            pass

    def text(self) -> str:
        text = b"".join(self._parts).decode("utf-8", "replace")
        return (
            f"{_ended(text)}[output cut at {OUTPUT_LIMIT_BYTES} bytes]" if self._dropped else text
        )


def _collect(pid: int, output: _Output, deadline: float) -> bool:
    """Read until the process ends; False if the deadline came first."""
    pid_fd = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(pid_fd, select.POLLIN)
        poll.register(output.fd, select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0:
            ready = {fd for fd, _ in poll.poll(left_s * 1000)}
            if output.fd in ready and not output.read() and not output.open:
                poll.unregister(output.fd)
            if pid_fd in ready:
                return True
        return False
    finally:
        os.close(pid_fd)


def bash(command: str, timeout_s: float = TIMEOUT_S) -> ToolOutcome:
    """Run a shell command in the workspace and return its output, stdout and stderr together.

    command: the command line, run by bash
    timeout_s: seconds after which it is killed
    """
    shell = shutil.which("bash") or "/bin/sh"
    options = ["--noprofile", "--norc"] if shell.endswith("bash") else []
    exit_code, output = run_command([shell, *options, "-c", command], timeout_s)
    if exit_code is None:
        return ToolOutcome("timeout", f"{_ended(output)}[timed out after {timeout_s:g} s]")
    if exit_code != 0:
        output = f"{_ended(output)}[exit code {exit_code}]"
    return ToolOutcome("completed", output, exit_code)


@tool(effect="pure")
def read_file(path: str, offset: int = 1, limit: int = READ_LIMIT_LINES) -> str:
    """Return the text of a file.

    path: a file in the workspace
    offset: the first line to return, counted from 1
    limit: how many lines to return at most
    """
    data = _regular_file(path).read_bytes()
    if _is_binary(data):
        return f"[binary file, {len(data)} bytes]"
    lines = data.decode("utf-8", "replace").splitlines(keepends=True)
    first = max(offset, 1)
    shown = lines[first - 1 : first - 1 + max(limit, 0)]
    text = "".join(shown)
    if len(shown) == len(lines):
        return text
    if not shown:
        return f"[no line {first}: the file has {len(lines)} lines]"
    return f"{_ended(text)}[lines {first}-{first + len(shown) - 1} of {len(lines)}]"


@tool(effect="workspace")
def write_file(path: str, content: str) -> str:
    """Create or replace a file; missing folders are made.

    path: a file in the workspace
    content: its whole new text
    """
    target = _inside(path)
    if target.is_dir():
        raise ToolRefused(f"{path} is a directory")
    data = content.encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return f"wrote {len(data)} bytes to {path}"


@tool(effect="workspace")
def edit_file(path: str, old: str, new: str) -> str:
    """Replace one piece of text in a file; it must occur there exactly once.

    path: a file in the workspace
    old: the text to replace, with enough around it to be unique
    new: the text to put in its place
    """
    target = _regular_file(path)
    if not old:
        raise ToolRefused("old is empty: use write_file to create a file")
    data = target.read_bytes()
    count = data.count(old.encode())
    if count != 1:
        raise ToolRefused(f"old occurs {count} times in {path}; it must occur exactly once")
    target.write_bytes(data.replace(old.encode(), new.encode()))
    return f"edited {path}"


@tool(effect="pure")
def list_dir(path: str = ".") -> str:
    """List a folder, one name a line, sorted; folders end with a slash.

    path: a folder in the workspace
    """
    target = _inside(path)
    if not target.is_dir():
        raise ToolRefused(f"{path} is not a directory" if target.exists() else _missing(path))
    return "\n".join(sorted(_entry(each) for each in target.iterdir()))


@tool(effect="pure")
def grep(pattern: str, path: str = ".") -> str:
    """Search files for a regular expression; returns path:line:text, sorted by path.

    pattern: a Python regular expression
    path: a file or folder in the workspace; .git folders and binary files are left out
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ToolRefused(f"{pattern!r} is not a regular expression: {error}") from None
    target = _inside(path)
    if not target.exists():
        raise ToolRefused(_missing(path))
    root = Path.cwd().resolve()
    found = []
    for file in _files_below(target):
        data = file.read_bytes()
        if _is_binary(data):
            continue
        name = _shown(str(file.relative_to(root)))
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            if expression.search(line):
                found.append(f"{name}:{number}:{line}")
    return "\n".join(found) or "[no match]"


_FILE_TOOLS = (read_file, write_file, edit_file, list_dir, grep)


def limit_resources(cpu_s: float) -> None:
    """Bound this process and what it starts: no core files, no endless file, no fork bomb."""
    # AS is wide because node and the JVM reserve far more address space than they use.
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_AS: 16 << 30,
        resource.RLIMIT_FSIZE: 2 << 30,
        resource.RLIMIT_NPROC: 4096,
        resource.RLIMIT_CPU: int(cpu_s) + 1,
    }
    for kind, wanted in limits.items():
        _, hard = resource.getrlimit(kind)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def _inside(path: str) -> Path:
    """The real path that ``path`` names; ToolRefused if it leads out of the workspace."""
    root = Path.cwd().resolve()
    if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
        path = path[len(WORKSPACE) :].lstrip("/") or "."
    try:
        target = (root / path).resolve()
    except (RuntimeError, ValueError, OSError):  # a loop of links, a NUL, a name too long
        raise ToolRefused(f"{path!r} is not a path") from None
    if not target.is_relative_to(root):
        raise ToolRefused(f"{path} is outside the workspace")
    return target


def _regular_file(path: str) -> Path:
    """A file whose content can be read to its end: a pipe or a device could block for ever."""
    target = _inside(path)
    if not target.exists():
        raise ToolRefused(_missing(path))
    if not target.is_file():
        raise ToolRefused(f"{path} is not a regular file")
    return target


def _files_below(target: Path) -> Iterator[Path]:
    """The regular files under ``target`` in the order of their paths; links are not followed."""
    if target.is_file():
        yield target
    for folder, folders, names in os.walk(target):
        folders[:] = sorted(name for name in folders if name != ".git")
        for name in sorted(names):
            file = Path(folder, name)
            if stat.S_ISREG(file.lstat().st_mode):
                yield file


def _entry(path: Path) -> str:
    name = _shown(path.name)
    if path.is_symlink():
        return f"{name} -> {_shown(str(path.readlink()))}"
    return f"{name}/" if path.is_dir() else name


def _missing(path: str) -> str:
    return f"there is no {path}"


def _shown(name: str) -> str:
    return clean(name)  # a name that is not UTF-8 reaches Python with lone surrogates


def _is_binary(data: bytes) -> bool:
    return b"\0" in data[:_BINARY_PROBE_BYTES]


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
