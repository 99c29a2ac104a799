"""What each verb of the command line takes. Parsing only: nothing of branchkit is imported here."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from branchkit.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argparse that raises UsageError instead of leaving with 2."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; argparse calls this for every mistake."""
        raise UsageError(f"{self.prog}: {message}", hint=f"see {self.prog} --help")


def parser(help_of: Mapping[str, str]) -> Parser:
    """The parser of all verbs; ``help_of`` gives each verb's one line of help, in order."""
    whole = Parser(prog="branchkit", description="Counterfactual branching of agent runs.")
    verbs = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    made: dict[str, argparse.ArgumentParser] = {}
    for name, text in help_of.items():
        made[name] = verbs.add_parser(name, help=text)
        made[name].add_argument("--json", action="store_true", help="one JSON object on stdout")
    _reading(made)
    _branching(made)
    _recording(made)
    _on_workspaces(made)
    _keeping(made)
    _going_on(made)
    return whole


def _reading(made: Mapping[str, argparse.ArgumentParser]) -> None:
    for name in ("import", "show", "verify", "rewind", "when", "replay"):
        made[name].add_argument("file", type=Path)
    made["import"].add_argument("-o", "--out", type=Path)
    made["verify"].add_argument(
        "--anchor", help="hash of the last event, kept elsewhere (default: NAME.head)"
    )
    made["rewind"].add_argument("turn", type=int)
    made["rewind"].add_argument("--parent", type=Path)
    made["rewind"].add_argument("--no-workspace", action="store_true")
    made["rewind"].add_argument("--last", type=int, help="only so many messages from the end")
    made["when"].add_argument("--check", required=True, metavar="CMD")
    made["when"].add_argument("--bisect", action="store_true", help="look at few turns only")
    made["when"].add_argument("--no-sandbox", action="store_true")
    for name in ("replay", "regress"):
        made[name].add_argument("--harness", metavar="MODULE:FUNCTION", help="a loop of your own")
    made["regress"].add_argument("places", nargs="+", type=Path, metavar="DIR")
    made["regress"].add_argument("--jobs", type=int)
    made["replay"].add_argument("--strict", action="store_true", help="the default")
    made["replay"].add_argument("--here", action="store_true", help="in this process, unconfined")
    made["replay"].add_argument("--bisect", action="store_true", help="codes for git bisect run")


def _branching(made: Mapping[str, argparse.ArgumentParser]) -> None:
    made["demo"].add_argument("file", nargs="?", type=Path, help="a journal or another tool's file")
    made["demo"].add_argument("--out", type=Path, default=Path("demo-out"), help="for the report")
    made["fork"].add_argument("file", type=Path)
    made["fork"].add_argument("turn", type=int)
    _fork_options(made["demo"], n=20)
    _fork_options(made["fork"], n=1)
    made["commitment"].add_argument("file", type=Path)
    made["commitment"].add_argument("--check", required=True, metavar="CMD")
    made["commitment"].add_argument("--dry-run", action="store_true", help="say what it may cost")
    _branch_options(made["commitment"], n=20)
    made["compare"].add_argument("directory", type=Path, help="the directory that a fork named")
    made["compare"].add_argument("--volatile", type=Path, metavar="FILE", help="from calibrate")
    made["calibrate"].add_argument("one", type=Path, metavar="A")
    made["calibrate"].add_argument("other", type=Path, metavar="B")
    made["calibrate"].add_argument("-o", "--out", type=Path, help="for compare --volatile")


def _recording(made: Mapping[str, argparse.ArgumentParser]) -> None:
    _run_options(made["run"])
    made["pack"].add_argument("file", type=Path)


