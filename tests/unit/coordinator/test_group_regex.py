"""Topic patterns agree with Python's own on topic names, and none of them can hang the coordinator."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.regex import TopicPattern
from headrace.errors import ErrorCode, KafkaError

_NAMES = st.text(st.sampled_from("abAB01._-"), max_size=8)
_PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "A", r"\.", ".", "[ab]", "[^a]", "[a-b0]", r"\d", r"\w", r"\W", r"[\d._]", "^", "$"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2}", "{1,}", "*?", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(_PATTERNS, st.lists(_NAMES, min_size=1, max_size=5), st.booleans())
def test_it_matches_what_python_matches(text: str, names: list[str], fold: bool) -> None:
    text = f"(?i){text}" if fold else text
    pattern = TopicPattern(text)
    for name in names:
        assert pattern.matches(name) == bool(re.fullmatch(text, name)), (text, name)


@pytest.mark.parametrize(
    "text",
    ["(", "[", "a{2,1}", "*", r"(a)\1", "(?=a)", "(?!a)", "(?<=a)b", r"\bword", "(?i:a)b", "(a{99}){99}", "x" * 5000],
)
def test_what_cannot_be_matched_in_linear_time_is_refused(text: str) -> None:
    with pytest.raises(KafkaError) as caught:
        TopicPattern(text)
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


@pytest.mark.timeout(10)
@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", "(.*a){20}b", ".*.*.*.*.*.*b", "(a?){50}a{50}"])
def test_patterns_that_make_others_backtrack_are_quick(text: str) -> None:
    assert TopicPattern(text).matches("a" * 249) in (True, False)
