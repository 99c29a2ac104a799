"""An SDK's HTTP transport as the boundary: record and replay without a change of the harness (R50).

    with branchkit.wire("run.journal.jsonl") as wire:
        client = openai.OpenAI(http_client=wire.client())

Each request to a model endpoint is written down before it is sent, its answer while the SDK reads
it. A retry is one more exchange of the same turn; the turn's reply is the answer that came through.
In replay nothing is sent: the tape answers, in whole or in a stream, and what is asked otherwise
than recorded raises ``Diverged``, which no SDK's ``except Exception`` swallows.

What stands between this and the two HTTP libraries is in ``transports``.
"""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import orjson

from branchkit.boundary.calls import Call, provider_ids, with_own_ids
from branchkit.boundary.dialects import Answered, Dialect, dialect_of, read_answer
from branchkit.boundary.session import Question, Session
from branchkit.boundary.transports import Exchange, classes, patched
from branchkit.errors import Diverged, UsageError
from branchkit.journal.events import ModelReplied, call_step
from branchkit.journal.format import value_hash

PACKED_FROM_BYTES = 4096
MODULES = ("httpx2", "httpx")


class Sent(NamedTuple):
    """A request that is under way."""

    question: Question
    key: str
    dialect: Dialect
    model: str
    began: float


