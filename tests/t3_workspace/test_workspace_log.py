"""The frame log: torn tails are cut, damage is an error, a full disk changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit import disk
from branchkit.errors import WorkspaceError
from branchkit.workspace import log

FRAMES = [({"n": 1}, b""), (["w", 7], b"some bytes"), ({"n": 3}, b"x" * 300)]


def written(path: Path) -> bytes:
    out = log.Log(path)
    for value, blob in FRAMES:
        out.append(value, blob)
    out.sync()
    out.close()
    return path.read_bytes()


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    written(tmp_path / "log")
    found = [(frame.value, frame.blob) for frame in log.read(tmp_path / "log")]
    assert found == FRAMES


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert list(log.read(tmp_path / "none")) == []


def test_cut_after_every_byte_the_good_prefix_opens(tmp_path: Path) -> None:
    """R15 for the layer log: no cut raises, none loses a whole frame before it."""
    data = written(tmp_path / "log")
    ends = [frame.end_bytes for frame in log.read(tmp_path / "log")]
    for cut in range(len(data)):
        (tmp_path / "cut").write_bytes(data[:cut])
        assert len(list(log.read(tmp_path / "cut"))) == sum(end <= cut for end in ends)


def test_a_torn_tail_is_cut_off_before_the_next_frame(tmp_path: Path) -> None:
    data = written(tmp_path / "log")
    (tmp_path / "log").write_bytes(data[:-5])
    good_bytes = [frame.end_bytes for frame in log.read(tmp_path / "log")][-1]
    out = log.Log(tmp_path / "log", good_bytes=good_bytes)
    out.append("after")
    out.close()
    assert [f.value for f in log.read(tmp_path / "log")] == [*[v for v, _ in FRAMES[:2]], "after"]


@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_flipped_bit_is_never_silent(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    """Damage in front of good frames is an error; in the last frame it reads as a torn tail."""
    folder = tmp_path_factory.mktemp("flip")
    data = bytearray(written(folder / "log"))
    ends = [frame.end_bytes for frame in log.read(folder / "log")]
    at %= len(data)
    data[at] ^= 1 << bit
    (folder / "log").write_bytes(data)
    if at >= ends[-2]:
        assert len(list(log.read(folder / "log"))) == 2
    else:
        with pytest.raises(WorkspaceError, match="is damaged"):
            list(log.read(folder / "log"))


def test_the_last_frame_is_found_from_the_end(tmp_path: Path) -> None:
    """Only a file that ends with it has one: behind a torn tail nothing was acknowledged."""
    data = written(tmp_path / "log")
    assert log.last(tmp_path / "log", 400) == {"n": 3}
    assert log.last(tmp_path / "log", 1 << 20) == {"n": 3}
    for cut in (data[:-1], data + b"x", data + log.MAGIC, b""):
        (tmp_path / "log").write_bytes(cut)
        assert log.last(tmp_path / "log", 1 << 20) is None


def test_a_log_whose_sync_failed_syncs_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel drops what it could not write: the next fdatasync would return as if it had."""
    out = log.Log(tmp_path / "log")

    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "fdatasync", failing)
        with pytest.raises(OSError, match="Input/output error"):
            out.sync()
    with pytest.raises(OSError, match="Input/output error"):
        out.sync()
    out.close()
