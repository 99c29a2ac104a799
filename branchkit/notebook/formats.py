"""How a notebook shows a result: registered by the type's name, so nothing is imported for it.

In a notebook a comparison is two outputs: the live map, and below it the page with the picture.
One output could not be both: JupyterLab shows only an output's richest form, and without a kernel
that form is an error message (jupyterlab#15361). The page's style hides what is one too many.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from branchkit.branch.api import Run
    from branchkit.branch.comparison import Comparison
    from branchkit.durable.cadence import Advice
    from branchkit.durable.resume import Resumption
    from branchkit.replay.rewind import Rewound
    from branchkit.replay.strict import Replayed
    from branchkit.replay.when import Blame, When

Bundle = dict[str, Any]

COMPARISON = ("branchkit.branch.comparison", "Comparison")
REWOUND = ("branchkit.replay.rewind", "Rewound")
RUN = ("branchkit.branch.api", "Run")
REPLAYED = ("branchkit.replay.strict", "Replayed")
WHEN = ("branchkit.replay.when", "When")
BLAME = ("branchkit.replay.when", "Blame")
ADVICE = ("branchkit.durable.cadence", "Advice")
RESUMPTION = ("branchkit.durable.resume", "Resumption")
WIDGET_TEXT = "(the map is interactive while a kernel runs; its picture is below)"
WIDGET = "application/vnd.jupyter.widget-view+json"


def register_formats(shell: InteractiveShell) -> None:
    """Let this IPython show results: text in a terminal, everything in a notebook."""
    formatter = shell.display_formatter
    if formatter is None:
        return
    text = formatter.formatters["text/plain"]
    for place, plain in _TEXTS.items():
        text.for_type_by_name(*place, _printer(plain))
    if getattr(shell, "kernel", None) is None:
        return
    for place, bundle in _BUNDLES.items():
        formatter.mimebundle_formatter.for_type_by_name(*place, bundle)
    formatter.ipython_display_formatter.for_type_by_name(*COMPARISON, show_comparison)


def show_comparison(comparison: Comparison) -> None:
    """Display the live map, then the page; the page alone where widgets are not installed."""
    from IPython.display import display

    live = all(find_spec(name) is not None for name in ("anywidget", "ipywidgets"))
    if live:
        from branchkit.notebook.map import map_of, view_of

        view = {WIDGET: view_of(map_of(comparison)), "text/plain": WIDGET_TEXT}
        display(view, raw=True)
    display(static_bundle(comparison, beside_widget=live), raw=True)


def comparison_bundle(comparison: Comparison, **_filter: Any) -> Bundle:
    """Widget view, page, picture and text of a comparison."""
    from branchkit.notebook.map import map_of, view_of

    return {WIDGET: view_of(map_of(comparison)), **static_bundle(comparison)}


def static_bundle(comparison: Comparison, *, beside_widget: bool = False) -> Bundle:
    """Page, picture and text: all that needs no kernel."""
    from branchkit.branch.text import comparison_text
    from branchkit.notebook.html import comparison_html
    from branchkit.notebook.png import comparison_png

    return {
        "text/html": comparison_html(comparison, beside_widget=beside_widget),
        "image/png": comparison_png(comparison),
        "text/plain": comparison_text(comparison),
    }


def rewound_bundle(rewound: Rewound, **_filter: Any) -> Bundle:
    """Page, picture and text of a moment."""
    from branchkit.notebook.rewound_html import rewound_html, rewound_plain

    return _bundle(rewound_html(rewound), rewound_plain(rewound))


def run_bundle(run: Run, **_filter: Any) -> Bundle:
    """Page, picture and text of a run."""
    from branchkit.notebook.rewound_html import run_html, run_plain

    return _bundle(run_html(run), run_plain(run))


def replayed_bundle(found: Replayed, **_filter: Any) -> Bundle:
    """Page, picture and text of a replay."""
    from branchkit.notebook.answers import replayed_html, replayed_plain

    return _bundle(replayed_html(found), replayed_plain(found))


def when_bundle(found: When, **_filter: Any) -> Bundle:
    """Page, picture and text of which turn did it."""
    from branchkit.notebook.answers import when_html, when_plain

    return _bundle(when_html(found), when_plain(found))


def blame_bundle(found: Blame, **_filter: Any) -> Bundle:
    """Page, picture and text of who changed a path last."""
    from branchkit.notebook.answers import blame_html, blame_plain

    return _bundle(blame_html(found), blame_plain(found))


def resumed_bundle(found: Resumption, **_filter: Any) -> Bundle:
    """Page, picture and text of how a resume went."""
    from branchkit.notebook.answers import resumed_html, resumed_plain

    return _bundle(resumed_html(found), resumed_plain(found))


def advice_bundle(found: Advice, **_filter: Any) -> Bundle:
    """Page, curve and text of how often to take a checkpoint."""
    from branchkit.notebook.answers import advice_html
    from branchkit.notebook.png import advice_png

    picture = advice_png(found)
    return {
        "text/html": advice_html(found, picture),
        "image/png": picture,
        "text/plain": str(found),
    }


def _bundle(html: str, text: str) -> Bundle:
    from branchkit.notebook.png import text_png

    return {"text/html": html, "image/png": text_png(text), "text/plain": text}


def _comparison_plain(comparison: Comparison) -> str:
    from branchkit.branch.text import comparison_text

    return comparison_text(comparison)


def _rewound_plain(rewound: Rewound) -> str:
    from branchkit.notebook.rewound_html import rewound_plain

    return rewound_plain(rewound)


def _run_plain(run: Run) -> str:
    return repr(run)


def _replayed_plain(found: Replayed) -> str:
    from branchkit.notebook.answers import replayed_plain

    return replayed_plain(found)


def _when_plain(found: When) -> str:
    from branchkit.notebook.answers import when_plain

    return when_plain(found)


def _blame_plain(found: Blame) -> str:
    from branchkit.notebook.answers import blame_plain

    return blame_plain(found)


def _resumed_plain(found: Resumption) -> str:
    from branchkit.notebook.answers import resumed_plain

    return resumed_plain(found)


def _printer(plain: Callable[[Any], str]) -> Callable[[Any, Any, bool], None]:
    return lambda found, printer, cycle: printer.text(plain(found))


_TEXTS: dict[tuple[str, str], Callable[[Any], str]] = {
    COMPARISON: _comparison_plain,
    REWOUND: _rewound_plain,
    RUN: _run_plain,
    REPLAYED: _replayed_plain,
    WHEN: _when_plain,
    BLAME: _blame_plain,
    ADVICE: str,
    RESUMPTION: _resumed_plain,
}
_BUNDLES: dict[tuple[str, str], Callable[..., Bundle]] = {
    COMPARISON: comparison_bundle,
    REWOUND: rewound_bundle,
    RUN: run_bundle,
    REPLAYED: replayed_bundle,
    WHEN: when_bundle,
    BLAME: blame_bundle,
    ADVICE: advice_bundle,
    RESUMPTION: resumed_bundle,
}
