"""A magic's line as arguments: quotes as in a shell, own errors, and nothing else expanded.

IPython replaces ``$name`` and ``{expression}`` anywhere in a line, also inside a shell command or a
prompt. Here one whole word ``{name}`` stands for the notebook's variable of that name; braces and
dollars anywhere else stay what they are.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Mapping
from typing import Any, NoReturn

from branchkit.errors import UsageError

_VARIABLE = re.compile(r"\{([A-Za-z_]\w*)\}")


class HelpAsked(Exception):
    """``--help`` was given: not an error, the magic shows its docstring."""


class Parser(argparse.ArgumentParser):
    """An argparse that raises branchkit's UsageError, never leaves, and never prints."""

    def __init__(self, name: str) -> None:
        super().__init__(prog=f"%{name}", add_help=False, allow_abbrev=False)
        self.add_argument("-h", "--help", action=_Help, nargs=0, default=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{self.prog}: {message}", hint=f"see {self.prog} --help")


class _Help(argparse.Action):
    def __call__(self, *_: object, **__: object) -> None:
        raise HelpAsked


def words(name: str, line: str, variables: Mapping[str, Any]) -> list[str]:
    """The words of a magic's line. Raises UsageError for a quote that does not end."""
    try:
        found = shlex.split(line)
    except ValueError as error:
        raise UsageError(
            f"%{name}: {error} in {line!r}", hint="put a command in single quotes: --check 'CMD'"
        ) from None
    return [_value(name, word, variables) for word in found]


def _value(name: str, word: str, variables: Mapping[str, Any]) -> str:
    variable = _VARIABLE.fullmatch(word)
    if variable is None:
        return word
    if variable[1] not in variables:
        raise UsageError(
            f"%{name}: the notebook has no variable {variable[1]!r}",
            hint="a word {NAME} alone stands for a variable",
        )
    return str(variables[variable[1]])


def journal_parser() -> Parser:
    """``%journal FILE [--workspace DIR|REPO@COMMIT]``."""
    parser = Parser("journal")
    parser.add_argument("file")
    parser.add_argument("--workspace")
    return parser


def rewind_parser() -> Parser:
    """``%rewind T``."""
    parser = Parser("rewind")
    parser.add_argument("turn", type=int)
    return parser


def branches_parser() -> Parser:
    """``%branches``, without arguments."""
    return Parser("branches")


def compare_parser() -> Parser:
    """``%compare [DIR] [--volatile FILE]``."""
    parser = Parser("compare")
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--volatile")
    return parser


def report_parser() -> Parser:
    """``%report [FILE]``."""
    parser = Parser("report")
    parser.add_argument("file", nargs="?")
    return parser


def fork_parser() -> Parser:
    """``%fork T --swap COMPONENT=SPEC …``; the names are those of ``Options``."""
    parser = Parser("fork")
    add = parser.add_argument
    add("turn", type=int)
    add("--swap", action="append", default=[])
    add("-n", type=int, default=1)
    add("--size", action="append", default=[])
    add("--check")
    add("--seed", type=int, default=0)
    add("--paired", action="store_true")
    add("--no-control", dest="control", action="store_false")
    add("--max-turns", type=int)
    add("--max-calls", type=int)
    add("--from", dest="redeliver_from", type=int, default=1)
    add("--no-sandbox", dest="isolated", action="store_false")
    add("--model")
    return parser


def commitment_parser() -> Parser:
    """``%commitment --check CMD [-n N]``; the names are those of ``Run.commitment``."""
    parser = Parser("commitment")
    add = parser.add_argument
    add("--check", required=True)
    add("-n", type=int, default=20)
    add("--dry-run", action="store_true")
    add("--seed", type=int, default=0)
    add("--max-turns", type=int)
    add("--max-calls", type=int)
    add("--no-sandbox", dest="isolated", action="store_false")
    add("--model")
    return parser


def when_parser() -> Parser:
    """``%when --check CMD``; the names are those of ``Run.when``."""
    parser = Parser("when")
    parser.add_argument("--check", required=True)
    parser.add_argument("--bisect", action="store_true")
    parser.add_argument("--no-sandbox", dest="isolated", action="store_false")
    return parser


def blame_parser() -> Parser:
    """``%blame PATH``."""
    parser = Parser("blame")
    parser.add_argument("path")
    return parser


def versions_parser() -> Parser:
    """``%versions PATH``."""
    parser = Parser("versions")
    parser.add_argument("path")
    return parser


def replay_parser() -> Parser:
    """``%replay [--no-strict]``."""
    parser = Parser("replay")
    parser.add_argument("--no-strict", dest="strict", action="store_false")
    return parser
