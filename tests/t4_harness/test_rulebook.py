"""The stand-in: what it does depends on its context, the seed and the slip rate alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.boundary.model import ModelReply, ModelRequest, seed_for_turn
from branchkit.errors import ModelError, UsageError
from branchkit.harness.models import open_model
from branchkit.harness.rulebook import Rulebook

RULES = """
[[rule]]
why = "look first"
unless = 'list \\{'
call = "list"
arguments = { depth = 2, names = ["{x}", "b"] }

[[rule]]
why = "each stale name of the last list"
in = "list"
find = '^(?P<name>\\S+) stale$'
unless = ['drop \\{"name":"{name}"\\}', 'keep {name}$']
call = "drop"
arguments = { name = "{name}" }
slip = { say = "Rather not." }

[[rule]]
why = "done"
say = "All stale names are gone."
"""


def book(text: str = RULES) -> Rulebook:
    return Rulebook("rulebook:test", text)


def request(*messages: dict[str, Any], slip: float = 0.0, seed: int = 1) -> ModelRequest:
    return ModelRequest(
        messages=[{"role": "user", "content": "clean up"}, *messages],
        tools=[],
        sampling={"slip": slip},
        seed=seed,
        turn=1,
    )


def called(name: str, /, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"))}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": f"{name}-1", "type": "function", "function": function}],
    }


def answered(name: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"{name}-1", "content": text}


def said(reply: ModelReply) -> tuple[str, Any]:
    """The tool with its arguments, or what was said."""
    for call in reply.message.get("tool_calls", []):
        return call["function"]["name"], json.loads(call["function"]["arguments"])
    return "say", reply.message["content"]


LISTED = (called("list", depth=2), answered("list", "a fresh\nb.c stale\nd stale"))


def test_the_first_rule_that_fits_decides() -> None:
    assert said(book().reply(request())) == ("list", {"depth": 2, "names": ["{x}", "b"]})


def test_each_match_is_tried_until_one_is_not_excluded() -> None:
    assert said(book().reply(request(*LISTED))) == ("drop", {"name": "b.c"})
    dropped = [*LISTED, called("drop", name="b.c"), answered("drop", "gone")]
    assert said(book().reply(request(*dropped))) == ("drop", {"name": "d"})
    dropped += [called("drop", name="d"), answered("drop", "gone")]
    assert said(book().reply(request(*dropped))) == ("say", "All stale names are gone.")


def test_a_group_is_no_pattern_within_unless() -> None:
    """``b.c`` excludes ``b.c`` and not ``bxc``."""
    kept = [*LISTED, {"role": "user", "content": "keep bxc"}]
    assert said(book().reply(request(*kept))) == ("drop", {"name": "b.c"})
    kept = [*LISTED, {"role": "user", "content": "keep b.c"}]
    assert said(book().reply(request(*kept))) == ("drop", {"name": "d"})


def test_only_the_last_result_of_a_tool_counts() -> None:
    again = [*LISTED, called("list", depth=2), answered("list", "d stale")]
    assert said(book().reply(request(*again))) == ("drop", {"name": "d"})


def test_a_text_that_looks_like_a_group_stays_as_it_is() -> None:
    odd = (called("list", depth=2), answered("list", "{name} stale"))
    assert said(book().reply(request(*odd))) == ("drop", {"name": "{name}"})


def test_a_group_that_did_not_take_part_is_empty() -> None:
    text = '[[rule]]\nwhy = "x"\nfind = "(?P<a>clean)|(?P<b>dirty)"\nunless = "no{b}pe"\n'
    assert said(book(text + 'say = "{a}/{b}"').reply(request())) == ("say", "clean/")


@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.3, 1.0]))
def test_the_same_context_seed_and_slip_give_the_same_reply(seed: int, slip: float) -> None:
    asked = request(*LISTED, slip=slip, seed=seed)
    assert book().reply(asked) == book().reply(asked)


def test_slips_come_as_often_as_the_rate_says() -> None:
    def slips(rate: float) -> int:
        replies = (
            book().reply(request(*LISTED, slip=rate, seed=seed_for_turn(5, turn)))
            for turn in range(400)
        )
        return sum(said(reply)[0] == "say" for reply in replies)

    assert slips(0.0) == 0
    assert slips(1.0) == 400
    assert 80 < slips(0.3) < 160


def test_it_is_called_a_stand_in_wherever_it_appears() -> None:
    reply = book().reply(request())
    assert reply.served_model == "rulebook:test (stand-in, no model)"
    assert book().describe()["stand_in"] == "rulebook:test"
    assert book().describe()["rules"] != book(RULES + "\n").describe()["rules"]


def test_a_context_that_no_rule_fits_is_a_models_failure() -> None:
    text = '[[rule]]\nwhy = "x"\nfind = "never"\nsay = "x"'
    with pytest.raises(ModelError, match="no rule of rulebook:test fits"):
        book(text).reply(request())


@pytest.mark.parametrize(
    "text",
    [
        "[[rule]",
        "rule = 1",
        '[[rule]]\nsay = "no why"',
        '[[rule]]\nwhy = "x"\nsay = "y"\nunlees = "typo"',
        '[[rule]]\nwhy = "x"\nsay = "y"\nfind = "(open"',
        '[[rule]]\nwhy = "x"\nsay = "y"\nunless = ["fine", "(open"]',
        '[[rule]]\nwhy = "x"\nsay = "y"\nslip = { shout = "z" }',
    ],
)
def test_a_rulebook_that_makes_no_sense_is_refused_when_it_is_opened(text: str) -> None:
    with pytest.raises(UsageError, match="rulebook:bad"):
        open_model("rulebook:bad", text)


def test_a_rulebook_without_its_text() -> None:
    with pytest.raises(UsageError, match="is not part of this run") as caught:
        open_model("rulebook:gone")
    assert "rulebook:@FILE" in caught.value.hint


@pytest.mark.parametrize("spec", ["", "gpt-4", "rulebook:", "openai", "local:llama", "openai:"])
def test_specs_that_name_no_model(spec: str) -> None:
    with pytest.raises(UsageError, match="names no model"):
        open_model(spec)