class Wire:
    """The transports of one run. One request at a time: a run is one sequence of turns."""

    def __init__(self, session: Session, *, live: bool) -> None:
        self.session = session
        self.live = live
        self._declared: set[str] = set()
        self._failed: Sent | None = None  # the last attempt, if it brought no reply
        self._open: Sent | None = None
        self._calls = (0, 0)  # of the turn in hand: its number, and how many there were

    def transport(self, module: ModuleType | None = None, inner: Any = None) -> Any:
        """A transport for ``httpx2.Client`` (or ``httpx.Client``); ``inner`` does the sending."""
        module = module or _default()
        return classes(module).sync(self, inner or (module.HTTPTransport() if self.live else None))

    def async_transport(self, module: ModuleType | None = None, inner: Any = None) -> Any:
        """The same for ``AsyncClient``."""
        module = module or _default()
        sends = inner or (module.AsyncHTTPTransport() if self.live else None)
        return classes(module).asynchronous(self, sends)

    def client(self, module: ModuleType | None = None, **options: Any) -> Any:
        """A ``Client`` for an SDK's ``http_client``; ``options`` as it takes them."""
        module = module or _default()
        return module.Client(transport=self.transport(module), **options)

    def async_client(self, module: ModuleType | None = None, **options: Any) -> Any:
        """An ``AsyncClient`` for an SDK's ``http_client``."""
        module = module or _default()
        return module.AsyncClient(transport=self.async_transport(module), **options)

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Within the block every client of either module goes through here, whoever made it."""
        with ExitStack() as stack:
            for module in filter(None, map(_module, MODULES)):
                stack.enter_context(patched(module, self))
            yield

    def tool(self, name: str, arguments: dict[str, Any]) -> str:
        """What the tool ``name`` of the session says: run when recording, read in replay (R50).

        Calls of one reply are numbered as they are made.
        """
        turn = self.session.turn
        number = self._calls[1] + 1 if self._calls[0] == turn else 1
        self._calls = (turn, number)
        call = Call(call_step(turn, number), name, arguments)
        return str(self.session.tool(call)["content"])

    def begin(self, method: str, path: str, body: bytes) -> Sent:
        """Write down what is about to be asked. Raises UsageError for what is no model request."""
        if self._open is not None:
            raise UsageError(
                f"a second model request ({path}) while the answer to the first is being read",
                hint="one run is one sequence of turns: give each agent a journal of its own",
            )
        dialect = dialect_of(path)
        given = _json(body) if method == "POST" else None
        if dialect is None or not isinstance(given, dict):
            raise self._foreign(method, path)
        asked = dialect.split(given)
        settings: dict[str, Any] = {"path": dialect.path_end, **asked.settings}
        if "tools" in settings:
            settings["tools"] = self._declare("tools", settings["tools"])
        key, failed = value_hash([path, given]), self._failed
        if failed is not None and failed.key == key:
            question = failed.question
        else:
            turn = None if failed is None else failed.question.turn
            question = self.session.ask(asked.messages, settings, turn=turn)
        model = str(given.get("model", ""))
        self._open = Sent(question, key, dialect, model, time.monotonic())
        return self._open

    def _foreign(self, method: str, path: str) -> Exception | Diverged:
        said = f"{method} {path} is no request to a model"
        if not self.live:
            return Diverged(f"{said}: a replay sends nothing")
        return UsageError(said, hint="send it by a client of its own, inside a tool: session.tool")

    def _declare(self, name: str, value: Any) -> str:
        """The hash of a static part of requests, which is written down once (R12)."""
        found = value_hash(value)
        if found not in self._declared:
            self._declared.add(found)
            self.session.declare(name, value)
        return found

    def end(self, sent: Sent, came: Exchange) -> None:
        """Write down what came back, and the reply if it is one."""
        self._open = None
        answer = _answer(sent, came)
        text = came.body.decode("utf-8", "surrogateescape")
        value = {**came._asdict(), **_packed(self._kept(text, answer))}
        self.session.exchanged(sent.question, [sent.dialect.path_end], value)
        if answer is None:
            self._failed = sent
            self.session.commit()
            return
        self._failed = None
        self.session.answered(sent.question, _replied(sent, answer))

    def _kept(self, text: str, answer: Answered | None) -> str | None:
        """The body as it may be written; None where a secret lies scattered over a stream."""
        clean = self.session.redact(text)
        if answer is None or self.session.redact(answer.message) == answer.message:
            return str(clean)
        return str(clean) if _json(text.encode("utf-8", "replace")) is not None else None

    def taped(self, sent: Sent) -> Exchange:
        """What came back when this was recorded. Raises Diverged."""
        self._open = None
        value = self.session.exchanged(sent.question, [sent.dialect.path_end], None)
        if value["body"] is None:
            raise Diverged(
                f"the stream of turn {sent.question.turn} held a secret, so it was not kept and "
                "cannot be replayed"
            )
        body = _unpacked(value).encode("utf-8", "surrogateescape")
        came = Exchange(value["status"], value["headers"], value["error"], body)
        if _answer(sent, came) is None:
            self._failed = sent
        else:
            self._failed = None
            self.session.answered(sent.question, None)
        return came


def _answer(sent: Sent, came: Exchange) -> Answered | None:
    if not came.is_success:
        return None
    stream = dict(came.headers).get("content-type", "").startswith("text/event-stream")
    return read_answer(sent.dialect, came.body.decode("utf-8", "replace"), stream=stream)


def _replied(sent: Sent, answer: Answered) -> ModelReplied:
    return ModelReplied(
        message=with_own_ids(answer.message, sent.question.turn),
        request_hash=sent.question.request_hash,
        requested_model=sent.model,
        served_model=answer.served_model,
        finish_reason=answer.finish_reason,
        usage=answer.usage,
        provider_id=answer.provider_id,
        provider_call_ids=provider_ids(answer.message),
        duration_ms=round(1000 * (time.monotonic() - sent.began), 3),
    )


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def _packed(text: str | None) -> dict[str, Any]:
    """A body as JSON: text, or where it is long zlib in base64 (a stream shrinks to a tenth)."""
    if text is None or len(text) < PACKED_FROM_BYTES:
        return {"body": text}
    raw = zlib.compress(text.encode("utf-8", "surrogateescape"), 6)
    return {"body": base64.b64encode(raw).decode(), "packed": "zlib"}


def _unpacked(value: dict[str, Any]) -> str:
    body: str = value["body"]
    if value.get("packed") != "zlib":
        return body
    return zlib.decompress(base64.b64decode(body)).decode("utf-8", "surrogateescape")


def _module(name: str) -> ModuleType | None:
    try:
        return import_module(name)
    except ImportError:
        return None


def _default() -> ModuleType:
    return import_module("httpx2")
