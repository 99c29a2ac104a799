"""The quick start where people sit: JupyterLab in a real browser (R84, issue of the notebook line).

The tests are one story and run in its order: run all, click, save, reopen without a kernel, dark.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab import NOTEBOOK, Place, opened, violations
from playwright.sync_api import Locator, Page, expect

RUN_TIMEOUT_MS = 90_000
START_TIMEOUT_MS = 40_000
MAP_WITHIN_S = 2.0
STYLE_OF = "(node, what) => getComputedStyle(node)[what]"
WIDGET_ERROR = re.compile("Error displaying widget|Loading widget")


@pytest.fixture(scope="module")
def page(place: Place, shots: Path) -> Iterator[Page]:
    """The notebook, run from top to bottom; at the end a picture of where it stood."""
    page = opened(place.browser, place.server, NOTEBOOK, workspace="run")
    try:
        run_all(page)
        yield page
    finally:
        shot(page, "last", shots)
        page.close()


def run_all(page: Page) -> None:
    page.locator(".jp-Notebook").click()
    # Cells that are run before the kernel is connected may never start.
    expect(page.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=START_TIMEOUT_MS)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    failed = page.locator('[data-mime-type="application/vnd.jupyter.error"]')
    done = last_prompt(page).filter(has_text=re.compile(r"\[\d+\]"))
    done.or_(failed).first.wait_for(timeout=RUN_TIMEOUT_MS)
    assert failed.all_inner_texts() == []


def last_prompt(page: Page) -> Locator:
    return page.locator(".jp-CodeCell").last.locator(".jp-InputPrompt")


def drawn_colours(canvas: Locator) -> int:
    """How many different colours the canvas shows; 1 or less is an empty one."""
    script = """canvas => {
        const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let at = 0; at < pixels.length; at += 4)
            seen.add(pixels.slice(at, at + 4).join());
        return seen.size;
    }"""
    return int(canvas.evaluate(script))


def rgba(of: Locator, what: str) -> list[float]:
    """A computed colour, each part 0 to 1."""
    parts = [float(part) for part in re.findall(r"[\d.]+", of.evaluate(STYLE_OF, what))]
    return [part / 255 for part in parts[:3]] + [*parts[3:], 1.0][:1]


def luminance(colour: list[float]) -> float:
    """WCAG's relative luminance."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour[:3]
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(text: Locator, ground: Locator) -> float:
    """WCAG's contrast of a text with what it stands on: 1 to 21, 4.5 is readable."""
    ink, under = rgba(text, "color"), rgba(ground, "backgroundColor")
    assert under[3] == 1, f"something else shines through: {under}"
    seen = [ink[3] * a + (1 - ink[3]) * b for a, b in zip(ink[:3], under[:3], strict=True)]
    low, high = sorted([luminance(seen), luminance(under)])
    return (high + 0.05) / (low + 0.05)


def shot(page: Page, name: str, tmp: Path) -> None:
    """A picture for whoever wants to look; pytest keeps the last three runs' folders."""
    page.screenshot(path=tmp / f"{name}.png")


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shots")


def test_the_map_is_there_within_two_seconds_after_the_cell(page: Page, shots: Path) -> None:
    ended = time.monotonic()
    canvas = page.locator(".bk-live canvas")
    canvas.scroll_into_view_if_needed()
    expect(canvas).to_be_visible()
    assert drawn_colours(canvas) > 2
    assert time.monotonic() - ended <= MAP_WITHIN_S
    # Beside the living map the picture of it is one too many; rates and verdicts stay.
    expect(page.locator(".bk-beside .bk-map")).to_be_hidden()
    expect(page.get_by_text("success, with 95 % intervals")).to_be_visible()
    shot(page, "run", shots)


def test_a_click_shows_both_contexts(page: Page, shots: Path) -> None:
    """R84: a cell of the swap's arm opens the branch's context beside the record's."""
    canvas = page.locator(".bk-live canvas")
    box = canvas.bounding_box()
    assert box is not None
    # The last arm but one is truncation=none; its last row's first turn.
    canvas.click(position={"x": 125, "y": box["height"] - 3 * 18 - 15 - 8})
    detail = page.locator(".bk-live .detail")
    expect(detail).to_contain_text("turn 23: the record, and truncation=none")
    protected = detail.locator(".now").filter(has_text="protected by the release policy")
    expect(protected.first).to_be_attached()
    expect(detail.locator(".was").filter(has_text="cut by head:12l").last).to_be_visible()
    detail.scroll_into_view_if_needed()
    shot(page, "click", shots)


