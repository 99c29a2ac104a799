"""What users of other such file systems complained about, each as a test that it is not so here.

Which complaint is proven where stands in docs/file-system-tests.md, and `test_the_page_names_tests`
holds that page to what is really there.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace import Branch, Workspaces, tree_hash

from .kit import FULL, Open, daemons, git, kill_daemon, picture, requests, worker

PAGE = Path(__file__).parents[2] / "docs" / "file-system-tests.md"


@pytest.fixture
def ws(opened: Open) -> Workspaces:
    return opened()


@pytest.fixture
def branch(ws: Workspaces, base: Path) -> Branch:
    return ws.create("one", base=ws.add_base(base))


# The same names in every branch; what is in a file says which branch wrote it.
CROWD = """
import os, sys
root, mine = sys.argv[1], sys.argv[2].encode()
for n in range(150):
    path = os.path.join(root, f"f{n % 10}")
    with open(path + ".new", "wb") as file:
        file.write(mine * (n * 700 % 90_000 + 1))
    os.rename(path + ".new", path)
    with open(os.path.join(root, "README"), "r+b") as file:
        file.write(mine)
    assert set(open(path, "rb").read()) == set(mine)
    if n % 3 == 0:
        os.unlink(path)
"""


def test_writers_in_sibling_branches_never_meet(ws: Workspaces, base: Path) -> None:
    """1, branchfs 28: four at once through one daemon, the same names, forks of one snapshot."""
    first = ws.create("0", base=ws.add_base(base))
    (first.path / "shared").write_bytes(b"s" * 100_000)
    snapshot = first.freeze()
    names = ["a", "b", "c", "d"]
    branches = [ws.create(name, snapshot=snapshot.id) for name in names]
    command = [sys.executable, "-c", CROWD]
    running = [subprocess.Popen([*command, str(b.path), b.name]) for b in branches]
    assert [process.wait() for process in running] == [0] * 4
    for each in branches:
        written = [path.read_bytes() for path in each.path.glob("f*")]
        assert written
        assert {bytes(set(content)) for content in written} == {each.name.encode()}
        assert (each.path / "README").read_bytes() == each.name.encode() + b"ead me\n"
        assert (each.path / "shared").read_bytes() == b"s" * 100_000
        assert each.freeze().tree_hash == tree_hash(each.path)
    assert first.tree_hash() == snapshot.tree_hash


WHEEL = """
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as wheel:
    wheel.writestr("tiny/__init__.py", "ANSWER = 42\\n")
    about = "tiny-1.0.dist-info/"
    wheel.writestr(about + "METADATA", "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1.0\\n")
    tags = "Root-Is-Purelib: true\\nTag: py3-none-any\\n"
    wheel.writestr(about + "WHEEL", "Wheel-Version: 1.0\\nGenerator: x\\n" + tags)
    wheel.writestr(about + "entry_points.txt", "[console_scripts]\\ntiny = tiny:main\\n")
    wheel.writestr(about + "RECORD", "")
