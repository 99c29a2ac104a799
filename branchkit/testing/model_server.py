"""A scripted chat-completions server on the loopback interface, for tests of real HTTP clients.

    with ModelServer([refuse(429), call("add", a=2, b=3), say("It is 5.")]) as server:
        model = f"openai:any@{server.url}"      # asks twice, is told to add, then hears the end

The script is a list of answers, given one a request, in order, whatever is asked; or a function
from the request's body to an answer. What was asked stands in ``requests``. A request after the
script's end is answered with HTTP 410, which no client retries, and so fails the test that made it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """One HTTP answer. With ``cut`` the connection ends after so many bytes of ``body``."""

    status: int
    body: bytes
    cut: int | None = None
    headers: Mapping[str, str] = {}


class Received(NamedTuple):
    """One request as it arrived; header names in lower case, ``body`` parsed."""

    path: str
    headers: dict[str, str]
    body: Any


Script = Sequence[Answer] | Callable[[Any], Answer]


def reply(message: Mapping[str, Any], *, model: str = "scripted") -> Answer:
    """A completion that holds ``message``, an assistant message in OpenAI shape."""
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    completion = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "model": model,
        "choices": [{"index": 0, "message": dict(message), "finish_reason": reason}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
    # ASCII, so that a lone surrogate goes out as the escape that real providers send.
    return Answer(200, json.dumps(completion).encode("ascii"))


def say(text: str) -> Answer:
    """A reply without calls."""
    return reply({"role": "assistant", "content": text})


def call(name: str, /, **arguments: Any) -> Answer:
    """A reply that proposes one call. Its id is the same every time, as some providers' are."""
    return calls((name, json.dumps(arguments)))


def calls(*wanted: tuple[str, str]) -> Answer:
    """A reply that proposes calls, each a name and the text of its arguments, JSON or not."""
    proposed = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}
        for number, (name, text) in enumerate(wanted)
    ]
    return reply({"role": "assistant", "content": None, "tool_calls": proposed})


def refuse(status: int, body: str = "") -> Answer:
    """An error status, such as 429 or 500, with the provider's words about it."""
    return Answer(status, body.encode() or json.dumps({"error": {"code": status}}).encode())


def babble(text: str) -> Answer:
    """Status 200 with a body that is no completion: a proxy's login page, half a JSON text."""
    return Answer(200, text.encode("utf-8", "surrogatepass"))


def cut(answer: Answer, after_bytes: int = 0) -> Answer:
    """``answer`` with its connection lost after ``after_bytes`` bytes of the body."""
    return answer._replace(cut=after_bytes)


class ModelServer:
    """The server, from ``with`` to the end of the block; ``url`` is what ``openai:NAME@URL`` takes.

    Requests may come from several threads and processes at once; the script goes by arrival.
    """

    def __init__(self, script: Script) -> None:
        self.requests: list[Received] = []
        self._script = script
        self._turn = threading.Lock()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        # A client that keeps a connection open must not keep the test from ending.
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """The base URL; the port is one that was free."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def count(self) -> int:
        """How many requests have come."""
        return len(self.requests)

    def close(self) -> None:
        """Stop serving; from now on connections are refused. A second call does nothing."""
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _answer(self, received: Received) -> Answer:
        with self._turn:
            self.requests.append(received)
            if callable(self._script):
                return self._script(received.body)
            number = len(self.requests)
            if number > len(self._script):
                return refuse(410, f"the script ended after {len(self._script)} answers")
            return self._script[number - 1]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("content-length", 0))
                body = json.loads(self.rfile.read(length) or b"null")
                headers = {name.lower(): value for name, value in self.headers.items()}
                _send(self, server._answer(Received(self.path, headers, body)))

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Nothing: the requests are kept, and a test's stderr stays readable."""

        return Handler


def _send(handler: BaseHTTPRequestHandler, answer: Answer) -> None:
    handler.send_response(answer.status)
    headers = {"content-type": "application/json", **answer.headers}
    for name, value in {**headers, "content-length": str(len(answer.body))}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(answer.body if answer.cut is None else answer.body[: answer.cut])
