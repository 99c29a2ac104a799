"""The state at a turn, rebuilt from raw JSON lines without a line of branchkit's code.

It says what the journal's format means, and is what ``rewind`` is held against. Forms that the
sample does not use (parents, compaction) are left out on purpose: they raise KeyError here.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

Json = Any


def events(journal: Path) -> list[Json]:
    """The envelopes, in order."""
    return [json.loads(line) for line in journal.read_bytes().splitlines()]


class Naive:
    """A run read the slow and obvious way."""

    def __init__(self, journal: Path) -> None:
        self.events = events(journal)
        self._pack = zipfile.ZipFile(journal.with_name(journal.name.split(".")[0] + ".pack"))

    def close(self) -> None:
        self._pack.close()

    def payloads(self, kind: str, turn: int | None = None) -> list[Json]:
        """The payloads of a kind, of one turn or of all."""
        return [
            event["payload"]
            for event in self.events
            if event["kind"] == kind and turn in (None, event["turn"])
        ]

    def full_text(self, call_id: str) -> str:
        """The whole result of a call."""
        (result,) = [r for r in self.payloads("ToolResult") if r["call_id"] == call_id]
        if result["text"] is not None:
            return str(result["text"])
        data = self._pack.read(f"blobs/{result['blob']}")
        assert hashlib.sha256(data).hexdigest() == result["sha256"]
        return data.decode()

    def context(self, turn: int) -> list[Json]:
        """What the model was given for reply ``turn``, from references one by one."""
        (built,) = self.payloads("ContextBuilt", turn)
        return self._of(built)

    def _of(self, built: Json) -> list[Json]:
        seq = built["base_seq"]
        base = [] if seq is None else self._of(self.events[seq]["payload"])
        messages: list[Json] = []
        for part in built["parts"]:
            match part["part"]:
                case "copy":
                    messages += base[part["start"] : part["stop"]]
                case "event":
                    messages.append(self._message(self.events[part["seq"]]))
                case "new":
                    messages.append(part["message"])
                case other:
                    raise KeyError(other)
        assert len(messages) == built["messages"]
        return messages

    def _message(self, event: Json) -> Json:
        payload = event["payload"]
        if event["kind"] in ("InputReceived", "ModelReplied"):
            return payload["message"]
        assert event["kind"] == "Delivered"
        text = payload["text"]
        if text is None:
            text = self.full_text(payload["call_id"])
        return {"role": "tool", "tool_call_id": payload["call_id"], "content": text}

    def end_context(self) -> list[Json]:
        """After the last reply: everything that the loop then had in hand."""
        turns = max(event["turn"] for event in self.events if event["kind"] == "ModelReplied")
        answers = [self._message(e) for e in self.events
                   if e["kind"] == "Delivered" and e["turn"] == turns]  # fmt: skip
        (reply,) = self.payloads("ModelReplied", turns)
        return [*self.context(turns), reply["message"], *answers]

    def counts_before(self, turn: int) -> dict[str, int]:
        """What was used up before reply ``turn``."""
        return {
            name: sum(e["kind"] == kind and e["turn"] < turn for e in self.events)
            for name, kind in (("model_calls", "ModelReplied"), ("tool_calls", "ToolResult"))
        }

    def hidden_before(self, turn: int) -> list[str]:
        """Calls whose result the model has seen only a part of."""
        return [
            event["payload"]["call_id"]
            for event in self.events
            if event["kind"] == "Delivered"
            and event["turn"] < turn
            and event["payload"]["text"] is not None
        ]
