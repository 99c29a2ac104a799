"""What Tab offers after a magic: journals, turns, components and specs, forks, calls, options.

An answer that cannot be had, because no run is open or a folder is not there, is no answer.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchkit.errors import BranchkitError
from branchkit.notebook.session import SESSION

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from branchkit.notebook.arguments import Parser

MAX_TURNS = 500  # offered at once; of a longer run what begins with the digits typed
SUFFIX = ".journal.jsonl"

_MAGIC = re.compile(r"\s*(?:\w+\s*=\s*)?%{1,2}(\w+)\s")
_FRAGMENT = re.compile(r"[^\s=@]*\Z")

# Specs that need nothing else; those that name a file or a place are offered up to there.
SPECS: Mapping[str, tuple[str, ...]] = {
    "model": ("openai:", "local:smollm2", "rulebook:@"),
    "sampling": ("temperature:0", "temperature:0.7", "slip:0", "slip:0.2"),
    "truncation": ("none", "head:12l", "head:40l", "tail:40l", "middle:40l"),
    "prompt": ("@",),
    "policy": ("allow", "deny:", "hold:"),
    "parser": ("native", "fenced:"),
    "observation": (),
    "decision": ("@",),
}


def register_completions(
    shell: InteractiveShell, parsers: Mapping[str, Callable[[], Parser]]
) -> None:
    """Let Tab complete the arguments of every magic in ``parsers``."""
    from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

    @context_matcher(identifier="branchkit")  # type: ignore[untyped-decorator]
    def match(context: CompletionContext) -> Any:
        fragment, found = offers(parsers, context.text_until_cursor)
        words = [SimpleCompletion(word, type="magic") for word in found]
        # Where ours fit, Python's names do not: after a slash it would offer what can be divided.
        return {"completions": words, "matched_fragment": fragment, "suppress": bool(words)}

    shell.Completer.custom_matchers.append(match)


def offers(parsers: Mapping[str, Callable[[], Parser]], text: str) -> tuple[str, list[str]]:
    """The piece at the end of ``text`` that is being typed, and the words that may stand there."""
    called = _MAGIC.match(text)
    if called is None or called[1] not in parsers:
        return "", []
    fragment = _FRAGMENT.search(text)[0]  # type: ignore[index]  # it always fits, if only nothing
    before = text[called.end(1) : len(text) - len(fragment)]
    try:
        found = _values(called[1], parsers[called[1]](), before, fragment)
        return fragment, sorted({word for word in found if word.startswith(fragment)})
    except (BranchkitError, OSError):  # no run is open, no such folder: nothing to offer
        return fragment, []


def _values(name: str, parser: Parser, before: str, fragment: str) -> Iterable[str]:
    words = before.split()
    last = words[-1] if words else ""
    if before.endswith("@"):
        return _paths(fragment)
    if before.endswith("="):
        return SPECS.get(last.partition("=")[0], ()) if "--swap" in words[-2:-1] else ()
    if fragment.startswith("-"):
        return _options(parser)
    if last == "--swap":
        return (f"{component}=" for component in SPECS)
    if last == "--size":
        return (f"{arm}=" for arm in _arms(words))
    if last == "--workspace":
        return _paths(fragment)
    if last.startswith("--") and _takes_value(parser, last):
        return ()
    return _positional(name, fragment)


def _positional(name: str, fragment: str) -> Iterable[str]:
    match name:
        case "journal":
            return _paths(fragment, suffix=SUFFIX)
        case "rewind":
            return _turns(fragment, 1, SESSION.run.turns + 1)
        case "fork":
            return _turns(fragment, 0, SESSION.run.turns)
        case "compare":
            return _forks()
        case "settle" | "approve":
            return SESSION.run.recorded.record.calls
        case "blame" | "versions":
            return _workspace_paths(fragment)
        case _:
            return ()


def _turns(fragment: str, first: int, last: int) -> Iterator[str]:
    fitting = (str(turn) for turn in range(first, last + 1) if str(turn).startswith(fragment))
    return islice(fitting, MAX_TURNS)


def _arms(words: list[str]) -> Iterator[str]:
    yield "control"
    yield from (after for before, after in pairwise(words) if before == "--swap")


def _forks() -> Iterator[str]:
    """The folders of earlier forks in the store, as ``%compare`` takes them."""
    from branchkit.journal.blobs import store_directory

    for found in sorted((store_directory() / "forks").glob("*/fork.json")):
        yield (
            os.path.relpath(found.parent) if found.is_relative_to(Path.cwd()) else str(found.parent)
        )


def _workspace_paths(fragment: str) -> Iterator[str]:
    """Paths of the moment that was looked at last."""
    moment = SESSION.rewound
    if moment is None or moment.branch is None:
        return iter(())
    return _paths(fragment, root=moment.branch.path)


def _paths(fragment: str, *, suffix: str = "", root: Path | None = None) -> Iterator[str]:
    """What lies in the folder that ``fragment`` names so far; folders end with a slash."""
    folder, _, begun = fragment.rpartition("/")
    head = f"{folder}/" if "/" in fragment else ""
    place = (root or Path()) / Path(head or ".").expanduser()
    for entry in os.scandir(place):
        if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun):
            continue
        if entry.is_dir():
            yield f"{head}{entry.name}/"
        elif entry.name.endswith(suffix):
            yield f"{head}{entry.name}"


def _options(parser: Parser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings


def _takes_value(parser: Parser, option: str) -> bool:
    found = [action for action in parser._actions if option in action.option_strings]
    return bool(found) and found[0].nargs != 0 and not isinstance(found[0], argparse._HelpAction)
