"""docs/formats.md says what the code does: its tables, its examples; and its verifier runs."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import RUN_ID, journal

from branchkit import errors
from branchkit.errors import BranchkitError, Diverged
from branchkit.journal.blobs import INLINE_LIMIT_BYTES
from branchkit.journal.chain import HEAD_BYTES
from branchkit.journal.events import KINDS
from branchkit.journal.file import read, verify
from branchkit.journal.format import ZERO_HASH, accumulate, digest, parse, value_hash
from branchkit.journal.shapes import shape
from branchkit.record.context import ContextHash, seen
from branchkit.record.fold import fold

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def table(heading: str) -> list[list[str]]:
    """The rows of the first table after ``heading``, without its head."""
    after = PAGE.read_text(encoding="utf-8").split(f"{heading}\n", 1)[1]
    block = after[after.index("\n|") :].split("\n\n")[0]
    rows = [line.strip("|").split("|") for line in block.strip().splitlines()]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_the_table_of_kinds_is_the_schema() -> None:
    """C01: every kind, each field in order, and which are volatile."""
    rows = {quoted(kind)[0]: row for kind, *row in table("### Kinds")}
    assert list(rows) == list(KINDS)
    for name, (written, fields, volatile) in rows.items():
        assert written
        assert quoted(fields) == list(KINDS[name].__struct_fields__), name
        assert set(quoted(volatile)) == KINDS[name].VOLATILE, name


def test_the_table_of_the_envelope_is_what_a_line_holds(tmp_path: Path) -> None:
    """M03."""
    line = journal(tmp_path).read_bytes().splitlines()[0]
    fields = [quoted(row[0])[0] for row in table("### The envelope")]
    assert list(orjson.loads(line)) == fields
    assert len(line.split(b'"kind"')[0]) == HEAD_BYTES == 88
    assert orjson.loads(line)["run_id"] == RUN_ID


def test_the_table_of_exit_codes_is_the_tree_of_errors() -> None:
    """STYLE 7: one code per class, and none without a class but those of git bisect."""
    shown: dict[str, int] = {}
    for code, meaning in table("## Exit codes"):
        shown |= dict.fromkeys(quoted(meaning), int(code))
    shown.pop("replay --bisect")
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BranchkitError | Diverged)
    ]
    assert shown == {kind.__name__: kind.exit_code for kind in classes}


def test_the_damage_codes_are_all_there() -> None:
    """R15: the codes in the source are the codes on the page."""
    source = "".join(
        (Path(errors.__file__).parent / "journal" / name).read_text(encoding="utf-8")
        for name in ("scan.py", "chain.py")
    )
    for code in [quoted(row[0])[0] for row in table("### Damage")]:
        assert f'"{code}"' in source, code


def test_the_examples_of_the_escape_are_read_as_said() -> None:
    examples = [quoted(row[1])[0] for row in table("### Canonical JSON")]
    values = [parse(example.encode()) for example in examples]
    assert values[0] == 2**53 + 1
    assert values[1] != values[1]
    assert values[2:] == ["\ud83d", {"$json": 1}, [[1]]]


def test_hashes_are_what_the_page_says(tmp_path: Path) -> None:
    """R6, R7: recomputed from the words of the page, with nothing but hashlib."""

    def sha256(text: str) -> str:
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    zero = "sha256:" + "0" * 64
    assert zero == ZERO_HASH
    assert value_hash({"b": 1.0, "a": []}) == sha256('{"a":[],"b":1}') == digest(b'{"a":[],"b":1}')
    tools, message = sha256("[]"), sha256('{"content":"hi"}')
    context_hash = sha256(sha256(zero + tools) + message)
    assert ContextHash([]).of([seen({"content": "hi"})]) == context_hash
    events, _ = read(journal(tmp_path, 1))
    record_hash = zero
    for event in events:
        volatile = type(event.payload).VOLATILE
        line = journal_line(tmp_path, event.seq)
        told = orjson.loads(line)["payload"]
        whole = dict(shape(type(event.payload)).defaults) | told
        payload = {k: v for k, v in whole.items() if k not in volatile}
        logical = value_hash([event.kind, event.turn, event.step_id, payload])
        record_hash = accumulate(record_hash, logical)
    assert fold(None, events).logical == record_hash


def journal_line(folder: Path, seq: int) -> bytes:
    return next(folder.glob("*.jsonl")).read_bytes().splitlines()[seq]


def test_the_inline_limit_is_the_one_on_the_page() -> None:
    assert f"more than {INLINE_LIMIT_BYTES:,} bytes" in PAGE.read_text(encoding="utf-8")


# ---- the verifier ----


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The verifier of the page, as a file."""
    found = re.search(r"```python verifier\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    path = tmp_path_factory.mktemp("verifier") / "verifier.py"
    path.write_text(found[1], encoding="utf-8")
    return path


def run(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Isolated: no package of this environment can be imported."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_verifier_is_short() -> None:
    """R6: 30 lines."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"```python verifier\n(.*?)```", text, re.DOTALL)
    assert found
    assert len([line for line in found[1].splitlines() if line.strip()]) <= 30


def test_the_verifier_accepts_what_branchkit_wrote(program: Path, tmp_path: Path) -> None:
    """R6, M05: with and without the anchor."""
    path = journal(tmp_path)
    head = verify(path).head
    for arguments in ([path], [path, head]):
        done = run(program, *arguments)
        assert (done.returncode, done.stdout) == (0, f"19 events, head {head}\n"), done.stderr
    assert run(program, path, ZERO_HASH).returncode == 1


def test_the_verifier_accepts_every_sample(program: Path) -> None:
    """R6: the journals of this repository, each with its NAME.head."""
    journals = sorted((PAGE.parents[1] / "sample_journals").rglob("*.journal.jsonl"))
    assert journals
    for path in journals:
        head = path.with_name(path.name.replace(".journal.jsonl", ".head"))
        anchor = head.read_text(encoding="utf-8").strip()
        assert run(program, path, anchor).returncode == 0, path.name


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_verifier_and_branchkit_agree(
    program: Path, tmp_path: Path, data: st.DataObject
) -> None:
    """R6: on any changed byte, cut or dropped line, and on which event it is."""
    path = tmp_path / "sample.journal.jsonl"
    path.unlink(missing_ok=True)
    whole = journal(tmp_path).read_bytes()
    offset = data.draw(st.integers(0, len(whole) - 1))
    lines = whole.splitlines(keepends=True)
    changed = data.draw(
        st.sampled_from(
            [
                whole[:offset] + bytes([whole[offset] ^ 1]) + whole[offset + 1 :],
                whole[:offset],
                b"".join(lines[: offset % 19] + lines[offset % 19 + 1 :]),
            ]
        )
    )
    path.write_bytes(changed)
    found = verify(path)
    done = run(program, path)
    assert (done.returncode == 0) == found.ok
    if not found.ok:
        assert f"event {found.damage[0].seq}:" in done.stderr


def test_the_table_of_defaults_is_the_schema() -> None:
    """C01: what a field is where a line does not hold it."""
    rows = {quoted(value)[0]: quoted(names) for value, names in table("the first journals do):")}
    shown = {name: orjson.loads(value) for value, names in rows.items() for name in names}
    assert shown == {name: value for kind in KINDS.values() for name, value in shape(kind).defaults}
