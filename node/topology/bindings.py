"""The stored bindings of one vhost.

The identity of a binding is (source, kind, destination, key, arguments): two bindings that differ only in arguments are
two. Each is found by its source, as the router and an auto-delete exchange ask, and by its destination, which takes it
along when it goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from node.topology.commands import Bind, DestinationKind, Unbind
from node.topology.records import BindingRecord


class Destination(NamedTuple):
    """Where a binding leads, inside one vhost."""

    kind: DestinationKind
    name: str


_Identity = tuple[str, DestinationKind, str, str, object]


class Bindings:
    """A set with two indexes."""

    __slots__ = ("_by_destination", "_by_source")

    def __init__(self) -> None:
        #: Every binding stands in both. No empty inner dict is kept.
        self._by_source: dict[str, dict[_Identity, BindingRecord]] = {}
        self._by_destination: dict[Destination, dict[_Identity, BindingRecord]] = {}

    def __iter__(self) -> Iterator[BindingRecord]:
        for group in self._by_source.values():
            yield from group.values()

    def some(self, count: int) -> list[BindingRecord]:
        """The first so many."""
        return list(islice(self, count))

    def find(self, binding: Bind | Unbind | BindingRecord) -> BindingRecord | None:
        """The stored binding with the identity of ``binding``."""
        return self._by_source.get(binding.source, {}).get(_identity(binding))

    def from_source(self, source: str) -> list[BindingRecord]:
        return list(self._by_source.get(source, {}).values())

    def has_source(self, source: str) -> bool:
        """Whether any binding has this exchange as source."""
        return source in self._by_source

    def to(self, kind: DestinationKind, name: str) -> list[BindingRecord]:
        return list(self._by_destination.get(Destination(kind, name), {}).values())

    def add(self, binding: BindingRecord) -> None:
        identity = _identity(binding)
        self._by_source.setdefault(binding.source, {})[identity] = binding
        self._by_destination.setdefault(_destination(binding), {})[identity] = binding

    def remove(self, binding: BindingRecord) -> None:
        identity = _identity(binding)
        _remove_from_group(self._by_source, binding.source, identity)
        _remove_from_group(self._by_destination, _destination(binding), identity)

    def check_invariants(self) -> None:
        from_sources = {i: b for group in self._by_source.values() for i, b in group.items()}
        from_destinations = {i: b for group in self._by_destination.values() for i, b in group.items()}
        assert from_sources == from_destinations, "both indexes hold the same bindings"
        assert all(self._by_source.values()), "an empty group would hide that an exchange is unused"


def _destination(binding: BindingRecord) -> Destination:
    return Destination(binding.destination_kind, binding.destination)


def _remove_from_group(groups: dict[Any, dict[_Identity, BindingRecord]], key: object, identity: _Identity) -> None:
    group = groups[key]
    del group[identity]
    if not group:
        del groups[key]


def _identity(binding: Bind | Unbind | BindingRecord) -> _Identity:
    return (
        binding.source,
        binding.destination_kind,
        binding.destination,
        binding.routing_key,
        _canonical(binding.arguments) if binding.arguments else (),
    )


def _canonical(value: Any) -> object:
    """A hashable twin of an argument value. The type is part of it: true, 1 and 1.0 are three values.

    All that is not a number is one value, or whoever binds with it could never unbind.
    """
    if isinstance(value, Mapping):
        return tuple((key, _canonical(value[key])) for key in sorted(value))
    if isinstance(value, list | tuple):
        return ("list", *map(_canonical, value))
    if isinstance(value, float) and math.isnan(value):
        return ("float", None)
    return (type(value).__name__, value)
