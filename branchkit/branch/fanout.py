"""Run the branches of a fork in worker processes; keep what is finished whatever happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, as_completed
from pathlib import Path
from typing import NamedTuple

from branchkit.branch.run import Job, Result, run_branch
from branchkit.process import WorkerDied, Workers

Progress = Callable[[int, int, str], None]  # branches done, branches in all, what is going on


class Lanes(NamedTuple):
    """How many branches run side by side; those of the arms in ``in_turn`` one after the other."""

    width: int
    in_turn: Collection[str] = ()


def run_all(
    jobs: Sequence[Job], lanes: Lanes, directory: Path, progress: Progress
) -> tuple[list[Result], bool]:
    """The results in the order in which branches ended, and whether an interrupt cut them short.

    Each result is appended to ``results.jsonl`` as it comes. A worker that dies loses its own
    branch only, whose result says so.
    """
    results: list[Result] = []
    progress(0, len(jobs), "starting")
    with Workers(min(lanes.width, len(jobs))) as workers, Workers(1) as single:
        futures: dict[Future[Result], Job] = {
            (single if job.arm in lanes.in_turn else workers).submit(run_branch, job): job
            for job in jobs
        }
        try:
            for future in as_completed(futures):
                result = _result(future, futures[future])
                results.append(result)
                _keep(directory, result)
                progress(len(results), len(jobs), result.arm)
        except KeyboardInterrupt:
            workers.stop()
            single.stop()
            return results, True
    return results, False


def _result(future: Future[Result], job: Job) -> Result:
    try:
        return future.result()
    except WorkerDied as died:
        return Result(
            job.arm, job.number, job.seed, str(job.journal), None, "", None, "", None, str(died)
        )


def _keep(directory: Path, result: Result) -> None:
    with (directory / "results.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(result._asdict()) + "\n")
