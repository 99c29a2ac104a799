"""The only dispatcher: nothing leaves the host but through here (R20, C07, D01)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from branchkit.disk import crash_point

T = TypeVar("T")


def ask(commit: Callable[[], None], question: Callable[[], T]) -> T:
    """The answer to ``question`` of a model, whose context is durable first.

    It changes nothing in the world, so it is asked again after a crash (D05).
    """
    commit()
    crash_point("context_durable")
    answer = question()
    crash_point("model_answered")
    return answer


def send(commit: Callable[[], None], effect: Callable[[], T]) -> T:
    """The result of ``effect``, which starts only after ``commit`` has made its intent durable.

    The order proposal, authorization, flush, external action, observation is kept here and nowhere
    else; after a crash between the two crash points the action is *in doubt*, before the first it
    is *not sent*.
    """
    commit()
    crash_point("intent_durable")
    result = effect()
    crash_point("effect_done")
    return result
