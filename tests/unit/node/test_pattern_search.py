"""Regular expressions whose repetitions Python's engine could try for ever: found or not, and soon."""

from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st

from node.pattern_search import (
    ENGINE_STEPS_MAX,
    TEXT_LENGTH_MAX,
    PathSearch,
    UnsearchableError,
    parsed,
    steps_of,
)
from node.patterns import is_found, pattern_problem
from tests.support.amounts import few_examples


def is_reached(pattern: str, text: str) -> bool:
    return PathSearch(parsed(pattern)).is_found_in(text)


# --- the same answers as Python's

CHARACTERS = st.sampled_from(
    [
        "a",
        "b",
        "A",
        r"\.",
        ".",
        "[ab]",
        "[^a]",
        "[a-c-]",
        r"\w",
        r"\W",
        r"\d",
        r"\s",
        "é",
        "K",
        "\n",
        "(?i:a)",
        "(?-i:b)",
    ]
)
POSITIONS = st.sampled_from(["^", "$", r"\b", r"\B", r"\A", r"\Z", "(?m:^)", "(?m:$)", ""])
REPETITIONS = st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "{1,3}", "*?", "+?", "??", "{1,2}?"])


def combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(parts, parts).map("".join),
        st.tuples(parts, parts).map(lambda both: f"(?:{both[0]}|{both[1]})"),
        st.tuples(parts, REPETITIONS).map(lambda both: f"({both[0]}){both[1]}"),
        st.tuples(st.sampled_from(["(?=", "(?!", "(?i:", "(?-i:", "(?s:", "(?m:", "(?a:"]), parts).map(
            lambda both: f"{both[0]}{both[1]})"
        ),
        st.tuples(st.sampled_from(["(?<=", "(?<!"]), CHARACTERS, CHARACTERS).map(
            lambda three: f"{three[0]}{three[1]}{three[2]})"
        ),
    )


PATTERNS = st.tuples(
    st.sampled_from(["", "", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?x) "]),
    st.recursive(st.one_of(CHARACTERS, POSITIONS), combined, max_leaves=8),
).map("".join)
TEXTS = st.text(alphabet="abAB.1 \néKk\u212a", max_size=8)


@pytest.mark.filterwarnings("ignore")  # of what may mean something else in a later Python
@few_examples(200, 5_000, PATTERNS, TEXTS)
def test_what_is_reached_is_what_python_finds(pattern: str, text: str) -> None:
    assert is_reached(pattern, text) == (re.search(pattern, text) is not None)


@pytest.mark.filterwarnings("ignore")
@few_examples(
    200, 5_000, st.text(alphabet="ab(|)*+?{}[]^$\\.1,!<=:ims", max_size=12), st.text(alphabet="ab1.\n", max_size=10)
)
def test_whatever_an_operator_writes_has_an_answer_and_it_is_pythons(pattern: str, text: str) -> None:
    if pattern_problem(pattern):
        assert not is_found(pattern, text)
        return
    answer = re.search(pattern, text) is not None
    assert is_found(pattern, text) == answer
    try:
        search = PathSearch(parsed(pattern))
    except UnsearchableError:
        return
    assert search.is_found_in(text) == answer


# --- in a time that is known

MADE_FOR_IT = "a" * (TEXT_LENGTH_MAX - 1) + "!"


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a+)+$",
        r"^(\w+\.?)+$",
        r"(a|aa)+$",
        r"^(?:a?){200}a{200}$",
        r".*a.*a.*a.*a.*b",
        r"^(?!amq\.)(a*)*$",
        r"^((a+)+)+(?<=ab)",
        r"^(?!(a+)+!)(a*)*",
    ],
)
def test_a_name_that_is_made_for_a_pattern_stops_nobody(pattern: str) -> None:
    """Python's engine would go through more ways than there are atoms."""
    assert pattern_problem(pattern) == ""
    assert not is_found(pattern, MADE_FOR_IT)


def test_what_they_are_meant_for_they_find() -> None:
    assert is_found(r"(a+)+$", "a" * TEXT_LENGTH_MAX)
    assert is_found(r"^(\w+\.?)+$", "orders.eu.high")
    assert is_found(r"^(?!amq\.)(\w+\.?)+$", "orders.eu.high")
    assert not is_found(r"^(?!amq\.)(\w+\.?)+$", "amq.orders")


@pytest.mark.parametrize(
    "pattern", ["", ".*", "^ha\\.", r"^(?!amq\.).*", "^(orders|bills)-.*-eu$", "a{1,200}b", "(?>a+)b"]
)
def test_everyday_patterns_are_pythons_business(pattern: str) -> None:
    assert steps_of(parsed(pattern)) <= ENGINE_STEPS_MAX


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(?:(a+)\.?)+\1$", "a reference to a group"),
        (r"(?:(a+)\.?)+(?(1)b|c)$", "a condition on a group"),
        (r"(?:(?>a+)|a+)+$", "an atomic group"),
        (r"(?:a++|a+)+$", "a possessive repetition"),
        (r"(?:a{1,100}){1,100}$", "so many of them"),
    ],
)
def test_what_could_take_for_ever_and_cannot_be_had_quicker_is_refused(pattern: str, reason: str) -> None:
    assert pattern_problem(pattern) == (
        f"its repetitions could take for ever, and with {reason} there is no quicker way to look for it"
    )
    assert not is_found(pattern, "aa")


def test_a_reference_behind_few_repetitions_is_no_danger() -> None:
    assert is_found(r"^(\w+)-(\w+)-\1.*$", "eu-orders-eu-1")
    assert not is_found(r"^(\w+)-(\w+)-\1.*$", "eu-orders-us-1")
