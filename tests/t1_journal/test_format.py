"""Canonical JSON against its oracle, and the escape for what RFC 8785 cannot hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from branchkit.journal.format import accumulate, canonical, escaped_canonical, parse, value_hash

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaf = st.none() | st.booleans() | numbers | text
plain = st.recursive(leaf, lambda x: st.lists(x, max_size=4) | st.dictionaries(text, x, max_size=4))

any_text = st.text(max_size=12)  # lone surrogates too
wild_leaf = leaf | any_text | st.integers() | st.floats()
wild_key = any_text | st.just("$json")
wild = st.recursive(
    wild_leaf, lambda x: st.lists(x, max_size=4) | st.dictionaries(wild_key, x, max_size=4)
)


def same(a: Any, b: Any) -> bool:
    """Equality in which NaN equals itself and 1 == 1.0, as JSON numbers do."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return (type(a) is type(b) and a == b) or ({type(a), type(b)} <= {int, float} and a == b)


@settings(max_examples=300)
@given(plain)
@example({"\ue000": 1, "\U00010000": 2})
@example([1.0, -0.0, 1e16, 1e21, 1e-6, 1e-7, 79.0, 123456789012345680000.0])
@example({"text": "3e4, 1.0} \U0001f600", "none": None})
def test_the_fast_path_writes_the_bytes_of_the_oracle(value: Any) -> None:
    """R6, M06."""
    assert canonical(value) == rfc8785.dumps(value)


@settings(max_examples=300)
@given(wild)
def test_what_json_cannot_hold_comes_back_as_it_was(value: Any) -> None:
    """Lone surrogates, NaN, infinities and large integers are never silently changed."""
    data = escaped_canonical(value)
    data.decode("utf-8")
    assert same(parse(data), value)


@pytest.mark.parametrize("value", [math.nan, 2**53, {"a": [None, math.inf]}, "\ud83d"])
def test_the_strict_form_refuses_what_rfc8785_forbids(value: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical(value)


@pytest.mark.parametrize("value", [b"bytes", {1: 2}, {1, 2}])
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        escaped_canonical(value)


def test_published_vectors_of_rfc8785() -> None:
    """R6: the sample of RFC 8785 section 3.2.2 and its sorting example of section 3.2.3."""
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": '\u20ac$\u000f\nA\'B"\\\\"/',
        "literals": [None, True, False],
    }
    assert canonical(value).decode() == (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    keys = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(parse(canonical(keys)).values()) == [2, 4, 6, 7, 1, 5, 3]


def test_an_accumulator_depends_on_order_and_on_every_item() -> None:
    a, b = value_hash("a"), value_hash("b")
    start = value_hash("")
    assert accumulate(accumulate(start, a), b) != accumulate(accumulate(start, b), a)
