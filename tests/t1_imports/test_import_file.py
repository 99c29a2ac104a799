"""``import_file``: the input stays, the output is one and the same, refusals say why (R80, R81)."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from imported import FILES, FIXTURES, fixture_json, opened, saved

from branchkit.errors import InputRefused, UsageError
from branchkit.imports import import_file, refused_json, sniff
from branchkit.journal.anchor import head_path, verify_kept
from branchkit.journal.file import verify
from branchkit.journal.pack import pack_path
from branchkit.replay.recorded import Recorded

FORMATS = {"claude": "claude_code", "mini": "miniswe", "swe": "sweagent"}


@pytest.mark.parametrize("name", FILES)
def test_two_imports_are_the_same_bytes_and_the_input_is_as_it_was(
    name: str, tmp_path: Path
) -> None:
    """R81: journal and pack; no clock, no random id, no path of this machine gets in."""
    before = (FIXTURES / name).read_bytes()
    pairs = []
    for folder in ("one", "two"):
        imported = import_file(FIXTURES / name, tmp_path / folder / "run.journal.jsonl")
        pack = pack_path(imported.journal)
        pairs.append((imported.journal.read_bytes(), pack.exists() and pack.read_bytes()))
        assert verify(imported.journal).ok
        assert sorted(path.suffix for path in imported.journal.parent.iterdir()) in (
            [".head", ".jsonl"],
            [".head", ".jsonl", ".pack"],
        )
    assert pairs[0] == pairs[1]
    assert str(tmp_path).encode() not in pairs[0][0]
    assert (FIXTURES / name).read_bytes() == before


@pytest.mark.parametrize("name", FILES)
def test_every_context_is_what_its_hash_says(name: str, tmp_path: Path) -> None:
    """R9, R58: what rewind rebuilds hashes to what the import wrote down."""
    run = opened(FIXTURES / name, tmp_path)
    contexts = run.recorded.contexts
    assert sorted(contexts.turns) == list(range(1, run.imported.turns + 1))
    for turn, event in contexts.turns.items():
        messages = run.context(turn)
        assert len(messages) == event.payload.messages  # type: ignore[attr-defined]
        assert run.recorded.context_before(turn)[-1].message == messages[-1]


@pytest.mark.parametrize("name", FILES)
def test_the_format_is_told_by_the_content(name: str, tmp_path: Path) -> None:
    disguised = tmp_path / "file.bin"
    disguised.write_bytes((FIXTURES / name).read_bytes())
    assert sniff(disguised) == FORMATS[name.partition("_")[0]]


def test_an_import_needs_nothing_but_its_journal_and_pack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = import_file(FIXTURES / "swe_query.traj", tmp_path / "run.journal.jsonl")
    monkeypatch.setenv("BRANCHKIT_STORE", str(tmp_path / "elsewhere"))
    recorded = Recorded.open(imported.journal)
    assert recorded.contexts.full_text("t0001.1").startswith("line 0")
    recorded.close()


def test_the_origin_says_where_it_is_from_and_how_exact(tmp_path: Path) -> None:
    run = opened(FIXTURES / "swe_query.traj", tmp_path)
    origin = run.recorded.started.origin
    assert origin is not None
    data = (FIXTURES / "swe_query.traj").read_bytes()
    assert (origin.format, origin.fidelity, origin.source) == (
        "sweagent",
        "exact",
        "swe_query.traj",
    )
    assert origin.source_sha256 == hashlib.sha256(data).hexdigest()
    assert run.recorded.imported


def test_the_json_has_the_fields_that_tools_rely_on(tmp_path: Path) -> None:
    run = opened(FIXTURES / "claude_session.jsonl", tmp_path)
    plain = run.imported.to_json()
    assert plain == json.loads(json.dumps(plain))
    assert set(plain) >= {
        "ok", "journal", "format", "fidelity", "turns", "user_messages", "calls", "issues",
    }  # fmt: skip
    assert set(plain["calls"][0]) >= {"id", "name", "status", "result_sha256"}
    assert plain["issues"][0] == {"code": "hollow_thinking", "line": 7}


def test_an_own_file_of_that_name_is_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "run.journal.jsonl"
    import_file(FIXTURES / "mini_v1.traj.json", target)
    before = target.read_bytes()
    with pytest.raises(UsageError, match="holds something else"):
        import_file(FIXTURES / "mini_v2.traj.json", target)
    assert target.read_bytes() == before
    files = sorted(path for path in tmp_path.iterdir() if path.is_file())
    assert files == [head_path(target), target]
    assert verify_kept(target).ok


def test_the_journal_stands_where_the_caller_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    imported = import_file(FIXTURES / "mini_v1.traj.json")
    assert imported.journal == tmp_path / "mini_v1.journal.jsonl"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\0\0\n", "is empty"),
        ("{}".encode("utf-16"), "UTF-16"),
        (b"hello", "not JSON"),
        (b'[{"role":"user","content":"hi"}]', "not one of mini-swe-agent's"),
        (b'{"timestamp":"x","type":"session_meta","payload":{}}', "Codex"),
        (b'{"event_hash":"sha256:0"}', "branchkit journal already"),
        (b'{"messages":[]}', "not of a harness"),
        (b'{"a":1,"b":2}', "keys a, b"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_a_reason(
    data: bytes, words: str, tmp_path: Path
) -> None:
    """R80: a typed refusal that names what the file looks like, and nothing is written."""
    path = tmp_path / "strange.json"
    path.write_bytes(data)
    with pytest.raises(InputRefused, match=words) as refused:
        import_file(path, tmp_path / "out.journal.jsonl")
    assert refused.value.hint
    assert refused_json(refused.value)["ok"] is False
    assert list(tmp_path.glob("out*")) == []


def test_a_format_can_be_named_but_not_forced_on_another(tmp_path: Path) -> None:
    named = import_file(FIXTURES / "mini_v1.traj.json", tmp_path, format="miniswe")
    assert named.format == "miniswe"
    with pytest.raises(InputRefused, match="not in the format sweagent"):
        import_file(FIXTURES / "mini_v1.traj.json", tmp_path, format="sweagent")
    with pytest.raises(UsageError, match="no format"):
        import_file(FIXTURES / "mini_v1.traj.json", tmp_path, format="cursor")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="cannot be read"):
        sniff(tmp_path / "nothing")


anything: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 7, 1e300, "text", [], {}, [1], ["a"], {"a": 1}, [{"type": "text"}], [[]], [None]]
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    keys = value if isinstance(value, dict) else range(len(value))
    inner = [
        place
        for key in keys
        if isinstance(value[key], dict | list)
        for place in _places(value[key], (*path, key))
    ]
    return [(*path, key) for key in keys] + inner


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_strange_values_anywhere_are_imported_or_refused(
    name: str, tmp_path: Path, data: st.DataObject
) -> None:
    """R80: no file crashes the importer; what it writes can be read."""
    if name.endswith(".jsonl"):
        value: Any = [json.loads(line) for line in (FIXTURES / name).read_text().splitlines()]
    else:
        value = copy.deepcopy(fixture_json(name))
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from(_places(value)))
        inner = value
        for key in path:
            inner = inner[key]
        inner[last] = copy.deepcopy(data.draw(anything))  # or it could hold itself
    number = len(list(tmp_path.iterdir()))
    folder = tmp_path / str(number)
    folder.mkdir()
    if name.endswith(".jsonl"):
        path_ = folder / name
        path_.write_text("\n".join(map(json.dumps, value)))
    else:
        path_ = saved(folder, name, value)
    try:
        run = opened(path_, folder)
    except InputRefused:
        return
    for turn in range(1, run.recorded.turns + 2):
        run.context(turn)
    msgspec.json.encode(run.imported.to_json())
    run.recorded.close()