"""


def test_pip_installs_a_wheel(branch: Branch, ws: Workspaces) -> None:
    """2, branchfs 4 and 5: without an index, into a folder of the branch; a fork can import it."""
    root = branch.path
    wheel = "tiny-1.0-py3-none-any.whl"
    subprocess.run([sys.executable, "-c", WHEEL, wheel], cwd=root, check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install"]
    subprocess.run([*pip, "--no-index", "--target", "lib", wheel], cwd=root, check=True)
    fork = ws.create("fork", snapshot=branch.freeze().id)
    command = [sys.executable, "-c", "import tiny; print(tiny.ANSWER)"]
    env = {**os.environ, "PYTHONPATH": str(fork.path / "lib")}
    assert subprocess.check_output(command, env=env, text=True) == "42\n"
    assert os.access(fork.path / "lib" / "bin" / "tiny", os.X_OK)
    assert b"WHEEL" in (root / "lib" / "tiny-1.0.dist-info" / "RECORD").read_bytes()


def test_a_tree_as_npm_makes_it(branch: Branch, ws: Workspaces) -> None:
    """2, 7: packages unpacked beside, renamed into place over older ones, .bin full of links."""
    modules = branch.path / "node_modules"
    (modules / ".bin").mkdir(parents=True)
    for version, number in product((1, 2), range(40)):
        staged, final = modules / f".p{number}-staged", modules / f"p{number}"
        (staged / "lib").mkdir(parents=True)
        for part in range(5):
            (staged / "lib" / f"{part}.js").write_text(f"export default {version}\n")
        (staged / "cli.js").write_text("#!/usr/bin/env node\n")
        (staged / "cli.js").chmod(0o755)
        if final.exists():
            os.rename(final, modules / f".p{number}-old")
        os.rename(staged, final)
        shutil.rmtree(modules / f".p{number}-old", ignore_errors=True)
        link = modules / ".bin" / f"p{number}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"../p{number}/cli.js")
        if number % 20 == 0:
            branch.freeze()
    assert sorted(os.listdir(modules)) == sorted([".bin", *(f"p{n}" for n in range(40))])
    for number in range(40):
        assert (modules / f"p{number}" / "lib" / "4.js").read_text() == "export default 2\n"
        assert os.access(modules / ".bin" / f"p{number}", os.X_OK)
    fork = ws.create("fork", snapshot=branch.freeze().id)
    assert picture(fork.path) == picture(branch.path)


def test_a_mount_point_inside_the_base_is_refused(ws: Workspaces, tmp_path: Path) -> None:
    """3, 11: agentfs 167, fuse-overlayfs 359 and 376: whatever is mounted there, it is named."""
    (tmp_path / "base" / "inner").mkdir(parents=True)
    (tmp_path / "else").mkdir()
    mount = ["mount", "--bind", f"{tmp_path}/else", f"{tmp_path}/base/inner"]
    subprocess.run(mount, check=True)
    try:
        with pytest.raises(UsageError, match=r"something is mounted inside the base .*: .*/inner"):
            ws.add_base(tmp_path / "base")
    finally:
        subprocess.run(["umount", tmp_path / "base" / "inner"], check=True)
    assert ws.create("one", base=ws.add_base(tmp_path / "base")).tree_hash()
    with pytest.raises(UsageError, match="lies inside the base"):
        ws.add_base(ws.store.parent)


def test_deletions_survive_a_sigkill(opened: Open, base: Path, tmp_path: Path) -> None:
    """4, agentfs 271: gone in four ways, before and after a freeze, killed each time."""
    ws = opened()
    base_id = ws.add_base(base)
    for freeze in (False, True):
        branch = ws.create(f"b{freeze}", base=base_id)
        root = branch.path
        (root / "README").unlink()
        (root / "empty").rmdir()
        shutil.rmtree(root / "src" / "deep")
        os.rename(root / "src" / "main.py", root / "run.sh")
        shutil.rmtree(root / ".git")
        (root / ".git").mkdir()
        if freeze:
            branch.freeze()
        before, expected = picture(root), tree_hash(root)
        kill_daemon(ws, tmp_path)
        ws = opened()
        assert picture(root) == before
        assert ws.branch(branch.name).freeze().tree_hash == expected


def test_a_refused_store_is_not_touched(tmp_path: Path, opened: Open, base: Path) -> None:
    """5, agentfs 106: one that a newer branchkit made stays as it is, to the byte."""
    ws = opened()
    ws.create("one", base=ws.add_base(base)).freeze()
    ws.stop()
    version = ws.store / "version"
    ours = version.read_text()
    version.write_text("branchkit-workspace 2000\n")
    before = picture(ws.store)
    with pytest.raises(WorkspaceError, match="version 'branchkit-workspace 2000', this is"):
        Workspaces.open(ws.store)
    assert picture(ws.store) == before
    version.write_text(ours)
    assert opened().branch("one").tree_hash() == tree_hash(base)


KINDS = ("file", "directory", "tree", "symlink")


def put(path: Path, kind: str, word: str) -> None:
    match kind:
        case "file":
            path.write_text(word)
        case "symlink":
            path.symlink_to(word)
        case _:
            path.mkdir()
            if kind == "tree":
                (path / word).mkdir()
                (path / word / "leaf").write_text(word)


def take(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def test_every_kind_after_every_kind(opened: Open, tmp_path: Path) -> None:
    """9, fuse-overlayfs 271, 354, 306: removed, or covered by a rename, and another in its place.

    What is removed comes from the base, from a snapshot, or from the branch itself; a killed daemon
    and a fork see the same.
    """
    plain, base = tmp_path / "plain", tmp_path / "base"
    plain.mkdir()
    base.mkdir()
    cases = list(product(KINDS, KINDS, ("again", "renamed")))
    for root, (old, new, how) in product((plain, base), cases):
        put(root / f"{old}-{new}-{how}", old, "base")
    ws = opened()
    branch = ws.create("0", base=ws.add_base(base))
    for round_ in ("one", "two", "three"):
        for root, (old, new, how) in product((plain, branch.path), cases):
            path = root / f"{old}-{new}-{how}"
            take(path)
            if how == "again":
                put(path, new, round_)
            else:
                put(root / "staged", new, round_)
                if new in ("directory", "tree"):
                    path.mkdir()
                else:
                    path.write_text("to be covered")
                os.rename(root / "staged", path)
        assert branch.tree_hash() == tree_hash(branch.path) == tree_hash(plain)
        if round_ == "one":
            branch = ws.create("fork", snapshot=branch.freeze().id)
        else:
            kill_daemon(ws, tmp_path)
            ws = opened()
            branch = ws.branch("fork")
        assert tree_hash(branch.path) == tree_hash(plain)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def resident_kib(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])


def test_a_wide_directory_costs_no_more_per_name(ws: Workspaces, tmp_path: Path) -> None:
    """10, fuse-overlayfs 360: with 20,000 names beside it a file costs what it costs alone.

    Told by the daemon's own processor time, with room for noise: what looks at every name of the
    directory for each operation takes a hundred times as long.
    """
    for folder, beside in (("narrow", 0), ("wide", 20_000 if FULL else 5_000)):
        (tmp_path / "base" / folder).mkdir(parents=True)
        for number in range(beside):
            os.mknod(tmp_path / "base" / folder / f"beside{number}")
    branch, pid = ws.create("one", base=ws.add_base(tmp_path / "base")), worker(ws)
    spent = {}
    for folder in ("narrow", "wide"):
        root = branch.path / folder
        os.listdir(root)
        (root / "first").touch()
        ticks, kib = cpu_ticks(pid), resident_kib(pid)
        for number in range(400):
            path = root / f"mine{number}"
            path.write_bytes(b"x")
            os.rename(path, root / "other")
            os.unlink(root / "other")
        spent[folder] = cpu_ticks(pid) - ticks
        assert resident_kib(pid) - kib < 16_000
    assert spent["wide"] < 4 * spent["narrow"] + 20


def test_two_stores_in_one_process(opened: Open, base: Path, tmp_path: Path) -> None:
    """13, pyfuse3 55: a process can mount once, so each store has a daemon of its own."""
    stores = [opened(tmp_path / name) for name in ("s1", "s2")]
    roots = [each.create("one", base=each.add_base(base)).path for each in stores]
    for number, root in enumerate(roots):
        (root / "README").write_text(str(number))
    assert [(root / "README").read_text() for root in roots] == ["0", "1"]
    assert len({each.pin() for each in stores}) == 2


BUSY = """
import mmap, os, sys
os.chdir(sys.argv[1])
n = 0
with open("mapped", "w+b") as file:
    file.truncate(1 << 16)
    with mmap.mmap(file.fileno(), 0) as memory:
        print("ready", flush=True)
        while not os.path.exists("stop"):
            memory[n % 65536] = 1
            with open(f"f{n % 20}", "wb") as out:
                out.write(b"x" * (n % 3000))
            os.stat("mapped"); os.listdir("."); n += 1
