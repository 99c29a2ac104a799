"""A real kernel in a process of its own, driven over the wire as JupyterLab does it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_journals" / "branch_cleanup" / "branch_cleanup.journal.jsonl"

START_TIMEOUT_S = 40.0
REPLY_TIMEOUT_S = 60.0

Outputs = list[dict[str, Any]]


class Kernel:
    """One kernel and one client of it."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def send(self, code: str) -> str:
        """Start a cell; returns its id."""
        return str(self.client.execute(code, store_history=False))

    def outputs(self, cell: str, until: Callable[[dict[str, Any]], bool] | None = None) -> Outputs:
        """What the cell shows, until it is done or ``until`` is true of a message's content."""
        found: Outputs = []
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while (left_s := deadline - time.monotonic()) > 0:
            message = self.client.get_iopub_msg(timeout=left_s)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"] | {"type": message["msg_type"]}
            if content["type"] == "status" and content["execution_state"] == "idle":
                return found
            found.append(content)
            if until is not None and until(content):
                return found
        raise TimeoutError(f"the cell was not done within {REPLY_TIMEOUT_S} s")

    def run(self, code: str) -> Outputs:
        """All that a cell shows."""
        return self.outputs(self.send(code))

    def printed(self, code: str) -> str:
        """What a cell prints. Fails with its traceback where it raises."""
        found = self.run(code)
        errors = ["\n".join(one["traceback"]) for one in found if one["type"] == "error"]
        assert not errors, errors[0]
        return "".join(one["text"] for one in found if one.get("name") == "stdout").strip()

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def restart(self) -> None:
        self.manager.restart_kernel(now=True)
        self._wait()

    def shutdown(self) -> None:
        self.manager.shutdown_kernel(now=False)

    def _wait(self) -> None:
        self.client.wait_for_ready(timeout=START_TIMEOUT_S)
        while True:  # messages of the old life
            try:
                self.client.get_iopub_msg(timeout=0)
            except Empty:
                return


@contextmanager
def kernel(folder: Path, **environment: str) -> Iterator[Kernel]:
    """A kernel that works in ``folder``; whatever happened to it, it is gone afterwards."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(
        cwd=str(folder),
        env={**os.environ, "IPYTHONDIR": str(folder / "ipython"), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    client = manager.blocking_client()
    try:
        client.start_channels()
        found = Kernel(manager, client)
        found._wait()
        yield found
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
        manager.context.destroy()
