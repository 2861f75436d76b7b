"""Regular expressions that operators write, in policies and permissions.

Whether one is accepted is part of what the cluster agrees on. It depends on the text and on Python's `re`, which
changes from one minor version of Python to the next: all nodes of a cluster run the same. It must not depend on the
moment, but Python's compiler recurses into groups and gives up where the stack of this moment ends; therefore their
depth is bounded before it is asked.

**No pattern stops a node.** Clients choose the names that patterns are asked about, and with ``(a+)+$`` a name can be
chosen for which Python's engine needs longer than anybody can wait, on every node and at each start. RabbitMQ's library
gives up after ten million steps and finds nothing. Here the steps are bounded before: a pattern that may need too many
is answered by `node.pattern_search`, which says the same in a time that is known; the few that this cannot answer are
refused.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import lru_cache

from node.pattern_search import (
    ENGINE_STEPS_AT_WORST,
    ENGINE_STEPS_MAX,
    TEXT_LENGTH_MAX,
    PathSearch,
    UnsearchableError,
    parsed,
    steps_of,
)

#: Groups within one another. The compiler needs up to three calls for each: a third of Python's stack.
GROUP_DEPTH_MAX = 100
#: Compiled patterns kept: every policy, and three per user and vhost in use.
CACHE_ENTRIES_MAX = 1024

#: What decides where groups begin and end: an escaped character, a class (but for its end), a comment, a parenthesis.
_TOKENS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*|\(\?#(?:\\.|[^\\)])*\)?|[()]", re.DOTALL)
#: Perhaps the flag ``x``. Under it there are comments in which parentheses mean nothing.
_VERBOSE = re.compile(r"\(\?[a-zA-Z]*x")


def _group_depth(pattern: str) -> int:
    """How deep groups are within one another; never less than it is, whatever is wrong with the pattern."""
    if _VERBOSE.search(pattern):
        return pattern.count("(")
    depth = deepest = 0
    for token in _TOKENS.finditer(pattern):
        if token[0] == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif token[0] == ")":
            depth -= 1
    return deepest


@lru_cache(maxsize=CACHE_ENTRIES_MAX)
def _compiled(pattern: str) -> Callable[[str], object] | str:
    """Says of a text whether the pattern is found in it, by what is true or not; or a text, why there is none."""
    if _group_depth(pattern) > GROUP_DEPTH_MAX:
        return f"more than {GROUP_DEPTH_MAX} groups within one another"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else in a later Python
            search = re.compile(pattern).search
            tree = parsed(pattern)
    except (re.error, OverflowError, ValueError) as error:  # the last two: numbers in braces that are too big
        return str(error)
    steps = steps_of(tree)
    if steps <= ENGINE_STEPS_MAX:
        return search
    try:
        return PathSearch(tree).is_found_in
    except UnsearchableError as error:
        if steps <= ENGINE_STEPS_AT_WORST:
            return search
        return f"its repetitions could take for ever, and with {error} there is no quicker way to look for it"


def pattern_problem(pattern: str) -> str:
    """Why a pattern is not accepted; empty if it is."""
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else ""


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern is found somewhere in ``text``. One that cannot be used is found nowhere, and none in what
    is too long for a name."""
    compiled = _compiled(pattern)
    return not isinstance(compiled, str) and len(text) <= TEXT_LENGTH_MAX and bool(compiled(text))
