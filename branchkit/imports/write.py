"""An imported run as a journal: the events that our own recorder would have written.

Deterministic: the run's id comes from the hash of the source, every time from the source (or from
``NO_TIME``), so two imports of one file give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from branchkit.errors import InputRefused
from branchkit.imports.run import (
    Answer,
    Compaction,
    Context,
    ImportedCall,
    ImportedRun,
    Input,
    Turn,
)
from branchkit.journal.blobs import INLINE_LIMIT_BYTES, Blobs
from branchkit.journal.events import (
    Compacted,
    Component,
    ContextBuilt,
    Delivered,
    Event,
    InputReceived,
    Message,
    ModelReplied,
    Origin,
    Payload,
    StateTransition,
    TaskFinished,
    TaskStarted,
    ToolAuthorized,
    ToolIntent,
    ToolProposed,
    ToolResult,
    call_step,
    reply_step,
)
from branchkit.journal.file import Writer
from branchkit.journal.format import value_hash
from branchkit.record import fold as folding
from branchkit.record.context import ContextHash, Seen, difference, seen, tool_message
from branchkit.record.record import REDUCER_VERSION, Record

NO_TIME = "1970-01-01T00:00:00+00:00"
RULE = "imported"  # the rule of deliveries that another harness made
_NAMESPACE = uuid5(NAMESPACE_URL, "branchkit:import")


def run_id_of(origin: Origin) -> str:
    """The id of the run: the same for the same bytes, format and importer."""
    name = f"{origin.importer}:{origin.format}:{origin.source_sha256}"
    return str(uuid5(_NAMESPACE, name))


def write_run(run: ImportedRun, origin: Origin, path: Path, blobs: Blobs) -> list[str]:
    """Write the journal to the new file ``path``; returns the addresses of its blobs.

    Raises InputRefused if the file holds a value that no journal can.
    """
    scribe = _Scribe(run, origin, path, blobs)
    try:
        scribe.write()
    except (ValueError, TypeError) as error:
        raise InputRefused(
            f"{origin.source} holds a value that a journal cannot: {error}",
            hint="report the file: nothing was written",
        ) from None
    finally:
        scribe.close()
    return sorted(scribe.blob_addresses)


class _Scribe:
    """Writes one run."""

    def __init__(self, run: ImportedRun, origin: Origin, path: Path, blobs: Blobs) -> None:
        self.blob_addresses: set[str] = set()
        self._run, self._origin, self._blobs = run, origin, blobs
        self._time = run.started_at or NO_TIME
        self._writer = Writer(path, run_id=run_id_of(origin), now=lambda: self._time)
        self._record = Record()
        self._hash = ContextHash([])
        self._known: dict[str, Seen] = {}  # messages that stand in an event, by their hash
        self._hashed: dict[int, Seen] = {}  # by identity; the run keeps the messages alive
        self._context: list[Seen] = []
        self._last: Context | None = None
        self._built: int | None = None  # seq of the newest ContextBuilt
        self._turn = 0

    def close(self) -> None:
        self._writer.close()

    def write(self) -> None:
        self._emit(self._started())
        self._happened(self._run.opening, [])
        for number, turn in enumerate(self._run.turns, start=1):
            self._write_turn(number, turn)
        self._at(self._run.ended_at)
        self._emit(TaskFinished(status=self._run.end, reason=self._run.end_reason))
        self._writer.commit()

    def _emit(self, payload: Payload, call_id: str | None = None) -> Event:
        event = self._writer.append(
            payload, turn=self._turn, step_id=call_id or reply_step(self._turn)
        )
        folding.apply(self._record, event)
        return event

    def _at(self, time: str | None) -> None:
        # What has no time of its own happened, as far as anybody knows, when the last thing did.
        self._time = time or self._time

    def _started(self) -> TaskStarted:
        run = self._run
        components = dict(run.components)
        if run.model:
            components["model"] = Component(spec=f"imported:{run.model}")
        if run.sampling:
            spec = ",".join(f"{name}:{value}" for name, value in sorted(run.sampling.items()))
            components["sampling"] = Component(spec=spec)
        totals = {f"total.{name}": str(value) for name, value in run.totals.items()}
        return TaskStarted(
            task=run.task,
            harness=run.format,
            components=components,
            tools=[],
            budgets={},
            seed=0,
            started_at=run.started_at or NO_TIME,
            versions=run.facts | totals,
            origin=self._origin,
        )

    def _write_turn(self, number: int, turn: Turn) -> None:
        self._turn = number
        before = self._record.logical
        self._at(turn.at)
        request_hash = self._write_context(turn.context)
        event = self._emit(
            ModelReplied(
                message=turn.reply,
                request_hash=request_hash,
                requested_model=self._run.model,
                served_model=turn.served_model or self._run.model,
                finish_reason=turn.finish_reason,
                usage=turn.usage,
                provider_id=turn.provider_id,
                provider_call_ids=[call.provider_id for call in turn.calls],
            )
        )
        self._remember(turn.reply, event)
        for index, call in enumerate(turn.calls, start=1):
            self._propose(call_step(number, index), call)
        self._happened(turn.happened, turn.calls)
        self._emit(
            StateTransition(
                cause_seq=event.seq,
                before_hash=before,
                after_hash=self._record.logical,
                reducer_version=REDUCER_VERSION,
            )
        )

    def _write_context(self, context: Context) -> str:
        """Write what the model saw; returns the hash of the request."""
        previous = self._context
        last = self._last
        if last and context.pool is last.pool and context.start == last.start <= last.stop:
            new = context.pool[last.stop : context.stop]
            current = [*previous, *map(self._seen, new)]
            if context.stop < last.stop:
                current = previous[: context.stop - context.start]
        else:
            current = [self._seen(each) for each in context.pool[context.start : context.stop]]
        context_hash = self._hash.of(current)
        sampling = dict(self._run.sampling)
        request_hash = value_hash([context_hash, self._run.model, sampling])
        self._built = self._emit(
            ContextBuilt(
                parts=difference(previous, current),
                messages=len(current),
                context_hash=context_hash,
                request_hash=request_hash,
                sampling=sampling,
                base_seq=self._built,
            )
        ).seq
        self._context, self._last = current, context
        return request_hash

    def _seen(self, message: Message) -> Seen:
        item = self._hashed.get(id(message))
        if item is None:
            item = self._hashed[id(message)] = seen(message)
        return self._known.get(item.message_hash, item)

    def _remember(self, message: Message, event: Event) -> None:
        item = self._seen(message)._replace(seq=event.seq)
        self._known[item.message_hash] = item

    def _propose(self, call_id: str, call: ImportedCall) -> None:
        self._emit(
            ToolProposed(
                call_id=call_id, name=call.name, arguments=call.arguments, problem=call.problem
            ),
            call_id,
        )
        if call.denied:
            self._emit(
                ToolAuthorized(
                    call_id=call_id, decision="deny", policy=self._run.format, reason=call.denied
                ),
                call_id,
            )
        elif call.problem is None:
            key = value_hash([self._writer.run_id, call_id])[7:39]
            self._emit(
                ToolIntent(
                    call_id=call_id,
                    name=call.name,
                    request_hash=value_hash([call.name, call.arguments]),
                    effect=call.effect,
                    idempotency_key=key,
                ),
                call_id,
            )

    def _happened(
        self, happened: Sequence[Answer | Input | Compaction], calls: Sequence[ImportedCall]
    ) -> None:
        for each in happened:
            self._at(each.at)
            if isinstance(each, Answer):
                self._answer(each, calls[each.call])
            elif isinstance(each, Input):
                event = self._emit(InputReceived(message=each.message, source=each.source))
                self._remember(each.message, event)
            else:
                self._emit(
                    Compacted(
                        messages=each.messages,
                        reason=each.trigger,
                        tokens_before=each.tokens_before,
                    )
                )

    def _answer(self, answer: Answer, call: ImportedCall) -> None:
        call_id = call_step(self._turn, answer.call + 1)
        text = call.text or ""
        data = text.encode("utf-8", "surrogatepass")
        inline = len(data) <= INLINE_LIMIT_BYTES
        blob = None if inline else self._blobs.put(data)
        if blob is not None:
            self.blob_addresses.add(blob)
        self._emit(
            ToolResult(
                call_id=call_id,
                status=call.status,
                sha256=hashlib.sha256(data).hexdigest(),
                bytes=len(data),
                text=text if inline else None,
                blob=blob,
                exit_code=answer.exit_code,
                duration_ms=answer.duration_ms,
            ),
            call_id,
        )
        if answer.message is None:
            return
        plain = tool_message(call_id, text if answer.shown is None else answer.shown)
        shown = None if answer.shown is None else answer.shown.encode("utf-8", "surrogatepass")
        event = self._emit(
            Delivered(
                call_id=call_id,
                rule=RULE,
                text=answer.shown,
                message=None if answer.message == plain else answer.message,
                omitted_bytes=0 if shown is None else max(0, len(data) - len(shown)),
            ),
            call_id,
        )
        self._remember(answer.message, event)
