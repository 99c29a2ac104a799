"""The report of a comparison: one page and one picture that need nothing else, also offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from branchkit.notebook.html import page
from branchkit.notebook.png import comparison_png

if TYPE_CHECKING:
    from branchkit.branch.comparison import Comparison


def write_report(comparison: Comparison, directory: Path | str, stem: str) -> tuple[Path, Path]:
    """The paths of ``STEM.html`` (map, rates, intervals, verdicts) and ``STEM.png``."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    name = comparison.recorded.path.name
    html, png = folder / f"{stem}.html", folder / f"{stem}.png"
    html.write_text(page(comparison, f"fork at turn {comparison.facts.turn} of {name}"), "utf-8")
    png.write_bytes(comparison_png(comparison))
    return html, png
