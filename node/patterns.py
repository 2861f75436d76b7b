"""Regular expressions that operators write, in policies and permissions.

Whether one is accepted is part of what the cluster agrees on, so it may depend on nothing but the text. Python's
compiler recurses into groups and gives up where the stack of this moment ends; therefore groups are counted before it
is asked. How long a match takes is the operator's business: a pattern like ``(a+)+$`` can take for ever, as in the
reference.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

#: Opening parentheses of a pattern, escaped ones too: even all within one another they need a fifth of Python's stack.
GROUPS_MAX = 100
#: Compiled patterns kept: every policy, and three per user and vhost in use.
CACHE_ENTRIES_MAX = 1024


@lru_cache(maxsize=CACHE_ENTRIES_MAX)
def _compiled(pattern: str) -> re.Pattern[str] | str:
    """The pattern, or why there is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else in a later Python
            return re.compile(pattern)
    except (re.error, OverflowError, ValueError) as error:  # the last two: numbers in braces that are too big
        return str(error)


def pattern_problem(pattern: str) -> str:
    """Why a pattern is not accepted; empty if it is."""
    if pattern.count("(") > GROUPS_MAX:
        return f"more than {GROUPS_MAX} groups"
    compiled = _compiled(pattern)
    return compiled if isinstance(compiled, str) else ""


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern is found somewhere in ``text``. One that cannot be used is found nowhere."""
    compiled = _compiled(pattern)
    return not isinstance(compiled, str) and compiled.search(text) is not None
