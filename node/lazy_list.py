"""A list whose items are made when they are looked at, of others that are there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class LazyList(Sequence[_Made], Generic[_Item, _Made]):
    """``make`` of each of ``items``, which are copied now. They must not change; equal if made of equal items."""

    def __init__(self, items: Iterable[_Item], make: Callable[[_Item], _Made]) -> None:
        self._items = list(items)
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[_Made]:
        return map(self._make, self._items)

    def __getitem__(self, at: Any) -> Any:
        return [*map(self._make, self._items[at])] if isinstance(at, slice) else self._make(self._items[at])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyList) and (self._make, self._items) == (other._make, other._items)

    __hash__ = None  # type: ignore[assignment]
