"""A client as the daemon sees it: requests and replies, one JSON object a line."""

from __future__ import annotations

import json
import logging
import socket
import sys
from typing import Any

from branchkit.errors import BranchkitError

REQUEST_BYTES = 1 << 16
SEND_TIMEOUT = (5).to_bytes(8, sys.byteorder) + (0).to_bytes(8, sys.byteorder)  # struct timeval

_log = logging.getLogger("branchkit.workspace")
Request = dict[str, Any]
Reply = dict[str, Any]


class Client:
    """One connection; it has at most one request under way."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
        self.connection = connection
        self._pending = b""

    def requests(self) -> list[Request] | None:
        """The requests that have arrived in full; None when the client has gone."""
        try:
            data = self.connection.recv(REQUEST_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def reply(self, value: Reply) -> None:
        """Send one reply; a client that has gone, or takes none for 5 s, does not get it."""
        try:
            self.connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            _log.warning("a client did not take its reply: %s", error)

    def fail(self, error: Exception) -> None:
        """Send an error; the client raises it again."""
        self.reply({"error": type(error).__name__, **describe(error)})


def describe(error: Exception) -> dict[str, str]:
    """Message and hint of any error."""
    if isinstance(error, BranchkitError):
        return {"message": error.message, "hint": error.hint}
    return {"message": f"{type(error).__name__}: {error}", "hint": "see daemon.log in the store"}
