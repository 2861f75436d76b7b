"""Which mistakes are made of a piece of code, and which are not."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.mutation.mutator import Mutant, mutants_of, sample
from tests.mutation.trial import difference


def mutated(code: str) -> set[str]:
    """What stands in place of the code of a function, for each mutant: the changed line."""
    source = "def f(self):\n" + "".join(f"    {line}\n" for line in dedent(code).strip().splitlines())
    found = set()
    for mutant in mutants_of("m.py", source):
        ast.parse(mutant.applied(source.encode()))
        found.add(difference(mutant, source.encode()).partition("  ->  ")[2])
    return found


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = a < b", {"x = (a <= b)", "x = (a >= b)"}),
        ("x = a == b", {"x = (a != b)"}),
        ("x = a is None", {"x = (a is not None)"}),
        ("x = a in b", {"x = (a not in b)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = bool(a)"}),
        ("x = a + 1", {"x = (a)", "x = a + 2"}),
        ("x = a - b", {"x = (a + b)"}),
        ("x = True", {"x = False"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = b if a else c", {"x = (c if a else b)"}),
        ("return a", {"return None"}),
        ("x = g(a, b)", {"x = g(b, a)"}),
        ("g(a)", {"None"}),
        ("self.x = a", {"pass"}),
        ("self.x += a", {"pass"}),
        ("del self.x[a]", {"pass"}),
        ("if a:\n    g = b", {"if True:", "if False:"}),
        ("while a:\n    break", {"while False:", "continue"}),
    ],
)
def test_a_mistake_is_one_replacement(code: str, expected: set[str]) -> None:
    assert mutated(code) == expected


@pytest.mark.parametrize(
    "code",
    [
        '"""Says 1 < 2."""',
        "assert a < b, f(1)",
        "x: Map[1, 2] = a",
        "logger.warning('so many: %d', 1)",
        "self._log.info(g(a, b))",
        "raise Wrong(1, a < b)",
        "x = f'{a < b} and {not c}'",
        "x = g(a, b.c)",  # of different forms: the type checker's
        "def check_invariants(self):\n    assert_that(1 < 2)",
        "def check_together(a, b):\n    assert_that(a < b)",
        "def __repr__(self):\n    return a + 1",
        "x = isinstance(a, b)",
        "x = y",  # a local name that is missing is noticed by whoever runs it
        "return None",
    ],
)
def test_what_says_nothing_is_left_alone(code: str) -> None:
    assert mutated(code) == set()


def test_bodies_of_protocols_are_left_alone() -> None:
    assert mutants_of("m.py", "class P(Protocol[T]):\n    def f(self, x=1):\n        return 2\n") == []


@pytest.mark.parametrize(("said", "mistaken"), [("True", "False"), ("False", "True")])
def test_a_truth_value_is_mistaken_for_the_other_one_and_not_for_none(said: str, mistaken: str) -> None:
    """Nobody but the type checker can tell None from False."""
    mutants = mutants_of("m.py", f"def f() -> bool:\n    return {said}\n")
    assert {mutant.after for mutant in mutants} == {mistaken}


def test_a_function_within_another_has_its_own_kind_of_result() -> None:
    source = "def f() -> bool:\n    def g() -> int | bool:\n        return True\n    return g() > a\n"
    assert {"None", "False"} <= {mutant.after for mutant in mutants_of("m.py", source) if mutant.line == 3}


def test_an_assertion_has_a_place_in_the_draw_but_is_never_tried() -> None:
    """So a rule about what is left alone does not change which others are drawn."""
    lines = [f"x = {number}" for number in range(100)]
    lines[50] = "x = zip(a(), b(), said=True)"
    mutants = mutants_of("m.py", "\n".join(lines))
    drawn = [mutant.line for mutant in sample(mutants, 100, 1, "p")]
    lines[50] = "x = zip(a(), b(), strict=True)"
    mutants = mutants_of("m.py", "\n".join(lines))
    assert [mutant.line for mutant in sample(mutants, 100, 1, "p")] == [line for line in drawn if line != 51]
    assert len(sample(mutants, 99, 1, "p")) == 99


def test_the_rest_of_the_text_stays() -> None:
    source = "def f(a, b):\n    # Grüße\n    return (a  <  b, 'ß')  # why\n"
    (mutant,) = [each for each in mutants_of("m.py", source) if each.after == "(a <= b)"]
    assert mutant.applied(source.encode()).decode() == source.replace("a  <  b", "(a <= b)")


def test_a_mutant_knows_where_it_is() -> None:
    source = "class C:\n    x = 1\n\n    def f(self, a):\n        if a:\n            g()\n"
    by_after = {mutant.after: mutant for mutant in mutants_of("p/m.py", source)}
    constant, call = by_after["2"], by_after["None"]
    assert (constant.function, constant.line, constant.is_in_function) == ("C", 2, False)
    assert (call.function, call.line, call.is_in_function) == ("C.f", 6, True)
    assert by_after["True"].line == 5


def many() -> list[Mutant]:
    return mutants_of("m.py", "def f(a):\n" + "".join(f"    x = a < {number}\n" for number in range(2, 40)))


def test_a_greater_sample_adds_to_a_smaller_one_and_takes_a_line_once() -> None:
    few, more = sample(many(), 10, 1, "p"), sample(many(), 30, 1, "p")
    assert len({mutant.line for mutant in more}) == len(more) == 30
    assert [each.line for each in more[:10]] == [each.line for each in few]


def test_the_seed_and_the_package_decide_the_sample() -> None:
    lines = [[each.line for each in sample(many(), 20, seed, name)] for seed, name in ((1, "p"), (2, "p"), (1, "q"))]
    assert lines[0] == [each.line for each in sample(many(), 20, 1, "p")]
    assert lines[0] != lines[1]
    assert lines[0] != lines[2]
