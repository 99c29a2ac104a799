"""What the published experiment left open, one situation each (R26, R28; N11-N14, N17-N30).

A run with a deterministic model and one effect. It dies by SIGKILL or loses its connection; the
rows of the service say what happened, the journal has to say the same or *in doubt*.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from shop import CALL, OPERATION, Shop, order

from branchkit.errors import JournalLocked, UsageError
from branchkit.harness.tools import tool
from branchkit.journal.events import Event, Settled, ToolIntent
from branchkit.journal.file import read, verify
from branchkit.process import Workers
from branchkit.record.fold import fold
from branchkit.record.record import Record
from branchkit.testing.crash import Ended, in_child
from branchkit.testing.effect_service import EffectService, effects

Way = Literal["keyed", "asked", "neither"]
WAYS: tuple[Way, ...] = ("keyed", "asked", "neither")


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(2) as two:
        yield two


class Desk:
    """The shop's service and the processes that order from it."""

    def __init__(
        self, folder: Path, workers: Workers, way: Way, *, in_process: bool = False
    ) -> None:
        self.folder, self.way = folder, way
        self._workers = workers
        self.service = EffectService(
            folder / "e.sqlite",
            contract="keyed" if way == "keyed" else "plain",
            probe=True,
            in_process=in_process,
        ).start()

    def shop(self, **changes: Any) -> Shop:
        shop = Shop(
            self.folder, self.service.url, key=self.way == "keyed", can_ask=self.way == "asked"
        )
        return shop._replace(**changes)

    def submit(self, *arguments: Any, crash_at: str | None = None) -> Any:
        return self._workers.submit(in_child, order, *arguments, crash_at=crash_at)

    def record(self, before: str | None = None, inside: str | None = None, **changes: Any) -> str:
        """The run from its start; it dies at the crash point that is named, if one is."""
        ended = self.submit(self.shop(**changes), "record", before, inside).result()
        return self._said(ended, before or inside)

    def resume(self, crash_at: str | None = None, **changes: Any) -> str:
        """Another process goes on; "killed" where it died at ``crash_at``."""
        ended = self.submit(self.shop(**changes), "resume", crash_at=crash_at).result()
        return self._said(ended, crash_at)

    def _said(self, ended: Ended, point: str | None) -> str:
        if point is not None:
            assert ended.killed, (point, ended)
            return "killed"
        said: str = ended.result()
        return said

    @property
    def rows(self) -> int:
        """How often it happened; each time under a key that an intent holds (R28)."""
        found = effects(self.service.db)
        intents = [e.payload for e in self.events if isinstance(e.payload, ToolIntent)]
        assert {row.key for row in found} <= {intent.idempotency_key for intent in intents}
        assert {row.operation for row in found} <= {OPERATION}
        return len(found)

    @property
    def events(self) -> list[Event]:
        return read(self.folder / "run.journal.jsonl")[0]

    @property
    def found(self) -> Record:
        return fold(None, self.events)

    @property
    def word(self) -> str:
        return self.found.calls[CALL].word

    def settled_by(self) -> list[str]:
        return [e.payload.by for e in self.events if isinstance(e.payload, Settled)]


@pytest.fixture
def desk(tmp_path: Path, workers: Workers, request: pytest.FixtureRequest) -> Iterator[Desk]:
    alone = "service_dies" in request.node.name  # the others are quicker in a thread
    made = Desk(tmp_path, workers, request.param, in_process=alone)
    yield made
    made.service.close()
    assert verify(tmp_path / "run.journal.jsonl").ok


by_way = pytest.mark.parametrize("desk", WAYS, indirect=True)
keyed = pytest.mark.parametrize("desk", ["keyed"], indirect=True)
asked = pytest.mark.parametrize("desk", ["asked"], indirect=True)
neither = pytest.mark.parametrize("desk", ["neither"], indirect=True)


@keyed
def test_the_key_is_kept_from_launch_to_launch(desk: Desk) -> None:
    """N11, N28: four processes, three of them killed; one key, one effect, the first receipt."""
    desk.record(inside="effect_done")
    for point in ("settle.begin", "effect_done", "settle.found"):
        desk.resume(crash_at=point)
        assert (desk.word, desk.rows) == ("in doubt", 1)
    assert desk.resume() == "completed: receipt-1"
    assert (desk.word, desk.rows, desk.settled_by()) == ("completed", 1, ["key"])
    keys = {e.payload.idempotency_key for e in desk.events if isinstance(e.payload, ToolIntent)}
    assert keys == {row.key for row in effects(desk.service.db)}


