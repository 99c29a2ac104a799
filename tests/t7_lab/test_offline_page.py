"""The page of a comparison in a real browser, from a file, with nothing else to ask (R81)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from lab import Place, violations
from playwright.sync_api import Page, expect

import branchkit
from branchkit.notebook import write_report
from branchkit.workspace import Workspaces

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
MAX_PAGE_BYTES = 1_000_000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a small fork of the sample; its store is gone when the page is looked at."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHKIT_STORE", str(folder / "store"))
        with branchkit.open(SAMPLE / "branch_cleanup.journal.jsonl") as run:
            found = run.fork(22, swap="truncation=none", n=2, check="true")
            html, _ = write_report(found, folder / "out", "fork")
        Workspaces.open(folder / "store").stop()
    (folder / "store").rename(folder / "elsewhere")
    return html


@pytest.fixture
def page(place: Place, report: Path) -> Iterator[Page]:
    """The report, opened from the disk; it must ask for nothing but itself."""
    asked: list[str] = []
    page = place.browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    yield page
    page.close()
    assert asked == [report.as_uri()]


def test_a_click_opens_the_diff_without_a_kernel(page: Page, report: Path) -> None:
    """One click through: the map lives, and the cell's two contexts come out of the page."""
    assert report.stat().st_size <= MAX_PAGE_BYTES
    canvas = page.locator(".bk-map .bk-live canvas")
    box = canvas.bounding_box()
    assert box is not None
    canvas.click(position={"x": 125, "y": box["height"] - 9})
    detail = page.locator(".bk-live .detail")
    expect(detail.locator(".title")).to_contain_text("turn 23: the record, and truncation=none")
    expect(detail.locator(".was").filter(has_text="cut by head:12l").last).to_be_visible()
    protected = detail.locator(".now").filter(has_text="protected by the release policy")
    expect(protected.first).to_be_attached()


def test_the_keyboard_opens_it_too(page: Page) -> None:
    canvas = page.locator(".bk-live canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".bk-live .say")).to_contain_text("turn 24")
    page.keyboard.press("Enter")
    expect(page.locator(".bk-live .detail .title")).to_contain_text(
        "turn 24: the record, and control"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_that_axe_knows_is_wrong(page: Page, scheme: Literal["light", "dark"]) -> None:
    """STYLE 15, with a diff open: roles, names, contrast, all of it within reach of the keys."""
    page.emulate_media(color_scheme=scheme)
    page.locator(".bk-live canvas").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".bk-live .detail .title")).to_be_visible()
    assert violations(page, "html") == []


def test_without_scripts_the_table_is_there(place: Place, report: Path) -> None:
    """A mail program or a code host runs no script: the map is the table of letters."""
    text = re.sub(r"<script.*?</script>", "", report.read_text("utf-8"), flags=re.DOTALL)
    page = place.browser.new_page()
    page.set_content(text)
    assert page.locator(".bk-map td").filter(has_text=re.compile(r"^[A-Za-z.]$")).count() > 9
    page.close()
