"""The counting service: rows before replies, two contracts, and each switch (R25, R26, N04)."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from branchkit.errors import UsageError
from branchkit.testing.effect_client import NO_REPLY, Refused
from branchkit.testing.effect_service import (
    Audit,
    Contract,
    EffectService,
    audit,
    effects,
    perform,
    probe,
    write_csv,
)


def test_plain_counts_every_request(tmp_path: Path) -> None:
    """N04: each POST is a row, whatever its key; the row is there before the reply."""
    with EffectService(tmp_path / "e.sqlite") as service:
        for number in range(3):
            perform(service.url, "order", key="k")
            assert service.audit().rows == number + 1
    assert audit(tmp_path / "e.sqlite") == Audit(3, 1, {"order": 3})
    assert audit(tmp_path / "e.sqlite").duplicates == 2


def test_keyed_gives_the_old_receipt(tmp_path: Path) -> None:
    """N04: a repeat is no row and has the first receipt, also from a service that was restarted."""
    db = tmp_path / "e.sqlite"
    with EffectService(db, contract="keyed", in_process=True) as service:
        first = perform(service.url, "order", key="k", parameters={"sum": 5})
        with pytest.raises(Refused, match="400"):
            perform(service.url, "order")
    with EffectService(db, contract="keyed") as service:
        again = perform(service.url, "order", key="k", parameters={"sum": 5})
        with pytest.raises(Refused, match="422"):
            perform(service.url, "order", key="k", parameters={"sum": 6})
    assert (first.receipt, first.repeated) == (again.receipt, not again.repeated)
    assert audit(db) == Audit(1, 1, {})


def test_concurrent_clients_with_one_key(tmp_path: Path) -> None:
    """R26: sixteen at once under one key are one effect, and all get its receipt."""
    with EffectService(tmp_path / "e.sqlite", contract="keyed") as service:
        with ThreadPoolExecutor(16) as clients:
            receipts = set(
                clients.map(lambda _: perform(service.url, "order", key="k").receipt, range(16))
            )
        assert service.audit().rows == len(receipts) == 1


@pytest.mark.parametrize(("switch", "rows"), [("lose_replies", 1), ("drop_requests", 0)])
def test_no_reply_says_nothing(tmp_path: Path, switch: str, rows: int) -> None:
    """N01, D11: a client sees the same whether the reply was lost or the request was."""
    with EffectService(tmp_path / "e.sqlite", probe=True) as service:
        service.switch(**{switch: 1})
        with pytest.raises(NO_REPLY):
            perform(service.url, "order")
        assert service.audit().rows == rows
        assert probe(service.url, "order").state == ("done" if rows else "absent")
        perform(service.url, "order")


def test_a_timeout_is_not_a_failure(tmp_path: Path) -> None:
    """D11: the client gives up before the reply; the effect is there all the same."""
    with EffectService(tmp_path / "e.sqlite") as service:
        service.switch(delay_s=60)
        with pytest.raises(TimeoutError):
            perform(service.url, "order", timeout_s=0.05)
        assert service.audit().rows == 1


def test_a_key_expires(tmp_path: Path) -> None:
    """R26: once the service has forgotten the key, a repeat is a second effect."""
    with EffectService(tmp_path / "e.sqlite", contract="keyed") as service:
        service.switch(key_lifetime_s=60)
        perform(service.url, "order", key="k")
        service.switch(clock_s=60)
        assert perform(service.url, "order", key="k").repeated
        service.switch(clock_s=61)
        assert not perform(service.url, "order", key="k").repeated
        assert service.audit().duplicates == 1


@pytest.mark.parametrize("contract", ["plain", "keyed"])
def test_a_queue_delivers_later(tmp_path: Path, contract: Contract) -> None:
    """R26: accepted is not done, and not absent either."""
    with EffectService(tmp_path / "e.sqlite", contract=contract, probe=True) as service:
        service.switch(queued=True)
        perform(service.url, "order", key="k")
        assert service.audit().rows == 0
        assert probe(service.url, "order").state == "queued"
        perform(service.url, "order", key="k")
        assert service.deliver() == (2 if contract == "plain" else 1)
        assert probe(service.url, "order").state == "done"
        assert service.deliver() == 0


def test_authority_to_read_and_to_act(tmp_path: Path) -> None:
    """N12: an expired authority may still ask; a revoked one may do neither."""
    with EffectService(tmp_path / "e.sqlite", probe=True) as service:
        perform(service.url, "order", token="t")
        service.switch(expired=["t"])
        with pytest.raises(Refused, match="403"):
            perform(service.url, "order", token="t")
        assert probe(service.url, "order", token="t").state == "done"
        service.switch(revoked=["t"])
        with pytest.raises(Refused, match="403"):
            probe(service.url, "order", token="t")
        assert service.audit().rows == 1


def test_without_a_probe_it_does_not_tell(tmp_path: Path) -> None:
    with EffectService(tmp_path / "e.sqlite") as service, pytest.raises(Refused, match="404"):
        probe(service.url, "order")


@pytest.mark.parametrize("contract", ["plain", "keyed"])
def test_the_service_itself_is_killed(tmp_path: Path, contract: Contract) -> None:
    """N20: killed between COMMIT and reply, SQLite has the row, the key and the receipt."""
    db = tmp_path / "e.sqlite"
    with EffectService(db, contract=contract, in_process=True) as service:
        service.switch(die_after_commit=1)
        with pytest.raises(NO_REPLY):
            perform(service.url, "order", key="k")
        service.close()
        assert audit(db).rows == 1
        service.start()
        again = perform(service.url, "order", key="k")
    assert again.repeated == (contract == "keyed")
    assert audit(db).rows == (1 if contract == "keyed" else 2)
    with EffectService(tmp_path / "f.sqlite") as other, pytest.raises(UsageError):
        other.switch(die_after_commit=1)


def test_the_rows_are_counted_without_us(tmp_path: Path) -> None:
    """N08: the CSV holds the rows, for a count that needs neither this package nor SQLite."""
    db, target = tmp_path / "e.sqlite", tmp_path / "effects.csv"
    with EffectService(db) as service:
        perform(service.url, "a,b", parameters={"sum": 5})
        perform(service.url, "c")
        with pytest.raises(Refused, match="no such switch"):
            service.switch(lose_reply=1)
    assert write_csv(db, target) == 2
    code = "import csv, sys; print([r['operation'] for r in csv.DictReader(open(sys.argv[1]))])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(target)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "['a,b', 'c']\n"
    assert [effect.parameters for effect in effects(db)] == ['{"sum": 5}', "{}"]