@asked
@pytest.mark.parametrize("happened", [False, True])
def test_the_outer_state_is_looked_at_before_a_retry(desk: Desk, happened: bool) -> None:
    """N29, D09: both answers of a probe; a new intent only after it has said "not done"."""
    desk.record(before=None if happened else "intent_durable", inside="effect_done")
    assert (desk.word, desk.rows) == ("in doubt", int(happened))
    assert desk.resume() == "completed: receipt-1"
    assert (desk.word, desk.rows, desk.settled_by()) == ("completed", 1, ["probe"])
    after = [e.kind for e in desk.events[[e.kind for e in desk.events].index("Settled") :]]
    assert ("ToolIntent" in after) != happened


@by_way
@pytest.mark.parametrize("switch", ["lose_replies", "drop_requests"])
def test_the_network_takes_the_reply_or_the_request(desk: Desk, switch: str) -> None:
    """N21, N22, D11: the process lives and cannot tell the two apart; the way to settle can."""
    desk.service.switch(**{switch: 1})
    said = desk.record()
    if desk.way == "neither":
        assert said.startswith("waiting")
        assert desk.rows == (1 if switch == "lose_replies" else 0)
        assert desk.word == "in doubt"
        assert CALL in desk.found.questions
    else:
        assert (said, desk.rows, desk.word) == ("completed: receipt-1", 1, "completed")


@by_way
def test_a_timeout_is_in_doubt_and_no_failure(desk: Desk) -> None:
    """D11: the service is slow; the effect is there, and nobody says that it failed."""
    desk.service.switch(delay_s=30)
    said = desk.record(timeout_s=0.2)
    assert desk.rows == 1
    desk.service.switch(delay_s=0)
    if desk.way == "asked":
        assert said == "completed: receipt-1"
        return
    # Sent again under its key, it is not answered either: nobody can tell yet.
    assert said.startswith("waiting")
    assert desk.word == "in doubt"
    said = desk.resume()
    assert said.startswith("waiting" if desk.way == "neither" else "completed: receipt-1")
    assert desk.rows == 1


@pytest.mark.parametrize("desk", ["keyed"], indirect=True)
@pytest.mark.parametrize("can_ask", [False, True])
def test_the_key_has_expired(desk: Desk, can_ask: bool) -> None:
    """N24: a key that the service has forgotten protects nothing, so it is not sent again."""
    desk.record(inside="effect_done", key_ttl_s=0.001)
    desk.service.switch(key_lifetime_s=60, clock_s=61)
    said = desk.resume(key_ttl_s=0.001, can_ask=can_ask)
    assert desk.rows == 1
    if can_ask:
        assert (said, desk.settled_by()) == ("completed: receipt-1", ["probe"])
    else:
        assert said.startswith("waiting")
        assert "forgets" in desk.found.questions[CALL]


@keyed
def test_a_tool_that_promises_too_much_is_believed(desk: Desk) -> None:
    """N24: a key said to last for ever, at a service that forgets it, is done twice. No library can
    know a contract better than the tool that declares it: this is what ``key_ttl_s`` is for."""
    desk.record(inside="effect_done")
    desk.service.switch(key_lifetime_s=60, clock_s=61)
    desk.resume()
    assert desk.rows == 2


@keyed
def test_other_parameters_under_the_same_key(desk: Desk) -> None:
    """N25: today's code would order something else; the service refuses, a person is asked."""
    desk.record(inside="effect_done")
    said = desk.resume(amount=6)
    assert said.startswith("waiting")
    assert "another request" in desk.found.questions[CALL]
    assert (desk.word, desk.rows) == ("in doubt", 1)


@by_way
def test_two_processes_recover_at_once(desk: Desk) -> None:
    """N23: one goes on; the other finds the journal taken, or the run ended or waiting."""
    desk.record(inside="effect_done")
    both = [desk.submit(desk.shop(), "resume") for _ in range(2)]
    ended = [one.result() for one in both]
    said = [str(one.value) for one in ended if one.code == 0]
    assert said
    assert {one.partition(":")[0] for one in said} <= (
        {"waiting"} if desk.way == "neither" else {"completed"}
    )
    for other in (one for one in ended if one.code != 0):
        assert any(kind.__name__ in other.error for kind in (JournalLocked, UsageError))
    assert desk.rows == 1


