"""What the kernel saw: nothing is sent before the fdatasync that covers its event (R20, D02).

A recorded run under strace. Of the trace only three things count: how many bytes of the journal an
fdatasync that *returned* had made durable, when a connection was opened, and what it carried.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from branchkit.journal.events import ContextBuilt, ToolIntent, ToolProposed
from branchkit.journal.file import read
from branchkit.testing.effect_service import EffectService
from branchkit.testing.model_server import ModelServer, calls, say

HERE = Path(__file__).parent
ORDERS = ["first-thing", "second-thing", "third-thing"]
SYSCALLS = "trace=write,pwrite64,fdatasync,fsync,connect,sendto,sendmsg"
STARTED = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\((?P<rest>.*)$")
RESUMED = re.compile(r"^(?P<pid>\d+) +<\.\.\. (?P<call>\w+) resumed>(?P<rest>.*)$")
RESULT = re.compile(r"\) += (?P<value>-?\d+)[^()]*$")
JOURNAL = re.compile(r"^\d+<(?P<path>[^>]*a\.journal\.jsonl[^>]*)>")
PORT = re.compile(r"htons\((?P<port>\d+)\)")


class Sent(NamedTuple):
    """One request: what of the journal was durable when it began, and what went over the wire."""

    port: int
    durable_bytes: int
    payload: str


class Call(NamedTuple):
    """One system call; ``returned`` is None at its start where strace splits it in two."""

    name: str
    arguments: str
    returned: int | None


def syscalls(trace: str) -> Iterator[Call]:
    """Starts and ends in order: a send counts from its start, a sync from its return."""
    open_calls: dict[tuple[str, str], str] = {}
    for line in trace.splitlines():
        if found := RESUMED.match(line):
            arguments = open_calls.pop((found["pid"], found["call"])) + found["rest"]
        elif found := STARTED.match(line):
            arguments = found["rest"]
            if arguments.endswith("<unfinished ...>"):
                arguments = arguments.removesuffix("<unfinished ...>").rstrip()
                open_calls[found["pid"], found["call"]] = arguments
                yield Call(found["call"], arguments, None)
                continue
        else:
            continue
        result = RESULT.search(arguments)
        yield Call(found["call"], arguments, int(result["value"]) if result else -1)


def requests(trace: str) -> list[Sent]:
    """Every HTTP request of the trace in order; the first of a connection counts from connect."""
    written = durable = 0
    sent: list[Sent] = []
    opened: dict[str, tuple[int, int | None]] = {}  # fd -> port, what was durable at connect
    latest: dict[str, int] = {}  # fd -> place of its latest request
    for call in syscalls(trace):
        of_journal = JOURNAL.match(call.arguments)
        fd = call.arguments.partition("<")[0]
        if of_journal and call.name in ("write", "pwrite64") and call.returned is not None:
            written += max(call.returned, 0)
        elif of_journal and call.name in ("fdatasync", "fsync") and call.returned == 0:
            durable = written
        elif call.name == "connect" and (port := PORT.search(call.arguments)):
            opened[fd] = (int(port["port"]), durable)
        elif call.name in ("sendto", "sendmsg") and fd in opened:
            to_port, at_connect = opened[fd]
            if '"POST ' in call.arguments:
                latest[fd] = len(sent)
                sent.append(Sent(to_port, durable if at_connect is None else at_connect, ""))
                opened[fd] = (to_port, None)
            place = latest[fd]
            sent[place] = sent[place]._replace(payload=sent[place].payload + call.arguments)
    return sent


@pytest.fixture
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.fail("strace is not installed: apt-get install strace", pytrace=False)
    return found


def test_each_send_comes_after_the_sync_that_covers_its_event(tmp_path: Path, strace: str) -> None:
    """R20, D02: order in the kernel's own words, for tool calls and for requests to the model."""
    recorded = under_strace(tmp_path, strace)
    check(*recorded)


def test_sending_first_would_be_seen(tmp_path: Path, strace: str) -> None:
    """R20: the same run with a dispatcher that acts first is caught by the same check."""
    recorded = under_strace(tmp_path, strace, "act-first")
    with pytest.raises(AssertionError, match="sent before its intent was safe"):
        check(*recorded)


def under_strace(folder: Path, strace: str, *mutant: str) -> tuple[Path, list[Sent], int, int]:
    """The journal, the requests, and the ports of the model and of the service."""
    first = calls(*(("order", f'{{"name": "{name}"}}') for name in ORDERS[:2]))
    script = [first, calls(("order", f'{{"name": "{ORDERS[2]}"}}')), say("done")]
    trace = folder / "trace"
    with ModelServer(script) as model, EffectService(folder / "e.sqlite") as service:
        command = [strace, "-f", "-qq", "-yy", "-s", "4000", "-e", SYSCALLS, "-o", str(trace)]
        command += [sys.executable, str(HERE / "traced.py"), str(folder), model.url, service.url]
        subprocess.run([*command, *mutant], check=True, timeout=120)
        ports = (int(model.url.split(":")[2].split("/")[0]), int(service.url.split(":")[2]))
        assert service.audit().rows == 3
    return folder / "a.journal.jsonl", requests(trace.read_text(errors="replace")), *ports


def check(path: Path, sent: list[Sent], model_port: int, service_port: int) -> None:
    """Every request of the run, with the end of the event that has to be durable before it."""
    ends, covered_by, contexts = 0, {}, []
    events, damage = read(path)
    assert not damage
    called = {}
    for event, line in zip(events, path.read_bytes().splitlines(keepends=True), strict=True):
        ends += len(line)
        match event.payload:
            case ToolProposed(call_id=call_id, arguments=arguments):
                assert arguments is not None
                called[call_id] = arguments["name"]
            case ToolIntent(call_id=call_id):
                covered_by[called[call_id]] = ends
            case ContextBuilt():
                contexts.append(ends)
    assert list(covered_by) == ORDERS
    to_model = [one for one in sent if one.port == model_port]
    to_service = [one for one in sent if one.port == service_port]
    assert len(to_service) == 3
    for name, one in zip(ORDERS, to_service, strict=True):
        assert name in one.payload
        assert one.durable_bytes >= covered_by[name], f"{name} was sent before its intent was safe"
    assert len(to_model) == len(contexts) == 3
    assert all(one.durable_bytes >= end for one, end in zip(to_model, contexts, strict=True))


def test_the_check_sees_a_send_that_comes_too_early() -> None:
    """The reader of traces itself: a sync that has not returned covers nothing."""
    write = '7 write(3</x/a.journal.jsonl>, "...", 100) = 100\n'
    began = "7 fdatasync(3</x/a.journal.jsonl> <unfinished ...>\n"
    connect = "8 connect(4<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(80)}, 16) = 0\n"
    connect += '8 sendto(4<TCP:[1]>, "POST / HTTP", 11, 0, NULL, 0) = 11\n'
    ended = "7 <... fdatasync resumed>) = 0\n"
    early, late = write + began + connect + ended, write + began + ended + connect
    assert [one.durable_bytes for one in requests(early)] == [0]
    assert [one.durable_bytes for one in requests(late)] == [100]
