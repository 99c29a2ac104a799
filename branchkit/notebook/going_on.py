"""Magics for a run that did not get to its end, and their twins: what is in doubt, and going on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from branchkit.notebook.arguments import Parser
from branchkit.notebook.session import SESSION

if TYPE_CHECKING:
    import pandas as pd

    from branchkit.durable.cadence import Advice
    from branchkit.durable.resume import Resumption


def calls() -> pd.DataFrame:
    """One row a call of the open run, in the words *not sent*, *in doubt*, *completed*."""
    import pandas as pd

    from branchkit.durable.states import CallRow, rows

    return pd.DataFrame(rows(SESSION.run.recorded.record), columns=list(CallRow._fields))


def settle(
    call_id: str,
    outcome: Literal["completed", "not sent", "unknown"],
    result: str = "",
    by: str | None = None,
) -> pd.DataFrame:
    """Say what became of a call in doubt of the open run; the calls as they are then."""
    from branchkit.durable.answers import settle as answer

    path = SESSION.run.recorded.path
    answer(path, call_id, outcome, result=result, by=by)
    SESSION.journal(path, workspace=SESSION.workspace)
    return calls()


def approve(
    call_id: str, decision: Literal["allow", "deny"] = "allow", reason: str = ""
) -> pd.DataFrame:
    """Answer a call of the open run that the policy held; the calls as they are then."""
    from branchkit.durable.answers import approve as answer

    path = SESSION.run.recorded.path
    answer(path, call_id, decision, reason=reason)
    SESSION.journal(path, workspace=SESSION.workspace)
    return calls()


def resume(*, isolated: bool = True) -> Resumption:
    """Go on with the open run; what is in doubt is settled before anything is sent."""
    from branchkit.durable.resume import resume as go_on

    run = SESSION.run
    found = go_on(run.recorded.path, workspaces=run.workspaces(), isolated=isolated)
    SESSION.journal(run.recorded.path, workspace=SESSION.workspace)
    return found


def cadence(*, mtbf_s: float | None = None, delta_s: float | None = None) -> Advice:
    """How often the open run should take a checkpoint, from what it measured (R32)."""
    from branchkit.durable.measured import advise

    return advise([SESSION.run.recorded.path], mtbf_s=mtbf_s, delta_s=delta_s)


def calls_magic(_options: Any) -> pd.DataFrame:
    """Say of every call of the open run: *not sent*, *in doubt* or *completed*.

    %calls

    Example:

        %calls
    """
    return calls()


def settle_magic(options: Any) -> pd.DataFrame:
    """Say what became of a call in doubt; %resume then goes on.

    %settle CALL completed|not-sent|unknown [--result TEXT] [--by NAME]

      completed    it was done, and the model is told --result
      not-sent     it was not done: it is authorized and sent again
      unknown      nobody will ever know: the model is told so

    Example:

        %settle t0007.1 completed --result 'ticket 41 was opened'
    """
    return settle(options.call, options.outcome.replace("-", " "), options.result, options.by)


def approve_magic(options: Any) -> pd.DataFrame:
    """Allow, or with --deny refuse, a call that the policy held; %resume then goes on.

    %approve CALL [--deny] [--reason TEXT]

    Example:

        %approve t0007.1 --reason 'asked the owner'
    """
    return approve(options.call, "deny" if options.deny else "allow", options.reason)


def resume_magic(options: Any) -> Resumption:
    """Go on with the open run; what is in doubt is settled before anything is sent.

    %resume [--no-sandbox]

    Recorded replies and results are kept, none is asked for again.

    Example:

        %resume
    """
    return resume(isolated=options.isolated)


def cadence_magic(options: Any) -> Advice:
    """How often the open run should take a checkpoint: overhead against interval, and the optimum.

    %cadence [--mtbf SECONDS] [--pause SECONDS]

      --mtbf    mean time between failures; measured where the run was resumed
      --pause   how long a checkpoint takes; measured where the run took any

    Example:

        %cadence --mtbf 14400 --pause 0.5
    """
    return cadence(mtbf_s=options.mtbf, delta_s=options.pause)


def calls_parser() -> Parser:
    """``%calls``, without arguments."""
    return Parser("calls")


def settle_parser() -> Parser:
    """``%settle CALL OUTCOME``."""
    parser = Parser("settle")
    parser.add_argument("call")
    parser.add_argument("outcome", choices=("completed", "not-sent", "unknown"))
    parser.add_argument("--result", default="")
    parser.add_argument("--by")
    return parser


def approve_parser() -> Parser:
    """``%approve CALL``."""
    parser = Parser("approve")
    parser.add_argument("call")
    parser.add_argument("--deny", action="store_true")
    parser.add_argument("--reason", default="")
    return parser


def resume_parser() -> Parser:
    """``%resume``."""
    parser = Parser("resume")
    parser.add_argument("--no-sandbox", dest="isolated", action="store_false")
    return parser


def cadence_parser() -> Parser:
    """``%cadence``."""
    parser = Parser("cadence")
    parser.add_argument("--mtbf", type=float)
    parser.add_argument("--pause", type=float)
    return parser
