"""What an external tool says of itself: how a call that got no answer is settled (R22).

``key``    the server does a request once for each key: the call is sent again with its key
``probe``  a function that looks whether the call was done
neither    a person is asked, and nothing is sent
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias


class NoAnswer(Exception):
    """The request left and no answer came: nobody here knows whether it was done."""


class KeyMismatch(Exception):
    """The server holds this key with other parameters; it has not done what was asked now."""


class Key(str):
    """The idempotency key of a call; a parameter of this type is filled in by branchkit."""

    __slots__ = ()


class ProbeAnswer(NamedTuple):
    """What a probe saw. ``not_done`` promises that it will not be done later either.

    Where the request may still be on its way (a queue, a slow network), ``unknown`` is the answer.
    """

    state: Literal["completed", "not_done", "unknown"]
    result: object = ""  # for completed: what the call would have returned


Probe: TypeAlias = Callable[[dict[str, Any], str], ProbeAnswer]  # arguments, key


class Contract(NamedTuple):
    """How a call of a tool is settled when it is in doubt, as the tool declares it."""

    key: bool = False
    key_ttl_s: float | None = None  # how long the server remembers a key; None: for ever
    probe: bool = False


# Exceptions of client libraries by name, since none of them is imported here. The second line says
# that nothing was sent.
_NO_ANSWER = {
    "HTTPException",
    "TransportError",
    "Timeout",
    "ConnectionError",
    "ServerDisconnectedError",
}
_NOT_SENT = {"ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "gaierror"}


def is_no_answer(error: BaseException) -> bool:
    """Whether ``error`` means that a request may have been received and no answer came."""
    if isinstance(error, (NoAnswer, EOFError)):
        return True
    names = {kind.__name__ for kind in type(error).__mro__}
    reason = getattr(error, "reason", None)  # urllib wraps what happened
    if isinstance(reason, BaseException):
        return is_no_answer(reason)
    if isinstance(error, ConnectionRefusedError) or names & _NOT_SENT:
        return False
    if isinstance(error, (TimeoutError, ConnectionError)) or names & _NO_ANSWER:
        return True
    below = error.__cause__ or error.__context__  # a tool's own error on top of the client's
    return below is not None and is_no_answer(below)