"""


def test_invalidations_under_load_do_not_deadlock(ws: Workspaces, branch: Branch) -> None:
    """14, pyfuse3 2: each freeze pulls pages and each drop takes a name from a busy kernel."""
    command = [sys.executable, "-c", BUSY, str(branch.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        assert busy.stdout.readline() == b"ready\n"
        for _ in range(40):
            fork = ws.create("fork", snapshot=branch.freeze().id)
            assert (fork.path / "mapped").stat().st_size == 1 << 16
            fork.drop()
        (branch.path / "stop").touch()
        assert busy.wait(timeout=60) == 0
    assert branch.freeze().tree_hash == tree_hash(branch.path)


def test_what_a_listing_has_named_can_be_mapped(branch: Branch, opened: Open) -> None:
    """16, bindfs 159: sizes in a listing are true, so a mapping made after it never ends early."""
    root = branch.path
    (root / "small").write_bytes(b"s" * 10_000)
    (root / "large").write_bytes(b"l" * 300_000)
    opened().stop()
    opened()
    for folder in (root, root / "src", root / "src" / "deep", root / ".git"):
        for entry in os.scandir(folder):
            if not entry.is_file(follow_symlinks=False) or not entry.stat().st_size:
                continue
            with Path(entry.path).open("rb") as file:
                size = entry.stat(follow_symlinks=False).st_size
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory:
                    assert len(memory) == size
                    assert memory[:] == file.read()


def test_what_is_written_after_the_last_close_is_kept(branch: Branch, ws: Workspaces) -> None:
    """17, powerfs 21: a mapping outlives its descriptor; small files and large, new and old."""
    root = branch.path
    for number, size in enumerate((100, 5000, 70_000, 200_000)):
        (root / f"new{number}").write_bytes(bytes(size))
    paths = [*root.glob("new*"), root / "README", root / "src" / "deep" / "data"]
    for path in paths:
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), 0)
        memory[-1:] = b"!"
        snapshot = branch.freeze()
        memory[-2:-1] = b"?"
        memory.close()
        assert path.read_bytes()[-2:] == b"?!"
        fork = ws.create("fork", snapshot=snapshot.id)
        assert (fork.path / path.relative_to(root)).read_bytes()[-1:] == b"!"
        fork.drop()
    fork = ws.create("last", snapshot=branch.freeze().id)
    assert all((fork.path / p.relative_to(root)).read_bytes()[-2:] == b"?!" for p in paths)


def test_a_clone_is_whole_as_soon_as_it_is_there(branch: Branch, base: Path) -> None:
    """18, sandbox0 609: git clone and gc at once; what a process has closed, the next one sees."""
    root = branch.path
    for number in range(3):
        git(root, "clone", "-q", "--no-local", os.fspath(base), f"clone{number}")
        git(root / f"clone{number}", "gc", "-q", "--aggressive", "--prune=now")
        git(root / f"clone{number}", "fsck", "--strict", "--full")
        assert git(root / f"clone{number}", "status", "--short") == ""
    for number in range(30):
        script = f"printf {number} >f.tmp && mv f.tmp f && cat f && test -s f && ! test -e f.tmp"
        said = subprocess.check_output(["sh", "-c", script], cwd=root, text=True)
        assert said == str(number)
        assert (root / "f").read_text() == str(number)


def test_warm_names_ask_the_daemon_nothing(ws: Workspaces, branch: Branch) -> None:
    """7, agentfs 89: what is there and what is not there is remembered by the kernel."""
    paths = [branch.path / "src" / name for name in ("main.py", "none", "link")]

    def look() -> None:
        for path in paths:
            path.exists()
            path.is_symlink()

    look()

    def look_often() -> None:
        for _ in range(100):
            look()

    assert requests(ws, look_often) < 20


def test_what_has_no_name_any_more_is_not_replayed(opened: Open, base: Path) -> None:
    """Danger list: removed while open, frozen, written on: the store must still open (R21)."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    root = branch.path
    (root / "new").write_text("new")
    (root / "large").write_bytes(b"l" * 100_000)
    (root / "folder").mkdir()
    names = ["README", "src/hard", "src/deep/data", "new", "large"]
    open_files = [os.open(root / name, os.O_RDWR) for name in names]
    open_files.append(os.open(root / "folder", os.O_RDONLY))
    for name in names:
        (root / name).unlink()
    (root / "folder").rmdir()
    snapshots = [branch.freeze()]
    for _ in range(2):
        for fd in open_files:
            os.fchmod(fd, 0o700)
        for fd in open_files[:-1]:
            os.write(fd, b"written on")
            os.ftruncate(fd, 90_000)
            assert os.pread(fd, 7, 0) == b"written"
        (root / f"other{len(snapshots)}").touch()
        snapshots.append(branch.freeze())
    for fd in open_files:
        os.close(fd)
    expected = tree_hash(root)
    ws.stop()
    ws = opened()
    assert tree_hash(root) == expected
    for each in snapshots:
        assert tree_hash(ws.create(each.id, snapshot=each.id).path) == each.tree_hash


