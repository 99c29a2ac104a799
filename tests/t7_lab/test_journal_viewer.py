"""The JupyterLab extension: a journal as a timeline, a folder's journals as a tree (R83)."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from journals import run_steps, sealed_lines
from lab import PAGE_TIMEOUT_MS, Place, violations
from playwright.sync_api import Locator, Page, expect

import branchkit
from branchkit.workspace import Workspaces

ROOT = Path(__file__).resolve().parents[2]
VIEWER = ROOT / "extensions" / "journal-viewer"
SAMPLE = "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"
OpenPage = Callable[..., Page]
MOST_ROWS = 150  # of those in the page, however long the journal is


@pytest.fixture(scope="module")
def folder(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the server shows, with a long journal, a damaged one, and a fork's."""
    found = place.server.folder / "runs"
    found.mkdir()
    lines = sealed_lines(run_steps(1_700))
    assert len(lines) > 10_000
    (found / "long.journal.jsonl").write_bytes(b"".join(lines))
    few = lines[:40]
    few[20] = few[20].replace(b"run-1", b"run-2", 1)
    (found / "damaged.journal.jsonl").write_bytes(b"".join(few) + b'{"event_hash":"sha256:ab')
    store = tmp_path_factory.mktemp("viewer") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHKIT_STORE", str(store))
        with branchkit.open(place.server.folder / SAMPLE) as run:
            branches = run.fork(25, n=2).results
        Workspaces.open(store).stop()
    forks = place.server.folder / "forked"
    forks.mkdir()
    (forks / Path(SAMPLE).name).write_bytes((place.server.folder / SAMPLE).read_bytes())
    for branch in branches:
        name = f"branch-{branch.number}.journal.jsonl"
        (forks / name).write_bytes(Path(branch.journal).read_bytes())
    return found


@pytest.fixture
def open_journal(place: Place, folder: Path, request: pytest.FixtureRequest) -> Iterator[OpenPage]:
    """Opens a journal by its path in a page of its own; at the end a picture of it."""
    pages: list[Page] = []
    shots = request.getfixturevalue("shots")

    def opened(path: str, *, theme: str = "light") -> Page:
        place.server.theme(theme)
        page = place.browser.new_page()
        pages.append(page)
        page.set_default_timeout(PAGE_TIMEOUT_MS)
        workspace = re.sub(r"\W", "-", request.node.name)
        where = f"{place.server.url}/lab/workspaces/{workspace}/tree/{path}"
        page.goto(f"{where}?token={place.server.token}")
        page.locator(".bk-journal-row").first.wait_for()
        return page

    yield opened
    place.server.theme("light")
    for number, page in enumerate(pages):
        page.screenshot(path=shots / f"{request.node.name}-{number}.png")
        page.close()


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("viewer-shots")


def rows(page: Page) -> Locator:
    return page.locator(".bk-journal-row")


def test_a_journal_opens_as_a_timeline(open_journal: OpenPage) -> None:
    page = open_journal(SAMPLE)
    head = page.locator(".bk-journal-head")
    expect(head).to_contain_text("branch_cleanup.journal.jsonl")
    expect(head).to_contain_text("26 turns, 219 events, completed")
    expect(head.locator(".bk-journal-damage")).to_have_count(0)
    expect(rows(page).first).to_contain_text("TaskStarted")
    page.locator(".bk-journal-list").focus()
    page.keyboard.press("End")
    expect(page.locator('.bk-journal-row[aria-selected="true"]')).to_contain_text("TaskFinished")
    expect(page.locator(".bk-journal-detail")).to_contain_text('"status": "completed"')
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    chosen = page.locator('.bk-journal-row[aria-selected="true"]')
    expect(chosen).to_have_attribute("aria-posinset", "2")


def test_what_was_hidden_and_what_became_of_calls_is_told(open_journal: OpenPage) -> None:
    page = open_journal(SAMPLE)
    page.locator(".bk-journal-list").evaluate("node => node.scrollTo(0, 180 * 24)")
    hidden = rows(page).filter(has_text="27 lines hidden by head:12l")
    expect(hidden).to_be_visible()
    deleted = rows(page).filter(has_text='delete_branch {"name":"release/2.1"}').first
    expect(deleted).to_be_visible()
    expect(rows(page).filter(has_text="ToolProposed").first).to_contain_text("completed")


