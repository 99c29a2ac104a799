"""A marked secret through every path; then every byte that was written is searched (R11, M08)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from loops import plain_loop, proposes, says

import branchkit
from branchkit.boundary.model import ModelRequest
from branchkit.errors import ModelError
from branchkit.harness.tools import tool
from branchkit.journal.events import TaskStarted
from branchkit.journal.file import read
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import rewind
from branchkit.replay.strict import replay

MARK = "CANARY4f1d"
BY_SHAPE = f"ghp_{MARK}{'x' * 30}"
BY_VALUE = f"correct horse {MARK} staple"
BY_FIELD = f"plain-{MARK}"


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BRANCHKIT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MY_SERVICE_TOKEN", BY_VALUE)


def found_in(root: Path) -> list[str]:
    """Every file below ``root`` that holds the mark, in plain or compressed by a pack."""
    return [str(path) for path in root.rglob("*") if path.is_file() and _holds(path.read_bytes())]


def _holds(data: bytes) -> bool:
    return MARK.encode() in data or MARK.encode().hex().encode() in data


ran: list[dict[str, Any]] = []


@tool(effect="external")
def login(user: str, password: str) -> str:
    """Log in."""
    ran.append({"user": user, "password": password})
    return f"Set-Cookie: id={MARK}\nwelcome {user}, your token is {BY_SHAPE}"


@tool(effect="external")
def dump(size: int) -> str:
    """Much text with a secret at its end: it goes to the blobs."""
    return "x" * size + f" {BY_VALUE}"


@tool(effect="external")
def fail() -> str:
    """An error whose text tells too much."""
    raise RuntimeError(f"cannot reach https://me:{MARK}pw@host/")


def record(path: Path) -> list[ModelRequest]:
    asked: list[ModelRequest] = []
    replies = [
        proposes(("login", {"user": "u", "password": BY_FIELD}), text=f"I use {BY_SHAPE}"),
        proposes(("dump", {"size": 5000}), ("fail", {})),
        says(f"done with {BY_VALUE}"),
    ]

    def model(request: ModelRequest) -> dict[str, Any]:
        asked.append(request)
        return replies[request.turn - 1]

    with branchkit.session(
        path, model=model, tools=[login, dump, fail], task=f"use {BY_VALUE}"
    ) as session:
        plain_loop(session, f"log in with {BY_SHAPE}")
    return asked


def test_no_secret_reaches_the_disk(tmp_path: Path) -> None:
    """R11: task, input, reply, arguments, result, blob, error: found nowhere, marked everywhere."""
    ran.clear()
    asked = record(tmp_path / "run.journal.jsonl")
    assert found_in(tmp_path) == []
    text = (tmp_path / "run.journal.jsonl").read_text()
    for name in ("token", "MY_SERVICE_TOKEN", "password", "set-cookie", "url-password"):
        assert f"[redacted:{name}]" in text
    # The model saw what the journal says; the tool ran with what the model said.
    assert all(MARK not in json.dumps(request.messages) for request in asked)
    assert ran == [{"user": "u", "password": BY_FIELD}]


def test_what_was_redacted_still_replays(tmp_path: Path) -> None:
    """The hashes are made of what was written, so replay and rewind find them again."""
    path = tmp_path / "run.journal.jsonl"
    asked = record(path)
    recorded = Recorded.open(path)
    found = replay(recorded, lambda session: plain_loop(session, f"log in with {BY_SHAPE}"))
    assert found.ok, found.divergence
    for turn, request in enumerate(asked, 1):
        assert rewind(recorded, turn).context == request.messages


def test_the_rules_are_a_recorded_fact(tmp_path: Path) -> None:
    """R4: replay follows the rules of the run; one from before there were any is taken as it is."""
    path = tmp_path / "run.journal.jsonl"
    record(path)
    started = read(path)[0][0].payload
    assert isinstance(started, TaskStarted)
    assert started.versions["redaction"] == "1"


def test_an_error_of_the_model_is_told_without_its_secret(tmp_path: Path) -> None:
    """Addresses with passwords stand in error messages; the caller sees the marker too."""

    def model(_request: ModelRequest) -> dict[str, Any]:
        raise ModelError(f"no answer from https://me:{MARK}@host", hint="")

    path = tmp_path / "run.journal.jsonl"
    with (
        pytest.raises(ModelError, match=r"\[redacted:url-password\]"),
        branchkit.session(path, model=model) as session,
    ):
        plain_loop(session)
    assert found_in(tmp_path) == []


def test_the_search_would_have_found_it(tmp_path: Path) -> None:
    """The check above can fail."""
    (tmp_path / "leak").write_bytes(os.urandom(10) + MARK.encode())
    assert len(found_in(tmp_path)) == 1
