"""How much is reachable from an object of ours: what a test of leaks compares.

Walks over instances of our own classes and the containers that they hold, and through bound methods and what functions
enclose. Not into classes, modules, loops, tasks and futures, and not into the world that a node is handed.
"""

from __future__ import annotations

import array
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_COUNTED = (dict, list, set, frozenset, deque, bytearray, array.array)


def reachable_sizes(
    roots: Iterable[object], packages: tuple[str, ...], is_counted: Callable[[str], bool]
) -> Counter[str]:
    """Elements by ``Class.attribute`` of the container (of all containers that lie in it, too), and instances by
    ``Class``. ``packages``: of the classes whose instances are looked into; ``is_counted``: of those names."""
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [("root", root) for root in roots]
    while waiting:
        name, found = waiting.pop()
        if id(found) in seen or not is_counted(name):
            continue
        seen.add(id(found))
        if isinstance(found, _COUNTED):
            sizes[name] += len(found)
        if isinstance(found, _CONTAINERS) and type(found).__module__.partition(".")[0] not in packages:
            items = (*found.keys(), *found.values()) if isinstance(found, dict) else tuple(found)
            waiting += ((name, item) for item in items)
        elif isinstance(found, types.MethodType):
            waiting.append((name, found.__self__))
        elif isinstance(found, types.FunctionType):
            waiting += ((name, cell) for cell in _enclosed(found))
        elif isinstance(found, partial):
            waiting += ((name, each) for each in (found.func, *found.args, *found.keywords.values()))
        elif type(found).__module__.partition(".")[0] in packages:
            owner = type(found).__name__
            sizes[owner] += 1
            if isinstance(found, _CONTAINERS):
                waiting += ((owner, item) for item in tuple(found))
            waiting += ((f"{owner}.{attribute}", value) for attribute, value in _attributes(found))
    return sizes


def _attributes(found: object) -> Iterator[tuple[str, Any]]:
    yield from getattr(found, "__dict__", {}).items()
    for kind in type(found).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for attribute in (slots,) if isinstance(slots, str) else slots:
            if hasattr(found, attribute):
                yield attribute, getattr(found, attribute)


def _enclosed(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not set yet
