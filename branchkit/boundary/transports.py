"""Transports and bodies for ``httpx2`` and ``httpx``: one interface under two names.

The classes are made for either module from the same mixins. They pass requests on and bodies by;
what that means for a journal is ``intercept``'s business.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

from branchkit.boundary.send import ask

if TYPE_CHECKING:
    from branchkit.boundary.intercept import Sent, Wire

# What a client's behaviour may hang on. Everything else, cookies above all, is not written down.
KEPT_HEADERS = (
    "content-type", "retry-after", "retry-after-ms", "x-should-retry", "request-id", "x-request-id",
)  # fmt: skip


class Exchange(NamedTuple):
    """What one request brought. ``status`` is 0 where no answer began; ``error`` ended it."""

    status: int
    headers: list[list[str]]
    error: str | None
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is one of the 200s."""
        return 200 <= self.status < 300


class Classes(NamedTuple):
    """The classes for one module."""

    sync: Any
    asynchronous: Any
    stream: Any
    async_stream: Any
    taped: Any


@cache
def classes(module: ModuleType) -> Classes:
    """The transports and bodies of ``module``, which is httpx2 or httpx."""
    own = {"module": module}
    return Classes(
        type("Transport", (_Transport, module.BaseTransport), own),
        type("AsyncTransport", (_AsyncTransport, module.AsyncBaseTransport), own),
        type("Stream", (_Stream, module.SyncByteStream), own),
        type("AsyncStream", (_AsyncStream, module.AsyncByteStream), own),
        type("Taped", (_Taped, module.SyncByteStream, module.AsyncByteStream), own),
    )


@contextmanager
def patched(module: ModuleType, wire: Wire) -> Iterator[None]:
    """Within the block every client of ``module`` goes through ``wire``."""
    plain = module.HTTPTransport.handle_request
    plain_async = module.AsyncHTTPTransport.handle_async_request

    def handle(self: Any, request: Any) -> Any:
        return _handled(module, wire, request, lambda: plain(self, request))

    async def handle_async(self: Any, request: Any) -> Any:
        return await _handled_async(module, wire, request, lambda: plain_async(self, request))

    with (
        mock.patch.object(module.HTTPTransport, "handle_request", handle),
        mock.patch.object(module.AsyncHTTPTransport, "handle_async_request", handle_async),
    ):
        yield


class _Transport:
    module: ModuleType

    def __init__(self, wire: Wire, inner: Any) -> None:
        self.wire, self.inner = wire, inner

    def handle_request(self, request: Any) -> Any:
        send = self.inner.handle_request if self.wire.live else None
        return _handled(self.module, self.wire, request, lambda: send(request))  # type: ignore[misc]

    def close(self) -> None:
        if self.inner is not None:
            self.inner.close()


class _AsyncTransport:
    module: ModuleType

    def __init__(self, wire: Wire, inner: Any) -> None:
        self.wire, self.inner = wire, inner

    async def handle_async_request(self, request: Any) -> Any:
        def send() -> Any:
            return self.inner.handle_async_request(request)

        return await _handled_async(self.module, self.wire, request, send)

    async def aclose(self) -> None:
        if self.inner is not None:
            await self.inner.aclose()


class _Heard:
    """A body as it passes by; it is written down at its end, or where reading it stopped."""

    module: ModuleType

    def __init__(self, wire: Wire, sent: Sent, response: Any) -> None:
        self.wire, self.sent, self.response = wire, sent, response
        self.chunks: list[bytes] = []
        self.ended = False

    def done(self, error: Exception | None = None) -> None:
        if not self.ended:
            self.ended = True
            headers = self.response.headers
            body = _decoded(self.module, headers, b"".join(self.chunks))
            came = Exchange(self.response.status_code, _kept(headers), _said(error), body)
            self.wire.end(self.sent, came)


class _Stream(_Heard):
    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self.response.stream:
                self.chunks.append(chunk)
                yield chunk
        except self.module.TransportError as error:
            self.done(error)
            raise
        self.done()

    def close(self) -> None:
        self.response.close()
        self.done()


class _AsyncStream(_Heard):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self.response.stream:
                self.chunks.append(chunk)
                yield chunk
        except self.module.TransportError as error:
            self.done(error)
            raise
        self.done()

    async def aclose(self) -> None:
        await self.response.aclose()
        self.done()


class _Taped:
    """A recorded body, and the error that it ended with."""

    module: ModuleType

    def __init__(self, body: bytes, error: Exception | None) -> None:
        self.body, self.error = body, error

    def __iter__(self) -> Iterator[bytes]:
        yield self.body
        if self.error is not None:
            raise self.error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self:
            yield chunk


def _handled(module: ModuleType, wire: Wire, request: Any, send: Callable[[], Any]) -> Any:
    sent = wire.begin(request.method, request.url.path, request.read())
    if not wire.live:
        return _replayed(module, wire, sent, request)
    try:
        response = ask(wire.session.commit, send)
    except module.TransportError as error:
        wire.end(sent, Exchange(0, [], _said(error), b""))
        raise
    passed = _passed(module, response, classes(module).stream(wire, sent, response), request)
    if not passed.is_success:
        passed.read()  # a client that tries again does not read what it was refused with
    return passed


async def _handled_async(
    module: ModuleType, wire: Wire, request: Any, send: Callable[[], Any]
) -> Any:
    sent = wire.begin(request.method, request.url.path, await request.aread())
    if not wire.live:
        return _replayed(module, wire, sent, request)
    try:
        response = await ask(wire.session.commit, send)
    except module.TransportError as error:
        wire.end(sent, Exchange(0, [], _said(error), b""))
        raise
    passed = _passed(module, response, classes(module).async_stream(wire, sent, response), request)
    if not passed.is_success:
        await passed.aread()
    return passed


def _passed(module: ModuleType, response: Any, stream: Any, request: Any) -> Any:
    return module.Response(
        response.status_code,
        headers=response.headers,
        stream=stream,
        request=request,
        extensions=response.extensions,
    )


def _replayed(module: ModuleType, wire: Wire, sent: Sent, request: Any) -> Any:
    came = wire.taped(sent)
    error = _error(module, came.error)
    if error is not None and came.status == 0:
        raise error
    stream = classes(module).taped(came.body, error)
    headers = [(name, value) for name, value in came.headers]
    return module.Response(came.status, headers=headers, stream=stream, request=request)


def _error(module: ModuleType, said: str | None) -> Exception | None:
    if said is None:
        return None
    name, _, words = said.partition(": ")
    found: Exception = getattr(module, name, module.ReadError)(words)
    return found


def _said(error: Exception | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def _kept(headers: Any) -> list[list[str]]:
    return [[name, headers[name]] for name in KEPT_HEADERS if name in headers]


def _decoded(module: ModuleType, headers: Any, raw: bytes) -> bytes:
    """``raw`` without its content encoding; as it is where that is broken."""
    encoding = {"content-encoding": headers.get("content-encoding", "identity")}
    try:
        found: bytes = module.Response(200, headers=encoding, content=raw).content
    except module.DecodingError:
        return raw
    return found