def test_the_keyboard_reaches_every_cell(page: Page) -> None:
    """STYLE 15: arrows move and tell, Enter compares."""
    canvas = page.locator(".bk-live canvas")
    canvas.focus()
    for _ in range(12):
        page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".bk-live .say")).to_contain_text("turn 24")
    expect(page.locator(".bk-live .say")).to_contain_text("control, branch")
    page.keyboard.press("Enter")
    expect(page.locator(".bk-live .detail .title")).to_contain_text(
        "turn 24: the record, and control"
    )


def test_axe_finds_nothing_wrong_with_the_map(page: Page) -> None:
    """STYLE 15: in JupyterLab's own page, with a diff open."""
    assert violations(page, ".bk-live") == []
    assert violations(page, ".bk-beside") == []


def test_the_living_map_follows_the_theme(page: Page, shots: Path) -> None:
    """The map is drawn anew with the page's own colours when the theme changes under it."""
    before = page.locator(".bk-live").evaluate("node => getComputedStyle(node).color")
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    entry = page.locator(".lm-Menu-item:visible .lm-Menu-itemLabel")
    entry.get_by_text("Theme", exact=True).hover()
    entry.get_by_text("JupyterLab Dark", exact=True).click()
    expect(page.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    live = page.locator(".bk-live")
    expect(live).not_to_have_css("color", before)
    assert contrast(live, live) >= 4.5
    assert contrast(live.locator(".say"), live) >= 4.5
    live.scroll_into_view_if_needed()
    shot(page, "live-dark", shots)


def test_the_saved_notebook_shows_the_picture_without_a_kernel(
    page: Page, place: Place, shots: Path
) -> None:
    """jupyterlab#15361: no model, no error message in its place; and no widget state is saved."""
    page.keyboard.press("Control+s")
    wait_until_saved(page, place.notebook)
    stop_kernels(page)
    place.server.theme("light")
    reopened = opened_without_kernel(place, workspace="reopened")
    look_without_kernel(reopened)
    shot(reopened, "reopened", shots)
    reopened.close()
    saved = nbformat.read(place.notebook, as_version=4)  # type: ignore[no-untyped-call]
    assert "widgets" not in saved.metadata
    assert place.notebook.stat().st_size < 1_000_000


def test_dark_theme_is_readable(page: Page, place: Place, shots: Path) -> None:
    place.server.theme("dark")
    dark = opened_without_kernel(place, workspace="dark")
    expect(dark.locator("body")).to_have_attribute("data-jp-theme-light", "false")
    look_without_kernel(dark)
    page_of_map = dark.locator(".bk-beside")
    for text in (page_of_map, page_of_map.locator(".dim").first, page_of_map.locator("th").first):
        assert contrast(text, page_of_map) >= 4.5
    shot(dark, "dark", shots)
    dark.close()


def opened_without_kernel(place: Place, *, workspace: str) -> Page:
    """The saved notebook on a machine that has no kernel to start: Lab asks, "No Kernel" it is."""
    none = '{"default": "python3", "kernelspecs": {}}'
    page = opened(place.browser, place.server, NOTEBOOK, workspace=workspace, kernelspecs=none)
    page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
    expect(page.locator(".jp-Toolbar-kernelName")).to_contain_text("No Kernel")
    return page


def look_without_kernel(page: Page) -> None:
    """The picture is there, and nothing that says the widget is not."""
    page.locator(".jp-CodeCell").last.scroll_into_view_if_needed()  # Lab draws what is in sight
    page.locator(".bk-beside").scroll_into_view_if_needed()
    expect(page.locator(".bk-beside .bk-map")).to_be_visible()
    cell = page.locator(".bk-beside .bk-map td").filter(has_text=re.compile(r"^[A-Za-z.]$"))
    assert cell.count() > 9
    for said in page.get_by_text(WIDGET_ERROR).all():
        expect(said).to_be_hidden()


def wait_until_saved(page: Page, notebook: Path) -> None:
    """Until the file holds the picture: Lab writes it a moment after the key."""
    deadline = time.monotonic() + 20
    while "bk-map" not in notebook.read_text(encoding="utf-8"):
        assert time.monotonic() < deadline, "the notebook was not saved"
        page.wait_for_timeout(100)


def stop_kernels(page: Page) -> None:
    """A second page would join the kernel that still runs; this makes it one without."""
    page.evaluate(
        """async () => {
            const sessions = await (await fetch("/api/sessions")).json();
            const token = document.cookie.match("\\\\b_xsrf=([^;]*)\\\\b");
            const headers = token ? { "X-XSRFToken": token[1] } : {};
            for (const session of sessions)
                await fetch(`/api/sessions/${session.id}`, { method: "DELETE", headers });
        }"""
    )
