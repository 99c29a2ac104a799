"""Every call on every kind of path: ``python posix_calls.py [USER]`` in a directory of its own.

Prints one line of JSON for each path: the answers of all calls, in order. Before each call the path
is made a file if that can be done, after it whatever is there is taken away: each stands alone.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Callable

Call = Callable[[str], object]


def opened(path: str, flags: int, mode: int = 0o640) -> str:
    """What a new descriptor on ``path`` is."""
    fd = os.open(path, flags | os.O_NONBLOCK, mode)
    info = os.fstat(fd)
    os.close(fd)
    return f"{info.st_mode:o} {info.st_size}"


def bound(path: str) -> str:
    """A socket in the file system."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
    return f"{os.lstat(path).st_mode:o}"


def linked(path: str, target: str) -> str:
    os.symlink(target, path)
    return os.readlink(path)


CALLS: dict[str, Call] = {
    "stat": lambda p: f"{os.stat(p).st_mode:o}",
    "chmod": lambda p: os.chmod(p, 0o700),
    "chown": lambda p: os.chown(p, -1, -1),
    "lchown": lambda p: os.lchown(p, -1, -1),
    "utime": lambda p: os.utime(p, ns=(1, 2)),
    "truncate": lambda p: os.truncate(p, 5),
    "read": lambda p: opened(p, os.O_RDONLY),
    "write": lambda p: opened(p, os.O_WRONLY | os.O_TRUNC),
    "nofollow": lambda p: opened(p, os.O_RDONLY | os.O_NOFOLLOW),
    "directory": lambda p: opened(p, os.O_RDONLY | os.O_DIRECTORY),
    "create": lambda p: opened(p, os.O_RDWR | os.O_CREAT),
    "exclusive": lambda p: opened(p, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0),
    "listdir": os.listdir,
    "readlink": os.readlink,
    "setxattr": lambda p: os.setxattr(p, "user.x", b"1"),
    "unlink": os.unlink,
    "rmdir": os.rmdir,
    "mkdir": os.mkdir,
    "mkfifo": os.mkfifo,
    "mknod": lambda p: os.mknod(p, stat.S_IFREG | 0o600),
    "device": lambda p: os.mknod(p, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "symlink": lambda p: linked(p, "other"),
    "link from": lambda p: os.link(p, "made", follow_symlinks=False),
    "link to": lambda p: os.link("other", p),
    "rename from": lambda p: os.rename(p, "made"),
    "rename to": lambda p: os.rename("spare", p),
    "rename folder to": lambda p: os.rename("folder", p),
    "bind": bound,
}
# For these the path is left as it is: they make it.
MAKERS = {
    "create", "exclusive", "mkdir", "mkfifo", "mknod", "device", "symlink", "link to",
    "rename to", "rename folder to", "bind",
}  # fmt: skip
EXISTING = ("file", "empty", "full", "fifo", "socket", "dangling", "self")


def long_path(length: int) -> str:
    """A relative path of ``length`` bytes, most of it there."""
    folder = ""
    while len(folder) < length - 400:
        folder += "d" * 199 + "/"
    os.makedirs(folder, exist_ok=True)
    return (
        folder
        + "x" * min(255, length - len(folder) - 1)
        + ("" if length - len(folder) <= 256 else "/" + "y" * (length - len(folder) - 257))
    )


def paths() -> list[str]:
    """What the calls are tried on; none leads out of the directory, for they are really tried."""
    odd = ["", ".", "new", "new/", "file/", "file/x", "none/x", "closed/x", "l0", "l0/x"]
    odd += ["dangling/x", "link", "link/", "full/inner", "empty/.", "empty/..", "full/"]
    odd += ["n" * 255, "n" * 256, "full/" + "n" * 255, "full/" + "n" * 256]
    odd += [os.fsdecode(b"caf\xe9\n")]
    return [*odd, *EXISTING, *(long_path(length) for length in (4094, 4095, 4096))]


def furnish(user: int) -> None:
    """What stands in the directory before each call."""
    for name in ("file", "other", "spare"):
        if not os.path.lexists(name):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644))
    for name in ("empty", "full", "folder"):
        os.makedirs(name, exist_ok=True)
    if not os.path.lexists("full/inner"):
        os.mknod("full/inner")
    if not os.path.lexists("fifo"):
        os.mkfifo("fifo")
    if not os.path.lexists("socket"):
        bound("socket")
    links = {"dangling": "nowhere", "self": "self", "link": "empty"}
    links |= {f"l{number}": f"l{number + 1}" for number in range(45)}
    for name, target in links.items():
        if not os.path.lexists(name):
            os.symlink(target, name)
    if not user and not os.path.lexists("closed"):
        os.mkdir("closed", 0o700)
        os.mknod("closed/x")


def clear(path: str) -> None:
    """Take away what the last call made."""
    for each in ("made", "nowhere", path):
        name = each.rstrip("/")
        if each in EXISTING or name in ("", ".", "..", "empty/.", "empty/..", "closed/x"):
            continue
        try:
            if stat.S_ISDIR(os.lstat(name).st_mode):
                shutil.rmtree(name)
            else:
                os.unlink(name)
        except OSError:
            continue  # it was not made


def answer(call: Call, path: str) -> str:
    """What ``call`` says of ``path``."""
    try:
        said = call(path)
    except OSError as error:
        return f"errno {error.errno}"
    except ValueError as error:
        return type(error).__name__
    return "list" if isinstance(said, list) else str(said)


def main(user: int) -> None:
    """Try everything and print it."""
    os.umask(0o022)
    furnish(0)
    tried = paths()
    if user:
        os.chmod(".", 0o777)
        for name in ("file", "other", "spare", "empty", "folder"):
            os.lchown(name, user, user)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    for path in tried:
        said = {}
        for name, call in CALLS.items():
            furnish(user)
            if name not in MAKERS and not os.path.lexists(path):
                answer(lambda p: opened(p, os.O_RDWR | os.O_CREAT), path)
            said[name] = answer(call, path)
            clear(path)
        print(json.dumps([path if len(path) < 300 else len(path), said]))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