def _going_on(made: Mapping[str, argparse.ArgumentParser]) -> None:
    for name in ("resume", "calls", "settle", "approve", "cancel"):
        made[name].add_argument("file", type=Path)
    made["resume"].add_argument("--no-sandbox", action="store_true")
    for name in ("settle", "approve"):
        made[name].add_argument("call", metavar="CALL", help="as `branchkit calls` names it")
    made["settle"].add_argument("outcome", choices=("completed", "not-sent", "unknown"))
    made["settle"].add_argument("--result", default="", help="what the model is told")
    made["settle"].add_argument("--detail", default="", help="how you know")
    made["approve"].add_argument("--deny", action="store_true")
    made["approve"].add_argument("--expires-at", metavar="TIME", help="ISO 8601 with a zone")
    for name in ("settle", "approve", "cancel"):
        made[name].add_argument("--by", help="who says so (the user's name)")
    for name in ("approve", "cancel"):
        made[name].add_argument("--reason", default="")
    made["cadence"].add_argument("files", nargs="+", type=Path)
    made["cadence"].add_argument("--mtbf", type=float, metavar="SECONDS", help="between failures")
    made["cadence"].add_argument("--pause", type=float, metavar="SECONDS", help="of a checkpoint")


def _keeping(made: Mapping[str, argparse.ArgumentParser]) -> None:
    made["redaction-check"].add_argument("files", nargs="+", type=Path, metavar="FILE|DIR")


def _on_workspaces(made: Mapping[str, argparse.ArgumentParser]) -> None:
    for name in ("mount", "umount", "diff", "drop", "gc", "apply", "export"):
        made[name].add_argument("--store", type=Path, help="$BRANCHKIT_STORE, else .branchkit here")
    for name in ("diff", "drop", "apply"):
        made[name].add_argument("branch", metavar="BRANCH")
    made["mount"].add_argument("base", type=Path)
    made["mount"].add_argument("--branch", default="main")
    made["diff"].add_argument("--patch", action="store_true", help="contents, since its base")
    made["gc"].add_argument("--keep", nargs="+", type=Path, metavar="JOURNAL|DIR",
        help="forget every snapshot that these journals do not name")  # fmt: skip
    made["apply"].add_argument("--to", type=Path, metavar="DIR", help="instead of the base")
    made["apply"].add_argument("--force", action="store_true", help="though others share the base")
    made["export"].add_argument("file", nargs="?", type=Path)
    made["export"].add_argument("turn", nargs="?", type=int)
    made["export"].add_argument("--branch", help="a branch of the store instead of a turn")
    made["export"].add_argument("--to", type=Path, required=True, metavar="REPOSITORY")
    made["export"].add_argument("--ref", help="branchkit/RUN, or branchkit/BRANCH")


def _fork_options(parser: argparse.ArgumentParser, *, n: int) -> None:
    add = parser.add_argument
    add("--swap", action="append", default=[], metavar="COMPONENT=SPEC", help="one arm each")
    add("--size", action="append", default=[], metavar="ARM=N", help="another size for one arm")
    add("--check", metavar="CMD", help="run in each branch's workspace: exit 0 is success")
    add("--paired", action="store_true", help="branches of equal seed decide, in pairs")
    add("--no-control", action="store_true", help="leave the control arm out")
    _branch_options(parser, n=n)


def _branch_options(parser: argparse.ArgumentParser, *, n: int) -> None:
    """What every verb takes that runs branches."""
    add = parser.add_argument
    add("-n", type=int, default=n, help=f"branches an arm ({n})")
    add("--workspace", help="the files of a run that recorded none: DIR or REPO@COMMIT")
    add("--seed", type=int, default=0)
    add("--max-turns", type=int, help="live turns a branch (what the record still had + 10)")
    add("--max-calls", type=int, help="model calls a branch")
    add("--from", dest="redeliver_from", type=int, default=1, metavar="K",
        help="deliver only results of turns >= K anew")  # fmt: skip
    add("--model", help="asked in every arm, for a run whose own model cannot be asked")
    add("--no-sandbox", action="store_true", help="run tools unconfined")
    add("--jobs", type=int, help="branches at a time (number of processors)")
    add("--store", type=Path, help="$BRANCHKIT_STORE, else .branchkit here")


def _run_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("task", help="what the agent is told to do")
    add("--base", type=Path, required=True, help="directory to work on; it is never written")
    add("-o", "--out", type=Path, required=True, help="NAME.journal.jsonl")
    add("--set", action="append", default=[], metavar="COMPONENT=SPEC", help="model=… and others")
    add("--seed", type=int, default=0)
    add("--max-turns", type=int, default=100)
    add("--no-sandbox", action="store_true")
    add("--no-pack", action="store_true", help="leave the workspace in the store only")
