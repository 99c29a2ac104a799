"""The command line as a user meets it: real processes, exit codes, one JSON object, errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from branchkit.workspace import Workspaces

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"
HEAD = SAMPLE.with_name("branch_cleanup.head").read_text().strip()
KEPT = "git show-ref -q --verify refs/heads/release/2.1"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cli") / "store"
    yield path
    if path.exists():
        with Workspaces.open(path) as workspaces:
            workspaces.stop()


def run(*arguments: object, store: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "BRANCHKIT_STORE": str(store), **environment}
    command = [sys.executable, "-m", "branchkit.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=170)


def answer(*arguments: object, store: Path, **environment: str) -> Any:
    done = run(*arguments, "--json", store=store, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("fork", SAMPLE, 22, "--swap", "truncation=none,model=local:smollm2"), 64, "two causes"),
        (("fork", SAMPLE, 22, "--swap", "memory=none"), 64, "no component 'memory'"),
        (("fork", SAMPLE, 22, "--swap", "truncation=half"), 64, "head:40l"),
        (("fork", SAMPLE, 22, "--swap", "prompt=@nowhere.txt"), 64, "nowhere.txt"),
        (("fork", SAMPLE, 99), 64, "turn 99 is outside 0..26 of branch_cleanup.journal.jsonl"),
        (("fork", SAMPLE, 22, "-n", 0), 64, "-n 0"),
        (("fork", SAMPLE, 22, "--workspace", "."), 64, "recorded workspace"),
        (("rewind", SAMPLE, 0), 64, "turn 0 is outside 1..27"),
        (("rewind", SAMPLE, "soon"), 64, "invalid int"),
        (("rewind", "nothing.journal.jsonl", 1), 65, "cannot be read"),
        (("import", SAMPLE.with_name("make.py")), 65, "make.py"),
        (("verify", SAMPLE, "--anchor", "sha256:" + "f" * 64), 3, "anchor_mismatch"),
        (("compare", "."), 65, "fork"),
        (("dance",), 64, "dance"),
        ((), 64, "VERB"),
    ],
)
def test_a_wrong_request_gets_one_error_with_remedy_and_code(
    arguments: tuple[object, ...], code: int, said: str, store: Path
) -> None:
    done = run(*arguments, store=store)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) >= 2, "an error says what to do about it"


def test_a_damaged_journal_names_line_byte_and_event(tmp_path: Path, store: Path) -> None:
    """R15: the good prefix can still be listed."""
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    lines[70] = lines[70].replace(b'"seq":70', b'"seq":71')
    damaged = tmp_path / "damaged.journal.jsonl"
    damaged.write_bytes(b"".join(lines))
    for verb in (("rewind", damaged, 2), ("fork", damaged, 2), ("verify", damaged)):
        done = run(*verb, store=store)
        assert done.returncode == 3
        assert "line 71" in done.stderr
        assert "event 70" in done.stderr
    shown = run("show", damaged, "--json", store=store)
    assert shown.returncode == 3
    assert len(json.loads(shown.stdout)["events"]) == 70


def test_verify_rewind_replay_and_when_have_their_stable_fields(store: Path) -> None:
    verified = answer("verify", SAMPLE, "--anchor", HEAD, store=store)
    assert verified == {
        "ok": True, "events": 219, "head": HEAD, "anchor": HEAD, "damage": [],
    }  # fmt: skip
    assert answer("verify", SAMPLE, store=store) == verified, "by its NAME.head"
    rewound = answer("rewind", SAMPLE, 23, store=store)
    assert {"turn", "context", "context_hash", "record", "recorded", "workspace"} <= rewound.keys()
    assert "protected" not in rewound["context"][-1]["content"]
    assert "release/2.1" in rewound["context"][-1]["content"]
    assert (Path(rewound["workspace"]) / ".git/refs/heads/release/2.1").exists()
    replayed = answer("replay", SAMPLE, "--strict", store=store)
    assert replayed["ok"]
    assert replayed["consumed"] == replayed["events"] == 219
    assert replayed["model_calls"] == replayed["tool_calls"] == 0
    assert run("replay", SAMPLE, "--bisect", store=store).returncode == 0
    found = answer("when", SAMPLE, "--check", KEPT, "--bisect", store=store)
    assert found["turn"] == 23


def test_a_fork_has_its_stable_fields_and_can_be_compared_again(store: Path) -> None:
    forked = answer(
        "fork", SAMPLE, 22, "--swap", "truncation=none", "-n", 2, "--check", KEPT, store=store
    )
    assert forked["parent_unchanged"] is True
    assert forked["prefix_model_calls"] == 0
    assert forked["volatile"]
    control, swapped = forked["arms"]
    assert control["swap"] is None
    assert swapped["swap"]["component"] == "truncation"
    assert {"name", "swap", "n", "success", "p", "branches"} <= swapped.keys()
    assert {"k", "n", "none", "low", "high"} <= swapped["success"].keys()
    assert {"journal", "t_div", "cause", "ok"} <= swapped["branches"][0].keys()
    assert swapped["success"]["k"] == 2
    again = answer("compare", forked["directory"], store=store)
    assert again["arms"] == forked["arms"]


def test_without_bubblewrap_live_branches_are_refused_with_the_remedy(store: Path) -> None:
    done = run("fork", SAMPLE, 22, store=store, BRANCHKIT_NO_BWRAP="1")
    assert done.returncode == 77
    assert "apt-get install bubblewrap" in done.stderr


def test_without_fuse_workspaces_are_copied_and_it_says_so(tmp_path: Path) -> None:
    rewound = answer("rewind", SAMPLE, 23, store=tmp_path / "store", BRANCHKIT_NO_FUSE="1")
    assert "copied" in rewound["workspace_note"]
    assert (Path(rewound["workspace"]) / ".git/refs/heads/release/2.1").exists()


def test_a_killed_daemon_loses_nothing_that_was_closed(tmp_path: Path) -> None:
    """Mount, write, SIGKILL the served pid, mount again: all there, the base untouched."""
    base, store = tmp_path / "base", tmp_path / "store"
    base.mkdir()
    (base / "kept").write_text("one")
    first = answer("mount", base, "--store", store, "--branch", "work", store=store)
    place = Path(first["workspace"])
    (place / "new").write_text("two")
    (place / "kept").unlink()
    os.kill(first["pid"], signal.SIGKILL)
    second = answer("mount", base, "--store", store, "--branch", "work", store=store)
    assert second["pid"] != first["pid"]
    assert sorted(path.name for path in place.iterdir()) == ["new"]
    assert (place / "new").read_text() == "two"
    assert [path.name for path in base.iterdir()] == ["kept"]
    answer("umount", "--store", store, store=store)
    assert not place.exists()


def test_doctor_says_what_is_there(store: Path) -> None:
    checks = answer("doctor", store=store)["checks"]
    assert {"name", "ok", "detail", "remedy"} <= checks[0].keys()
    missing = {check["name"] for check in checks if not check["ok"]}
    assert "fuse" not in missing
    blind = answer("doctor", store=store, BRANCHKIT_NO_FUSE="1", BRANCHKIT_NO_BWRAP="1")["checks"]
    wanting = {check["name"]: check["remedy"] for check in blind if not check["ok"]}
    assert wanting["fuse"]
    assert wanting["bubblewrap"]


def test_a_run_is_recorded_packed_and_replayed(tmp_path: Path, store: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nwhy = "once"\nunless = "write_file"\ncall = "write_file"\n'
        'arguments = { path = "a.txt", content = "hello" }\n\n'
        '[[rule]]\nwhy = "done"\nsay = "Done."\n'
    )
    journal = tmp_path / "tiny.journal.jsonl"
    ran = answer(
        "run", "Write a.txt", "--base", base, "-o", journal, "--set", f"model=rulebook:@{rules}",
        store=store,
    )  # fmt: skip
    assert ran["status"] == "completed"
    assert not list(base.iterdir()), "the base is never written"
    assert answer("replay", journal, store=store)["ok"]
    elsewhere = tmp_path / "elsewhere"
    rewound = answer("rewind", journal, 2, store=elsewhere, BRANCHKIT_NO_FUSE="1")
    assert (Path(rewound["workspace"]) / "a.txt").read_text() == "hello"
    again = run(
        "run", "x", "--base", base, "-o", journal, "--set", f"model=rulebook:@{rules}", store=store
    )
    assert again.returncode == 64
