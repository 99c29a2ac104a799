"""Causes of divergence, planted into the small agent of ``planted``."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from planted import QUIET, START, TURNS, Plant, live, run

from branchkit.divergence.align import TurnHashes, first_divergence
from branchkit.divergence.cause import BEHIND_REPLY, COMPONENTS, CONTEXT, KINDS, REPLY, cause
from branchkit.errors import UsageError

seeds = st.integers(0, 10**6)
later = st.integers(START, TURNS - 4)


def kind_of(plant: Plant, seed: int, swapped: str | None, *, replies: bool = True) -> str:
    """The kind that is found; the drawn case is dropped when the plant moved no action."""
    branch = live(plant, seed, replies=replies)
    record = run(QUIET, seed=seed, replies=replies)
    assume(first_divergence(branch, record) is not None)
    found = cause(branch, record, swapped=swapped)
    assert found is not None
    assert found.turn == first_divergence(branch, record)
    assert found.because
    assert "\n" not in found.because
    return found.kind


@given(seeds)
def test_nothing_planted_nothing_found(seed: int) -> None:
    assert cause(live(QUIET, seed), run(QUIET, seed=seed), swapped=None) is None


@given(seeds, later, st.booleans())
def test_another_choice_from_the_same_context_is_the_model(
    seed: int, turn: int, replies: bool
) -> None:
    """R62, I05, I01: equal context hash at t_div."""
    assert kind_of(Plant("reply", turn), seed, None, replies=replies) == "model_call"


@given(seeds, later)
def test_other_words_from_the_same_context_are_the_model(seed: int, turn: int) -> None:
    """R62: a control arm at a temperature says the same in other words long before it parts."""
    assert kind_of(Plant("wording", turn), seed, None) == "model_call"


@given(seeds, later, st.sampled_from(["reply", "wording"]), st.booleans())
def test_another_served_model_is_drift(seed: int, turn: int, part: str, replies: bool) -> None:
    """R62, I01: the provider serves another model under the same request."""
    plant = Plant(part, turn, once=False, model="m-2")
    assert kind_of(plant, seed, None, replies=replies) == "model_drift"


@given(seeds, later, st.sampled_from(["observation", "hidden"]), st.booleans())
def test_another_result_of_the_same_action_is_the_environment(
    seed: int, turn: int, part: str, replies: bool
) -> None:
    """R62, I05, I01: also where only the workspace differs and shows turns later."""
    assert kind_of(Plant(part, turn), seed, None, replies=replies) == "environment"


@given(seeds, later, st.sampled_from(sorted(COMPONENTS - {"observation", "tools", "policy"})))
def test_an_environment_that_differs_is_not_blamed_on_a_swap(
    seed: int, turn: int, swapped: str
) -> None:
    """R62: a swap that cannot shape results is cleared by a result that differs before it acts."""
    assert kind_of(Plant("observation", turn), seed, swapped) == "environment"


@given(seeds, later, st.booleans())
def test_another_context_after_the_same_turns_is_the_harness(
    seed: int, turn: int, replies: bool
) -> None:
    """R62, I05, I01."""
    assert kind_of(Plant("context", turn), seed, None, replies=replies) == "harness"


@given(seeds, st.sampled_from(sorted(COMPONENTS - CONTEXT)), st.booleans())
def test_a_first_live_context_that_differs_is_not_blamed_on_the_models_side(
    seed: int, swapped: str, replies: bool
) -> None:
    """R62: before its first live reply no swapped model can have changed anything."""
    assert kind_of(Plant("context", START), seed, swapped, replies=replies) == "harness"


@given(seeds, later, st.sampled_from([None, *sorted(REPLY)]))
def test_another_action_from_the_same_reply_is_the_harness(
    seed: int, turn: int, swapped: str | None
) -> None:
    """R62: the model said the very same, so our own code reads it differently."""
    assert kind_of(Plant("parse", turn), seed, swapped) == "harness"


@given(seeds, later, st.sampled_from(["reply", "wording"]), st.sampled_from(sorted(REPLY)))
def test_swapped_model_or_sampling(seed: int, turn: int, part: str, swapped: str) -> None:
    """R62: whether the first effect is another choice or only other words, replies known or not."""
    plant = Plant(part, turn, once=False, model="m-2")
    for replies in (True, False):
        assert kind_of(plant, seed, swapped, replies=replies) == "swap"


@given(seeds, later, st.sampled_from(["prompt", "truncation", "compaction", "tools"]))
def test_swapped_context_component(seed: int, turn: int, swapped: str) -> None:
    """R62: a prompt acts at once, a truncation or compaction when it first bites."""
    begins = START if swapped == "prompt" else turn
    assert kind_of(Plant("context", begins, once=False), seed, swapped) == "swap"


@given(seeds, later, st.sampled_from(["tools", "policy"]))
def test_swapped_tools_or_policy_change_what_an_action_shows(
    seed: int, turn: int, swapped: str
) -> None:
    """R62: a denial, or another implementation of a tool, looks like the environment at first."""
    assert kind_of(Plant("observation", turn, once=False), seed, swapped) == "swap"


@given(seeds, later, st.sampled_from(sorted(BEHIND_REPLY)), st.booleans())
def test_swapped_parser_or_policy_acts_behind_the_reply(
    seed: int, turn: int, swapped: str, replies: bool
) -> None:
    """R62."""
    assert kind_of(Plant("parse", turn), seed, swapped, replies=replies) == "swap"


@given(seeds)
def test_swapped_observation_belongs_to_the_turn_before_the_first_live_one(seed: int) -> None:
    """R62: its trace is the context of the first live turn; the result itself is not live."""
    assert kind_of(Plant("observation", START - 1), seed, "observation") == "swap"


@given(seeds, st.sampled_from(["reply", "wording"]), st.booleans())
def test_swapped_decision_is_the_first_live_reply(seed: int, part: str, replies: bool) -> None:
    """R62."""
    assert kind_of(Plant(part, START), seed, "decision", replies=replies) == "swap"


@given(seeds, st.integers(START + 1, TURNS - 4))
def test_a_decision_is_not_blamed_for_a_later_turn(seed: int, turn: int) -> None:
    """R62: given the record's own decision, a later choice from an equal context is the model's."""
    assert kind_of(Plant("reply", turn), seed, "decision") == "model_call"
    assert kind_of(Plant("context", turn), seed, "decision") == "harness"


@given(seeds, later)
def test_without_replies_other_words_cannot_be_told_from_the_harness(seed: int, turn: int) -> None:
    """The stated limit: vectors without reply hashes, control arm, same model name."""
    assert kind_of(Plant("wording", turn), seed, None, replies=False) == "harness"


ENDED_EARLY = {"model": "swap", "sampling": "swap", "parser": "swap", "policy": "swap"}
GOES_ON = {"parser": "swap", "policy": "swap"}


@pytest.mark.parametrize("swapped", [None, *sorted(COMPONENTS)])
def test_one_side_has_ended(swapped: str | None) -> None:
    """R62: nothing differs but the end; only a swap that can end a run is blamed for it."""
    record, shorter = run(QUIET, seed=1), live(Plant("end", 9, once=False), seed=1)
    longer = live(QUIET, seed=1, turns=TURNS + 2)
    early, late = (cause(one, record, swapped=swapped) for one in (shorter, longer))
    assert early is not None
    assert late is not None
    assert (early.turn, early.kind) == (9, ENDED_EARLY.get(swapped or "", "harness"))
    assert (late.turn, late.kind) == (TURNS + 1, GOES_ON.get(swapped or "", "harness"))
    for one in (shorter, longer):
        stopped = cause(one, record, swapped=swapped, limited=True)
        assert stopped is not None
        assert stopped.kind == "harness"
        assert "limit" in stopped.because


@pytest.mark.parametrize(
    ("part", "turn", "kind"),
    [("observation", 8, "environment"), ("wording", 8, "model_call"), ("context", 8, "harness")],
)
def test_one_side_has_ended_after_something_else_differed(part: str, turn: int, kind: str) -> None:
    """R62: the end is a consequence there; the plant of turn 8 is the cause."""
    # Seed 3 is one where the plant of turn 8 moves no action of turn 8 itself.
    record = run(QUIET, seed=3)[:8]
    branch = live(Plant(part, turn), seed=3, turns=9)
    assert [row.action for row in branch[:5]] == [row.action for row in record[3:]]
    found = cause(branch, record, swapped=None)
    assert found is not None
    assert (found.turn, found.kind) == (9, kind)


@pytest.mark.parametrize(
    ("swapped", "kind"),
    [(None, "harness"), ("model", "harness"), ("prompt", "harness"),
     ("decision", "swap"), ("observation", "swap")],
)  # fmt: skip
def test_a_fork_after_the_last_turn_has_nothing_to_compare_with(
    swapped: str | None, kind: str
) -> None:
    record, branch = run(QUIET, seed=3)[: START - 1], live(QUIET, seed=3)
    found = cause(branch, record, swapped=swapped)
    assert found is not None
    assert (found.turn, found.kind) == (START, kind)


def test_a_branch_without_any_reply() -> None:
    record = run(QUIET, seed=4)
    for swapped, kind in (("model", "swap"), (None, "harness"), ("prompt", "harness")):
        found = cause((), record, swapped=swapped, start=START)
        assert found is not None
        assert (found.turn, found.kind) == (START, kind)


def test_a_difference_that_a_compaction_has_healed_is_not_blamed() -> None:
    """R62: contexts differ at 5, are equal again at 7, and the harness makes them differ at 9."""
    record = run(QUIET, seed=5)
    branch = list(record[START - 1 :])
    for at in (5, 6, *range(9, TURNS + 1)):
        branch[at - START] = branch[at - START]._replace(context=f"other {at}")
    branch[4 - START] = branch[4 - START]._replace(reply="other words at 4")
    branch[10 - START] = branch[10 - START]._replace(action="other")
    found = cause(tuple(branch), record, swapped=None)
    assert found is not None
    assert (found.turn, found.kind) == (10, "harness")
    assert "turn 9" in found.because


def test_an_unknown_component_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'modell' is not a component"):
        cause((), (), swapped="modell")


cells = st.lists(
    st.builds(
        lambda c, a, o, w, m, r: (c, a, o, w, m, r),
        *[st.sampled_from("ab")] * 3,
        st.sampled_from(["a", "b", None]),
        st.sampled_from("ab"),
        st.sampled_from(["a", "b", None]),
    ),
    max_size=5,
)


@given(cells, cells, st.integers(1, 3), st.sampled_from([None, *sorted(COMPONENTS)]), st.booleans())
def test_every_divergence_has_exactly_one_cause_from_the_list(
    left: list[tuple[str, str, str, str | None, str, str | None]],
    right: list[tuple[str, str, str, str | None, str, str | None]],
    first: int,
    swapped: str | None,
    limited: bool,
) -> None:
    """R62: whatever the vectors hold, also what no agent would write."""
    branch = tuple(TurnHashes(turn, *row) for turn, row in enumerate(left, first))
    record = tuple(TurnHashes(turn, *row) for turn, row in enumerate(right, 1))
    found = cause(branch, record, swapped=swapped, limited=limited)
    assert (found is None) == (first_divergence(branch, record) is None)
    if found is not None:
        assert found.kind in KINDS
        assert swapped is not None or found.kind != "swap"