@keyed
@pytest.mark.parametrize("point", ["intent_durable", "effect_done"])
def test_the_policy_is_asked_again_before_a_retry(desk: Desk, point: str) -> None:
    """N12, N30: today's policy denies it, so nothing is sent, whatever the key would allow."""
    desk.record(before=point)
    before = desk.rows
    assert before == (1 if point == "effect_done" else 0)
    said = desk.resume(allowed=False)
    assert said.startswith("waiting")
    assert "may not be sent again" in desk.found.questions[CALL]
    assert (desk.word, desk.rows) == ("in doubt", before)


@pytest.mark.parametrize("desk", ["keyed"], indirect=True)
@pytest.mark.parametrize("can_ask", [False, True])
def test_the_authority_has_expired_at_the_service(desk: Desk, can_ask: bool) -> None:
    """N12, N26: "403" to the repeat says nothing of the first request. The right to read may be
    left when the right to act is gone; a receipt that is found gives no new rights."""
    desk.record(inside="effect_done", token="grant")
    desk.service.switch(expired=["grant"])
    said = desk.resume(token="grant", can_ask=can_ask)
    assert desk.rows == 1
    if can_ask:
        assert (said, desk.settled_by()) == ("completed: receipt-1", ["probe"])
    else:
        assert said.startswith("waiting")
        assert desk.word == "in doubt"


@by_way
def test_the_queue_delivers_later(desk: Desk) -> None:
    """N27: accepted, and not there yet. A probe that says "absent" of it would order twice."""
    desk.service.switch(queued=True)
    desk.record(inside="effect_done")
    said = desk.resume()
    assert desk.rows == 0
    if desk.way == "keyed":
        assert said == "completed: receipt-1"
    else:
        assert said.startswith("waiting")
        assert desk.word == "in doubt"
    desk.service.deliver()
    assert desk.rows == 1
    if desk.way == "asked":
        assert desk.resume() == "completed: receipt-1"
    assert desk.rows == 1


@asked
def test_a_probe_that_promises_too_much_is_believed(desk: Desk) -> None:
    """N27: "not done" of what is only not done yet orders it twice; "unknown" is the answer."""
    desk.service.switch(queued=True)
    desk.record(inside="effect_done")
    desk.resume(rash=True)
    desk.service.deliver()
    assert desk.rows == 2


@by_way
def test_the_service_is_down_while_we_recover(desk: Desk) -> None:
    """N21, N30: "connection refused" to the repeat says nothing of the first request."""
    desk.record(inside="effect_done")
    desk.service.close()
    assert desk.resume().startswith("waiting")
    assert (desk.word, desk.rows) == ("in doubt", 1)
    desk.service.start()
    said = desk.resume()
    assert said.startswith("waiting" if desk.way == "neither" else "completed: receipt-1")
    assert desk.rows == 1


@by_way
def test_the_service_dies_after_its_commit(desk: Desk) -> None:
    """N20: SQLite recovers the row, its key and its receipt; the client is as wise as before."""
    desk.service.switch(die_after_commit=1)
    assert desk.record().startswith("waiting")
    desk.service.close()
    assert (desk.word, desk.rows) == ("in doubt", 1)
    desk.service.start()
    said = desk.resume()
    assert said.startswith("waiting" if desk.way == "neither" else "completed: receipt-1")
    assert desk.rows == 1


@neither
def test_what_waits_sends_nothing_however_often_it_is_resumed(desk: Desk) -> None:
    """D07, D10: only an answer lets it go on; asking again is not an answer."""
    desk.record(inside="effect_done")
    for _ in range(3):
        assert desk.resume().startswith("waiting")
    assert (desk.word, desk.rows) == ("in doubt", 1)
    assert len(desk.found.questions) == 1


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (TimeoutError("slow"), False),
        (http.client.RemoteDisconnected("gone"), False),
        (http.client.IncompleteRead(b""), False),
        (ConnectionRefusedError("nobody there"), True),
        (ValueError("no such article"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_of_the_tools_own_hides_nothing(error: Exception, known: bool) -> None:
    """D11: "RuntimeError: it failed" on top of a lost reply is a lost reply."""

    def wrapping() -> str:
        try:
            raise error
        except Exception as below:
            raise RuntimeError("it failed") from below

    wanted = "error" if known else "unanswered"
    assert tool(effect="external")(wrapping).run({}).status == wanted
