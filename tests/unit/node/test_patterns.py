"""Which regular expressions of operators are accepted, and that the stack of the moment has no say in it."""

from __future__ import annotations

import pytest

from node.pattern_search import TEXT_LENGTH_MAX
from node.patterns import GROUP_DEPTH_MAX, is_found, pattern_problem


def nested(depth: int, opening: str = "(") -> str:
    return opening * depth + ")" * depth


@pytest.mark.parametrize(
    "pattern",
    [
        nested(GROUP_DEPTH_MAX),
        "|".join(f"^(a{number})$" for number in range(200)),
        nested(GROUP_DEPTH_MAX) * 3,
        r"\(" * 200,
        r"(\\)" * 200,
        "[(]" * 200,
        "[](]" * 200,
        "[^](]" * 200,
        r"[\](]" * 200,
        "(?#((()" * 200,
    ],
)
def test_groups_beside_one_another_and_parentheses_that_are_none_do_not_count(pattern: str) -> None:
    assert pattern_problem(pattern) == ""


@pytest.mark.parametrize(
    "pattern",
    [
        nested(GROUP_DEPTH_MAX + 1),
        nested(480),
        nested(480, "(?:a|"),
        r"[\]" + "]" + nested(480),
        r"\\" + nested(480),
        "(?#[)" + nested(480),
        "[]]" + nested(480),
        "(?x)" + "(#)\n" * 480 + ")" * 480,
        "(?is-x:(?ix:" + "(#)\n" * 480 + ")" * 480 + "))",
    ],
)
def test_a_pattern_with_groups_too_deep_is_refused_and_found_nowhere(pattern: str) -> None:
    """Compiling it would raise on one node, which has less of its stack left, and not on another."""
    assert pattern_problem(pattern) == "more than 100 groups within one another"
    assert not is_found(pattern, "a")


def test_the_deepest_patterns_are_compiled_on_most_of_a_stack() -> None:
    pattern = "a" + nested(GROUP_DEPTH_MAX, "(?>b|")

    def found_below(calls: int) -> bool:
        return is_found(pattern, "ab") if calls == 0 else found_below(calls - 1)

    assert found_below(500)


def test_nothing_is_found_in_what_is_too_long_for_a_name() -> None:
    """How long a search takes is bounded for names."""
    assert is_found("a.*", "a" * TEXT_LENGTH_MAX)
    assert not is_found("a.*", "a" * (TEXT_LENGTH_MAX + 1))
    assert not is_found("(a+)+", "a" * (TEXT_LENGTH_MAX + 1))


@pytest.mark.parametrize(
    "pattern", ["(", ")", ")" * 9 + "(" * 9, "[", "[]", "[^]", "a\\", "[a\\", "(?#", "(?", "a{" + "9" * 5000 + "}"]
)
def test_what_is_no_regular_expression_is_refused_and_found_nowhere(pattern: str) -> None:
    assert pattern_problem(pattern)
    assert not is_found(pattern, "a")
