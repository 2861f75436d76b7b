"""Regular expressions that operators write, in policies and permissions.

Whether one is accepted is part of what the cluster agrees on. It depends on the text and on Python's `re`, which
changes from one minor version of Python to the next: all nodes of a cluster run the same. It must not depend on the
moment, but Python's compiler recurses into groups and gives up where the stack of this moment ends; therefore their
depth is bounded before it is asked. How long a match takes is the operator's business: a pattern like ``(a+)+$`` can
take for ever with a name that was chosen for it, where RabbitMQ's library gives up after ten million steps and finds
nothing. Time is no limit that all nodes would agree on, and Python's engine counts no steps.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

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
def _compiled(pattern: str) -> re.Pattern[str] | str:
    """The pattern, or why there is none."""
    if _group_depth(pattern) > GROUP_DEPTH_MAX:
        return f"more than {GROUP_DEPTH_MAX} groups within one another"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else in a later Python
            return re.compile(pattern)
    except (re.error, OverflowError, ValueError) as error:  # the last two: numbers in braces that are too big
        return str(error)


def pattern_problem(pattern: str) -> str:
    """Why a pattern is not accepted; empty if it is."""
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else ""


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern is found somewhere in ``text``. One that cannot be used is found nowhere."""
    compiled = _compiled(pattern)
    return not isinstance(compiled, str) and compiled.search(text) is not None