def test_only_the_daemon_holds_the_device(ws: Workspaces, branch: Branch, tmp_path: Path) -> None:
    """Danger list: a child that inherited the descriptor would keep a dead mount hanging."""
    branch.freeze()
    ours = set(daemons(tmp_path))
    for pid in ours:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        held = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if fd.is_symlink()]
        assert "/dev/fuse" in held
        for child in children:
            links = [os.readlink(fd) for fd in Path(f"/proc/{child}/fd").iterdir()]
            assert "/dev/fuse" not in links or int(child) in ours


def test_more_files_open_than_a_process_may(ws: Workspaces, tmp_path: Path) -> None:
    """Danger list: each is one descriptor of the daemon, and more than the usual 1,024."""
    (tmp_path / "base").mkdir()
    for number in range(1200):
        (tmp_path / "base" / str(number)).write_text(str(number))
    branch = ws.create("one", base=ws.add_base(tmp_path / "base"))
    program = (
        "import os, resource, sys; os.chdir(sys.argv[1])\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))\n"
        "fds = [os.open(str(n), os.O_RDWR) for n in range(1200)]\n"
        "for n, fd in enumerate(fds): assert os.pread(fd, 10, 0) == b'%d' % n\n"
        "for n, fd in enumerate(fds): assert os.pwrite(fd, b'!', 0) == 1\n"
    )
    subprocess.run([sys.executable, "-c", program, str(branch.path)], check=True)
    assert (branch.path / "1199").read_text() == "!199"


def test_the_page_names_tests() -> None:
    """Every test that docs/file-system-tests.md names exists, and every complaint has one."""
    page = PAGE.read_text()
    tests = Path(__file__).parents[1]
    defined = {
        found[1]
        for path in tests.glob("t*/test_*.py")
        for found in re.finditer(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"`(test_\w+)`", page))
    assert named
    assert named - defined == set()
    rows = re.findall(r"^\| (\d+) \|.*`(?:test_\w+|tests/benchmarks/\w+\.py)`", page, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 20))