def test_ten_thousand_events_are_a_few_rows_at_a_time(open_journal: OpenPage) -> None:
    page = open_journal("runs/long.journal.jsonl")
    box = page.locator(".bk-journal-list")
    for share in (0.25, 0.5, 1.0):
        box.evaluate("(node, share) => node.scrollTo(0, node.scrollHeight * share)", share)
        first = int(box.evaluate("node => Math.floor(node.scrollTop / 24)"))
        expect(page.locator(f'.bk-journal-row[data-index="{first}"]')).to_be_visible()
        assert 0 < rows(page).count() <= MOST_ROWS
    expect(rows(page).last).to_contain_text(str(len(sealed_lines(run_steps(1_700))) - 1))


def test_damage_is_shown_and_the_rest_can_be_read(open_journal: OpenPage) -> None:
    page = open_journal("runs/damaged.journal.jsonl")
    damage = page.locator(".bk-journal-damage")
    expect(damage.filter(has_text="line 21")).to_contain_text("is not what its hash says")
    expect(damage.filter(has_text="line 41")).to_contain_text("cut off or changed")
    expect(damage).to_have_count(2)
    expect(page.locator('.bk-journal-row[data-index="20"]')).to_contain_text("damaged")
    expect(rows(page).first).to_contain_text("TaskStarted")


def test_rewind_and_fork_put_a_cell_into_a_notebook(open_journal: OpenPage, place: Place) -> None:
    """Without a notebook open one is made, beside the journal."""
    page = open_journal(SAMPLE)
    page.locator(".bk-journal-list").evaluate("node => node.scrollTo(0, 180 * 24)")
    rows(page).filter(has_text="ModelReplied").filter(has_text="t23").click()
    page.locator(".bk-journal-rewind", has_text="Rewind here (reply 23)").click()
    cell = page.locator(".jp-CodeCell").filter(has_text="%rewind 23")
    expect(cell).to_be_visible()
    expect(cell).to_contain_text("run = %journal branch_cleanup.journal.jsonl")
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=40_000)
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    shown = page.locator(".jp-OutputArea").filter(has_text="just before reply 23 of 26")
    expect(shown.first).to_be_visible(timeout=60_000)


def test_the_panel_shows_branches_below_their_run(open_journal: OpenPage) -> None:
    page = open_journal(f"forked/{Path(SAMPLE).name}")
    page.get_by_role("tab", name=re.compile("Journals")).click()
    panel = page.locator("#branchkit-journals")
    parent = panel.locator("li").filter(has_text="branch_cleanup.journal.jsonl").first
    expect(parent.locator("li")).to_have_count(2)
    parent.get_by_text("branch-1.journal.jsonl").click()
    head = page.locator(".bk-journal:visible .bk-journal-head")
    expect(head).to_contain_text("a branch of run")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_that_axe_knows_is_wrong(open_journal: OpenPage, theme: str) -> None:
    """STYLE 15: names, roles, contrast; in both themes."""
    page = open_journal(SAMPLE, theme=theme)
    rows(page).first.click()
    assert violations(page, ".bk-journal") == []


def test_the_bundle_is_built_from_these_sources() -> None:
    """`make extension` was run after the last change."""
    found = runpy.run_path(str(VIEWER / "sources.py"))["sources_hash"]()
    assert (VIEWER / "labextension" / "sources.sha256").read_text().strip() == found


def test_both_halves_have_one_version() -> None:
    for path in (VIEWER / "package.json", VIEWER / "labextension" / "package.json"):
        assert json.loads(path.read_text())["version"] == branchkit.__version__


def test_the_wheel_brings_the_extension(tmp_path: Path) -> None:
    """No Node.js to install it: what is in the wheel is what JupyterLab loads."""
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "-w", tmp_path, ROOT], check=True, capture_output=True, text=True)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    place = "share/jupyter/labextensions/@branchkit/journal-viewer"
    built = json.loads((VIEWER / "labextension" / "package.json").read_text())
    entry = built["jupyterlab"]["_build"]["load"]
    assert [name for name in names if name.endswith(f"{place}/{entry}")]
    assert [name for name in names if name.endswith("branchkit/notebook/map.js")]
