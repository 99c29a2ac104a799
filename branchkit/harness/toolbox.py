"""The tool server: the program that runs inside the sandbox, one per branch.

``python -m branchkit.harness.toolbox`` reads JSON lines on stdin and answers each with one line:

    {"tools_source": str|null, "standard": [names], "workspace": path, "sandboxed": bool}
        → {"schemas": [...]} or {"refused": text}, and then it ends
    {"call": name, "arguments": {...}, "key": text, "timeout_s": s, "env": {...}}
        → {"status": "completed|error|timeout|…", "text": ..., "exit_code": int|null}
    {"probe": name, "arguments": {...}, "key": text, "timeout_s": s, "env": {...}}
        → the same; the text of a completed one is a ProbeAnswer as JSON
    {"check": command, "timeout_s": s, "env": {...}}
        → the same; the command's bare output, exit_code null after a time-out

Each call runs in a fork of its own. So a tool that hangs, crashes or eats memory costs its own
call only, nothing it started survives it, and no state is kept that a fork could not restore.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

import msgspec

from branchkit.errors import BranchkitError
from branchkit.harness.standard_tools import bash, limit_resources, run_command, standard_tools
from branchkit.harness.tools import Tool, ToolOutcome, ToolRefused, load_tools, schemas_of
from branchkit.supervise import become_subreaper, die_with_parent, kill_descendants

REPORT_GRACE_S = 2.0  # for a command's own time-out to tell what it printed so far
_DIED = "[the tool's process died"
CPU_SHARE = 8  # a call may use this many cores for all of its time


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until the requests end."""
    become_subreaper()
    first = json.loads(requests.readline() or b"{}")
    try:
        tools = _load(first)
    except (BranchkitError, ToolRefused) as error:
        _send(answers, {"refused": str(error)})
        return
    _send(answers, {"schemas": msgspec.to_builtins(schemas_of(tools.values()))})
    for line in requests:
        request = json.loads(line)
        _send(answers, _answer(request, tools)._asdict())


def _load(first: dict[str, Any]) -> dict[str, Tool]:
    """Tools by name: the standard ones, then the given ones, which may take a standard name."""
    os.chdir(first["workspace"])
    tools = standard_tools(first["standard"], sandboxed=first["sandboxed"])
    if first["tools_source"] is not None:
        tools += load_tools(first["tools_source"])
    return {each.name: each for each in tools}


def _answer(request: dict[str, Any], tools: Mapping[str, Tool]) -> ToolOutcome:
    timeout_s = float(request["timeout_s"])
    if "check" in request:
        command = request["check"]
        return _isolated(request, lambda: _check(command, timeout_s), timeout_s + REPORT_GRACE_S)
    name = request.get("call") or request["probe"]
    wanted = tools.get(name)
    if wanted is None:
        known = ", ".join(tools) or "none"
        return ToolOutcome("error", f"there is no tool {name!r}; there are: {known}")
    arguments, key = request["arguments"], request["key"]
    if "probe" in request:
        return _isolated(request, lambda: _probed(wanted, arguments, key), timeout_s)
    if wanted.function is bash:
        # Its own limit comes first, since only it can tell what was printed until then.
        arguments = {**arguments, "timeout_s": _smaller(arguments.get("timeout_s"), timeout_s)}
        return _isolated(request, lambda: wanted.run(arguments), timeout_s + REPORT_GRACE_S)
    outcome = _isolated(request, lambda: wanted.run(arguments, key), timeout_s)
    if outcome.text.startswith(_DIED) and wanted.schema.effect == "external":
        return outcome._replace(status="aborted")  # what it had done by then, nobody here knows
    return outcome


def _probed(wanted: Tool, arguments: dict[str, Any], key: str) -> ToolOutcome:
    answer = wanted.ask(arguments, key)
    return ToolOutcome("completed", json.dumps([answer.state, answer.result]))


def _smaller(asked: object, limit_s: float) -> object:
    """The call's own limit capped; what is no number is left for the validation to refuse."""
    if asked is None:
        return min(limit_s, 30.0)
    if isinstance(asked, (int, float)) and not isinstance(asked, bool):
        return min(asked, limit_s)
    return asked


def _check(command: str, timeout_s: float) -> ToolOutcome:
    exit_code, output = run_command(["/bin/sh", "-c", command], timeout_s)
    return ToolOutcome("timeout" if exit_code is None else "completed", output, exit_code)


def _isolated(
    request: dict[str, Any], run: Callable[[], ToolOutcome], timeout_s: float
) -> ToolOutcome:
    """What ``run`` returns in a process of its own, of which nothing is left afterwards."""
    result_fd, result_end = os.pipe()
    our_pid = os.getpid()
    pid = os.fork()  # safe: this process has one thread
    if pid == 0:
        # It holds our end of the socket: if it outlived us, nobody would see that we are gone.
        die_with_parent(our_pid, signal.SIGKILL)
        _run_and_exit(request, run, result_end, timeout_s)
    os.close(result_end)
    try:
        data = _read_result(result_fd, time.monotonic() + timeout_s)
    finally:
        os.close(result_fd)
    status = kill_descendants().get(pid, 0)
    if data is None:
        return ToolOutcome("timeout", f"[timed out after {float(request['timeout_s']):g} s]")
    if not data.endswith(b"\n"):
        return ToolOutcome("error", f"{_DIED}: {_how(status)}]")
    return ToolOutcome(**json.loads(data))


def _run_and_exit(
    request: dict[str, Any], run: Callable[[], ToolOutcome], result_fd: int, timeout_s: float
) -> None:
    try:
        os.setsid()
        os.environ.update(request["env"])
        limit_resources(cpu_s=timeout_s * CPU_SHARE)
        outcome = run()
        with open(result_fd, "wb") as file:
            _send(file, outcome._asdict())
    except MemoryError:
        os._exit(1)
    except BaseException as error:  # noqa: BLE001  a tool's SystemExit must not reach the server
        with open(result_fd, "wb", closefd=False) as file:
            _send(file, ToolOutcome("error", f"{type(error).__name__}: {error}")._asdict())
    finally:
        os._exit(0)


def _read_result(fd: int, deadline: float) -> bytes | None:
    """One line, or what came before its writer died; None if the deadline came first."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    parts: list[bytes] = []
    while not (parts and parts[-1].endswith(b"\n")):
        left_ms = max(0.0, deadline - time.monotonic()) * 1000
        if not poll.poll(left_ms):
            return None
        part = os.read(fd, 1 << 20)
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _send(answers: IO[bytes], message: dict[str, Any]) -> None:
    # ASCII JSON has no newline and carries every string, also ones that UTF-8 cannot.
    answers.write(json.dumps(message).encode("ascii") + b"\n")
    answers.flush()


def main() -> None:
    """Serve on the real stdin and stdout; everything a tool prints goes to /dev/null."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")  # dup'd descriptors are not inherited across an exec
    null_fd = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null_fd, fd)
    serve(requests, answers)


if __name__ == "__main__":
    main()
