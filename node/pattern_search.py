"""Whether a regular expression is found in a text, in a time that is known before.

Python's engine goes back and tries another way whenever it fails, as Perl's does. For ``(a+)+$`` there are 2^n ways
through n times ``a``, and it tries them all before it says no; meanwhile the node stands still, in practice for ever.
How many ways there are is written in the pattern, so there is a bound for the cost of asking that engine (`steps_of`).
Where it is too high the question is answered by `PathSearch`, which does not go back: it keeps the set of places in the
pattern that can be reached with what was read so far (Thompson, "Regular Expression Search Algorithm", CACM 11 (6),
1968). That works because only one thing is asked here, whether there is a match: which of several is taken, and what
its groups hold, is nobody's business, and lazy and greedy repetitions are the same.

**What is read.** Both work on the tree that Python's own parser makes, and leave the smallest parts, a character or a
position (``$``, ``\\b``), to Python's engine. So they mean what it means, in every mode. The
parser and its tree are not documented: `tests/unit/node/test_pattern_search.py` compares the answers.

**Assertions** (``(?!amq\\.)``) are searches of their own, each at most once at each position.

**What it cannot do**: references to groups, conditions on them, atomic groups and possessive repetitions, which depend
on which match is taken. `UnsearchableError` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any, TypeVar, cast

_T = TypeVar("_T")

#: Characters of the longest text that anybody may ask about: a name of AMQP has as many bytes.
TEXT_LENGTH_MAX = 255
#: Steps of Python's engine for one question, each of which takes some nanoseconds.
ENGINE_STEPS_MAX = 1_000_000
#: The same for what only that engine can do: some tenths of a second, if a name is made for it.
ENGINE_STEPS_AT_WORST = 100_000_000
#: Steps of a `PathSearch` for one question: about a second for a pattern and a name that are made for it.
SEARCH_STEPS_MAX = 2_000_000

_LAZY_OR_GREEDY = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_POSSESSIVE = _constants.POSSESSIVE_REPEAT
_CHARACTERS = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY)
_ASSERTIONS = (_constants.ASSERT, _constants.ASSERT_NOT)
_STARTS = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)


class UnsearchableError(Exception):
    """The pattern has something that `PathSearch` does not do, or is too big for it. Says what."""


def parsed(pattern: str) -> Any:
    """The tree of a pattern; raises what `re.compile` raises."""
    return _parser.parse(pattern)


#: A function that yields calls of itself instead of making them: groups may be deeper than the stack of the moment.
_Steps = Generator[Any, Any, _T]


def _done(first: _Steps[_T]) -> _T:
    """What it returns."""
    calls: list[_Steps[Any]] = [first]
    result: Any = None
    while calls:
        try:
            calls.append(calls[-1].send(result))
            result = None
        except StopIteration as returned:
            calls.pop()
            result = returned.value
    return cast(_T, result)


# --- the cost of going back ---

#: Ways through a part of a pattern, from one position, and steps to try them all.
_Cost = tuple[int, int]


def steps_of(tree: Any) -> int:
    """Steps of Python's engine, at most, until it knows whether the pattern is found in a text; a number above
    `ENGINE_STEPS_AT_WORST` stands for itself and all above it."""
    _, steps = _done(_cost(tree))
    items = tree.data
    is_anchored = bool(items) and items[0][0] is _constants.AT and items[0][1] in _STARTS
    if is_anchored and not tree.state.flags & _constants.SRE_FLAG_MULTILINE:
        return _bounded(TEXT_LENGTH_MAX + steps)
    return _bounded((TEXT_LENGTH_MAX + 1) * steps)


def _bounded(number: int) -> int:
    return min(number, ENGINE_STEPS_AT_WORST + 1)


def _cost(tree: Any) -> _Steps[_Cost]:
    """Of these items one after the other."""
    ways, steps = 1, 0
    for kind, detail in tree.data:
        costs: list[_Cost] = []
        for part in _parts(kind, detail):
            cost = yield _cost(part)
            costs.append(cost)
        more_ways, more_steps = _cost_of_item(kind, detail, costs)
        steps = _bounded(steps + ways * more_steps)
        ways = _bounded(ways * more_ways)
    return ways, steps


def _parts(kind: Any, detail: Any) -> Any:
    """What is within an item."""
    if kind is _constants.BRANCH or kind in _ASSERTIONS:
        return detail[1] if kind is _constants.BRANCH else detail[1:]
    if kind is _constants.SUBPATTERN or kind in _LAZY_OR_GREEDY or kind is _POSSESSIVE:
        return detail[-1:]
    if kind is _constants.GROUPREF_EXISTS:
        return [branch for branch in detail[1:] if branch is not None]
    return [detail] if kind is _constants.ATOMIC_GROUP else []


def _cost_of_item(kind: Any, detail: Any, parts: Sequence[_Cost]) -> _Cost:
    """``parts``: the costs of what is within it."""
    if kind in _LAZY_OR_GREEDY:
        return _cost_of_repetition(detail[0], detail[1], *parts[0])
    if kind is _POSSESSIVE:
        return 1, _cost_of_repetition(detail[0], detail[1], *parts[0])[1]
    if kind is _constants.GROUPREF:
        return 1, TEXT_LENGTH_MAX
    ways, steps = sum(ways for ways, _ in parts), 1 + sum(steps for _, steps in parts)
    is_one_way = not parts or kind is _constants.ATOMIC_GROUP or kind in _ASSERTIONS
    return (1 if is_one_way else ways + (kind is _constants.GROUPREF_EXISTS)), steps


def _cost_of_repetition(least: int, most: int, ways_of_body: int, steps_of_body: int) -> _Cost:
    ways, steps, reaching = 0, 1, 1
    for times in range(min(most, TEXT_LENGTH_MAX + 1) + 1):
        if times >= least:
            ways = _bounded(ways + reaching)
        steps = _bounded(steps + reaching * max(steps_of_body, 1))
        reaching = _bounded(reaching * ways_of_body)
    return max(ways, 1), steps


# --- the search that does not go back ---

#: Whether something is so at a position of a text.
Test = Callable[[str, int], bool]
#: Modes that groups switch on and off, from the outermost to the innermost.
_Scopes = tuple[tuple[int, int], ...]


class _Place:
    """Where one can be in a pattern. It is left in one of three ways: by a character that passes ``test``, without one
    where ``test`` holds, or, if there is none, at once."""

    __slots__ = ("next", "takes", "test")

    def __init__(self, following: Sequence[_Place] = (), test: Test | None = None, *, takes: bool = False) -> None:
        self.next = list(following)
        self.test = test
        self.takes = takes


class PathSearch:
    """A pattern, ready for any number of questions."""

    def __init__(self, tree: Any) -> None:
        """Raises `UnsearchableError`."""
        #: So many may one question take.
        self._steps = 0
        self._end = _Place()
        self._first = _done(self._built(tree, self._end, ()))
        #: Of what was asserted about the present text.
        self._asserted: dict[tuple[Test, int], bool] = {}

    def is_found_in(self, text: str) -> bool:
        """``text`` has `TEXT_LENGTH_MAX` characters at most."""
        assert len(text) <= TEXT_LENGTH_MAX, "the cost was computed for names"
        self._asserted.clear()
        return self._reaches(self._first, text, range(len(text) + 1))

    def _reaches(self, first: _Place, text: str, starts: range) -> bool:
        """Can one come from ``first``, at one of these positions, to the end of the pattern?"""
        waiting: dict[_Place, None] = {}
        for position in range(starts.start, len(text) + 1):
            if position in starts:
                waiting[first] = None
            if not waiting:
                return False
            reached = self._reached(waiting, text, position)
            if self._end in reached:
                return True
            waiting = {}
            if position < len(text):
                for place in reached:
                    if place.takes and place.test is not None and place.test(text, position):
                        waiting.update(dict.fromkeys(place.next))
        return False

    @staticmethod
    def _reached(places: Iterable[_Place], text: str, position: int) -> dict[_Place, None]:
        """These, and where one comes from them without a character."""
        reached = dict.fromkeys(places)
        stack = list(reached)
        while stack:
            place = stack.pop()
            if place.takes or (place.test is not None and not place.test(text, position)):
                continue
            for following in place.next:
                if following not in reached:
                    reached[following] = None
                    stack.append(following)
        return reached

    # --- building, from the end to the beginning ---

    def _built(self, tree: Any, following: _Place, scopes: _Scopes, *, is_asserted: bool = False) -> _Steps[_Place]:
        """The place before these items. ``scopes``: what groups around them switch on and off."""
        for kind, detail in reversed(tree.data):
            if kind in _LAZY_OR_GREEDY:
                following = yield self._repetition(detail, following, scopes, is_asserted=is_asserted)
            elif kind is _constants.SUBPATTERN:
                _, switched_on, switched_off, body = detail
                inner = (*scopes, (switched_on, switched_off))
                following = yield self._built(body, following, inner, is_asserted=is_asserted)
            elif kind is _constants.BRANCH:
                place = self._place(is_asserted=is_asserted)
                for branch in detail[1]:
                    place.next.append((yield self._built(branch, following, scopes, is_asserted=is_asserted)))
                following = place
            elif kind in _ASSERTIONS:
                direction, body = detail
                first = yield self._built(body, self._end, scopes, is_asserted=True)
                width = body.getwidth()[0] if direction < 0 else 0
                test = self._assertion(first, width, is_wanted=kind is _constants.ASSERT)
                following = self._place([following], test, is_asserted=is_asserted)
            elif kind in _CHARACTERS or kind is _constants.AT:
                test, takes = _part(tree, (kind, detail), scopes), kind in _CHARACTERS
                following = self._place([following], test, takes=takes, is_asserted=is_asserted)
            elif kind is _constants.FAILURE:
                following = self._place(is_asserted=is_asserted)
            else:
                raise UnsearchableError(_UNSEARCHABLE.get(kind, str(kind).lower()))
        return following

    def _repetition(self, detail: Any, following: _Place, scopes: _Scopes, *, is_asserted: bool) -> _Steps[_Place]:
        least, most, body = detail
        first = following
        if most > TEXT_LENGTH_MAX:  # more than there are characters: as often as one likes
            first = self._place([following], is_asserted=is_asserted)
            first.next.append((yield self._built(body, first, scopes, is_asserted=is_asserted)))
        else:
            for _ in range(most - least):
                again = yield self._built(body, first, scopes, is_asserted=is_asserted)
                first = self._place([again, following], is_asserted=is_asserted)
        for _ in range(min(least, TEXT_LENGTH_MAX + 1)):
            first = yield self._built(body, first, scopes, is_asserted=is_asserted)
        return first

    def _place(
        self, following: Sequence[_Place] = (), test: Test | None = None, *, takes: bool = False, is_asserted: bool
    ) -> _Place:
        """Each is passed once at each position, and once more from each position at which something is asserted."""
        self._steps += (TEXT_LENGTH_MAX + 1) ** (2 if is_asserted else 1)
        if self._steps > SEARCH_STEPS_MAX:
            raise UnsearchableError("so many of them")
        return _Place(following, test, takes=takes)

    def _assertion(self, first: _Place, width: int, *, is_wanted: bool) -> Test:
        """``width``: of what is looked at before the position."""

        def holds(text: str, position: int) -> bool:
            known = self._asserted.get((holds, position))
            if known is None:
                start = position - width
                known = (start >= 0 and self._reaches(first, text, range(start, start + 1))) is is_wanted
                self._asserted[holds, position] = known
            return known

        return holds


_UNSEARCHABLE = {
    _constants.GROUPREF: "a reference to a group",
    _constants.GROUPREF_EXISTS: "a condition on a group",
    _constants.ATOMIC_GROUP: "an atomic group",
    _POSSESSIVE: "a possessive repetition",
}


def _part(tree: Any, item: Any, scopes: _Scopes) -> Test:
    """Python's own word on one character, or on a position."""
    part = _parser.SubPattern(tree.state, [item])
    for switched_on, switched_off in reversed(scopes):
        part = _parser.SubPattern(tree.state, [(_constants.SUBPATTERN, (None, switched_on, switched_off, part))])
    match = _compiler.compile(part).match
    return lambda text, position: match(text, position) is not None
