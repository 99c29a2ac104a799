"""A client of the counting service, on the standard library: what a tool of an experiment calls."""

from __future__ import annotations

import http.client
import json
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from branchkit.testing.effect_rows import State

# The connection ended or the time was up. All but a ConnectionRefusedError leave open whether the
# effect happened; they are what any client of this kind raises, so nothing is wrapped around them.
NO_REPLY = (OSError, http.client.HTTPException)


class Refused(Exception):
    """The service answered, and will not do it; ``status`` is the HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status}: {reason}")
        self.status = status


class Receipt(NamedTuple):
    """The service's word for an effect; ``repeated``: it was given before."""

    receipt: str
    repeated: bool


class Known(NamedTuple):
    """What the service knows of an operation. ``absent`` is no promise about what is under way."""

    state: State
    receipt: str | None


def perform(
    url: str,
    operation: str,
    *,
    key: str | None = None,
    token: str | None = None,
    parameters: dict[str, Any] | None = None,
    timeout_s: float = 10.0,
) -> Receipt:
    """One effect, or the receipt of the same one. Raises Refused, and one of NO_REPLY."""
    body = {"operation": operation, "parameters": parameters or {}}
    headers = {} if key is None else {"idempotency-key": key}
    return Receipt(**ask("POST", f"{url}/effects", body, headers, token, timeout_s))


def probe(url: str, operation: str, *, token: str | None = None, timeout_s: float = 10.0) -> Known:
    """What became of ``operation``; reads only. Raises as ``perform``."""
    address = f"{url}/effects/{quote(operation, safe='')}"
    return Known(**ask("GET", address, None, {}, token, timeout_s))


def ask(
    method: str,
    address: str,
    body: dict[str, Any] | None,
    headers: dict[str, str] | None = None,
    token: str | None = None,
    timeout_s: float = 10.0,
) -> dict[str, Any]:
    """The JSON that one request is answered with. Raises as ``perform``."""
    parts = urlsplit(address)
    sent = dict(headers or {}) | ({} if token is None else {"authorization": f"Bearer {token}"})
    connection = http.client.HTTPConnection(parts.netloc, timeout=timeout_s)
    try:
        connection.request(
            method, parts.path, None if body is None else json.dumps(body).encode(), sent
        )
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    finally:
        connection.close()
    if response.status >= 400:
        raise Refused(response.status, str(answer.get("error", "")))
    return answer
