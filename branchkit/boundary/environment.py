"""Clock, identifiers, entropy and listings, each read through the boundary (R52, I03)."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

TURN_SECONDS = 60
ENTROPY = ("uuid4", "random", "urandom")


class TurnClock:
    """A clock that stands still within a turn and advances by a minute from one to the next.

    Branches run under it: with the wall clock every commit date, and so every workspace hash, would
    differ between branches that behave equally.
    """

    def __init__(self, start: str) -> None:
        self._start = datetime.fromisoformat(start)

    def at(self, turn: int) -> datetime:
        """The time of ``turn``, in UTC."""
        return (self._start + timedelta(seconds=TURN_SECONDS * turn)).astimezone(UTC)


def git_environment(clock: TurnClock, turn: int) -> dict[str, str]:
    """The variables that make git's commits equal in branches that behave equally."""
    date = clock.at(turn).strftime("%Y-%m-%dT%H:%M:%S+0000")
    names = {"NAME": "branchkit", "EMAIL": "branchkit@localhost", "DATE": date}
    return {
        f"GIT_{role}_{name}": value
        for role in ("AUTHOR", "COMMITTER")
        for name, value in names.items()
    }


class Entropy:
    """The sources of a run: real ones when recording, seeded ones in a branch."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed) if seed is not None else random.SystemRandom()

    def draw(self, source: str, arguments: list[Any]) -> Any:
        """The next value of ``source``, one of ENTROPY."""
        match source:
            case "uuid4":
                return self.uuid4()
            case "random":
                return self.random()
            case "urandom":
                return self.urandom(arguments[0]).hex()
            case _:
                raise AssertionError(source)

    def uuid4(self) -> str:
        return str(uuid.UUID(bytes=self.urandom(16), version=4))

    def random(self) -> float:
        return self._random.random()

    def urandom(self, size_bytes: int) -> bytes:
        return self._random.getrandbits(8 * size_bytes).to_bytes(size_bytes, "big")


def listing(path: str) -> list[str]:
    """The names in ``path`` in the order the operating system gives them, which is recorded."""
    return [entry.name for entry in Path(path).iterdir()]
