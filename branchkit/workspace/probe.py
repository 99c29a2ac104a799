"""Can FUSE be used here? Asked by doing it, not by looking at versions."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NamedTuple

DEVICE = "/dev/fuse"


class Probe(NamedTuple):
    """Whether FUSE can be used; if not, why, and what to do about it."""

    ok: bool
    detail: str
    remedy: str


def probe() -> Probe:
    """Open the device, look for the binding and for a way to mount.

    ``BRANCHKIT_NO_FUSE=1`` in the environment pretends that there is none.
    """
    if os.environ.get("BRANCHKIT_NO_FUSE") == "1":
        return Probe(False, "BRANCHKIT_NO_FUSE=1 is set", "unset BRANCHKIT_NO_FUSE")
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        remedy = "run `modprobe fuse`; in a container: --device /dev/fuse --cap-add SYS_ADMIN"
        return Probe(False, f"{DEVICE} cannot be opened: {error.strerror}", remedy)
    if importlib.util.find_spec("pyfuse3") is None:
        remedy = (
            "apt install libfuse3-dev pkg-config gcc, then pip install 'branchkit-jupyter[fuse]'"
        )
        return Probe(False, "pyfuse3 is not installed", remedy)
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        return Probe(False, "fusermount3 is not installed", "apt install fuse3")
    return Probe(True, f"{DEVICE} opens, pyfuse3 is installed", "")
