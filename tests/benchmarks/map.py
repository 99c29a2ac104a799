"""The map of 1,000 branches x 500 turns in JupyterLab, in a real Chromium (R81, R84).

    python tests/benchmarks/map.py [--branches N] [--turns T] [--write docs/performance-map.md]

The baseline in the same page is the table that a notebook would show instead: one HTML cell a turn
of a branch, as text of the same letters.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import nbformat
from playwright.sync_api import Page, WebSocket, expect

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "t7_lab"), str(HERE)]

import map_runs  # noqa: E402  (found by the line above)
from lab import Lab, chromium, lab, opened  # noqa: E402

DRAWS = 20
CLICKS = 5
CELL_TIMEOUT_MS = 300_000
NOTEBOOK = "map.ipynb"

# When the second cell has its number, and when the map has been drawn: [ended, drawn] in ms.
WATCH = """() => {
    window.bkSeen = {};
    const look = () => {
        const prompts = document.querySelectorAll(".jp-CodeCell .jp-InputArea-prompt");
        if (!bkSeen.ended && prompts[1] && /\\d/.test(prompts[1].textContent))
            bkSeen.ended = performance.now();
        const canvas = document.querySelector(".bk-live canvas");
        if (canvas && canvas.width && !bkSeen.drawn) bkSeen.drawn = performance.now();
        if (!bkSeen.ended || !bkSeen.drawn) requestAnimationFrame(look);
    };
    look();
}"""
# A draw as a resize or a key causes it, with the pixels read back: nothing stays queued.
DRAW = """canvas => {
    const began = performance.now();
    canvas.dispatchEvent(new Event("focus"));
    canvas.getContext("2d").getImageData(0, 0, 1, 1);
    return performance.now() - began;
}"""
# From the key to the diff that stands in the page.
ASK = """canvas => new Promise(done => {
    const detail = canvas.parentElement.querySelector(".detail");
    const began = performance.now();
    new MutationObserver((_, watch) => {
        watch.disconnect();
        requestAnimationFrame(() => done(performance.now() - began));
    }).observe(detail, { childList: true });
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
})"""
TABLE = """([rows, turns]) => {
    const began = performance.now();
    const table = document.createElement("table");
    table.innerHTML = Array(rows).fill(`<tr>${"<td>.</td>".repeat(turns)}</tr>`).join("");
    document.body.append(table);
    table.getBoundingClientRect();
    const took = performance.now() - began;
    table.remove();
    return took;
}"""


class Figures(NamedTuple):
    """What was measured. Times in ms, sizes in bytes."""

    wire_bytes: int
    visible_ms: float
    draw_ms: float
    click_ms: float
    saved_bytes: int
    table_ms: float


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--branches", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="branchkit-map-") as name:
        folder = Path(name)
        runs = folder / "runs"
        runs.mkdir()
        map_runs.make(runs, options.turns)
        found = measured(folder, runs, options.branches, options.turns)
    text = page(found, options.branches, options.turns)
    print(text)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    return 0


def measured(folder: Path, runs: Path, branches: int, turns: int) -> Figures:
    """One notebook, one browser, every figure."""
    work, state = folder / "work", folder / "state"
    work.mkdir()
    state.mkdir()
    notebook = work / NOTEBOOK
    prepare = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from pathlib import Path
import map_runs
%load_ext branchkit
found = map_runs.comparison(Path({str(runs)!r}), {branches})
found.summaries
None"""
    cells = [nbformat.v4.new_code_cell(source) for source in (prepare, "found")]  # type: ignore[no-untyped-call]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), notebook)  # type: ignore[no-untyped-call]
    with lab(work, state) as server, chromium(state / "profile") as browser:
        server.theme("light")
        received: list[int] = []
        browser.on("page", lambda each: each.on("websocket", lambda wire: count(wire, received)))
        view = opened(browser, server, NOTEBOOK, workspace="bench")
        return looked(view, server, notebook, received, (branches, turns))


def count(wire: WebSocket, received: list[int]) -> None:
    """Add up what the kernel sends to the page."""
    wire.on("framereceived", lambda body: received.append(len(body)))


def looked(
    view: Page, server: Lab, notebook: Path, received: list[int], size: tuple[int, int]
) -> Figures:
    """Run both cells and measure at the map."""
    view.locator(".jp-Notebook").click()
    expect(view.locator("#jp-main-statusbar")).to_contain_text("| Idle", timeout=40_000)
    run_cell(view, 0)
    received.clear()
    view.evaluate(WATCH)
    run_cell(view, 1)
    view.wait_for_function("() => window.bkSeen.ended && window.bkSeen.drawn")
    seen: dict[str, float] = view.evaluate("() => window.bkSeen")
    wire = sum(received)
    canvas = view.locator(".bk-live canvas")
    canvas.focus()
    draws = [float(canvas.evaluate(DRAW)) for _ in range(DRAWS)]
    view.keyboard.press("Enter")  # a row of several branches opens into them
    expect(view.locator(".bk-live .say")).to_contain_text("Escape shows all")
    view.keyboard.press("End")  # the longest contexts
    clicks = []
    for _ in range(CLICKS):
        view.keyboard.press("ArrowLeft")
        clicks.append(float(canvas.evaluate(ASK)))
        expect(view.locator(".bk-live .detail .title")).to_contain_text("the record, and control")
    table = float(view.evaluate(TABLE, list(size)))
    view.keyboard.press("Control+s")
    deadline = time.monotonic() + 60
    while "bk-map" not in notebook.read_text("utf-8"):
        assert time.monotonic() < deadline, "the notebook was not saved"
        view.wait_for_timeout(200)
    return Figures(
        wire, max(0.0, seen["drawn"] - seen["ended"]), statistics.median(draws),
        statistics.median(clicks), notebook.stat().st_size, table,
    )  # fmt: skip


def run_cell(view: Page, at: int) -> None:
    """Run one cell and wait for its number."""
    cell = view.locator(".jp-CodeCell").nth(at)
    cell.locator(".cm-content").click()
    view.keyboard.press("Control+Enter")
    expect(cell.locator(".jp-InputPrompt")).to_contain_text(f"[{at + 1}]", timeout=CELL_TIMEOUT_MS)


def page(found: Figures, branches: int, turns: int) -> str:
    """The figures as a page of docs/."""
    rows: list[tuple[str, str, str]] = [
        ("from the kernel to the page", f"{found.wire_bytes / 1e6:.2f} MB", "1 MB"),
        ("map visible after the cell ended", f"{found.visible_ms:.0f} ms", "1,000 ms"),
        (f"one draw, median of {DRAWS}", f"{found.draw_ms:.1f} ms", "50 ms"),
        (f"key to diff, median of {CLICKS}", f"{found.click_ms:.0f} ms", "500 ms"),
        ("saved notebook", f"{found.saved_bytes / 1e6:.2f} MB", "1 MB"),
        ("baseline: the same cells as an HTML table", f"{found.table_ms:.0f} ms", ""),
    ]
    table = "\n".join(f"| {name} | {value} | {floor} |" for name, value, floor in rows)
    load = os.getloadavg()[0]
    ratio = found.table_ms / found.draw_ms
    return f"""# The map: {branches:,} branches x {turns:,} turns

Written by `make bench-map` (JupyterLab in Chromium, {os.cpu_count()} cores, load {load:.1f}).

| what | measured | floor |
| --- | --- | --- |
{table}

A draw of the canvas takes 1/{ratio:.0f} of laying out the same cells as a table.
"""


if __name__ == "__main__":
    sys.exit(main())
