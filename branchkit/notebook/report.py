"""The report of a comparison: one page and one picture that need nothing else, also offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from branchkit.errors import UsageError
from branchkit.notebook.offline import offline_page
from branchkit.notebook.png import comparison_png

if TYPE_CHECKING:
    from branchkit.branch.comparison import Comparison


def write_report(comparison: Comparison, directory: Path | str, stem: str) -> tuple[Path, Path]:
    """The paths of ``STEM.html`` (map that answers clicks, rates, verdicts) and ``STEM.png``."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    html = report_page(comparison, folder / f"{stem}.html")
    png = folder / f"{stem}.png"
    png.write_bytes(comparison_png(comparison))
    return html, png


def report_page(comparison: Comparison, file: Path | str) -> Path:
    """``file``, now a page of at most 1 MB (R81). Raises UsageError if it cannot be written."""
    title = f"fork at turn {comparison.facts.turn} of {comparison.recorded.path.name}"
    path = Path(file)
    try:
        path.write_text(offline_page(comparison, title), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            hint="name a file in a folder that exists",
        ) from error
    return path
