"""One index per exchange, by its type: which destinations match a routing key (and headers)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from node.routing.topic_trie import TopicTrie
from node.topology.bindings import Destination
from node.topology.records import BindingRecord

Headers = Mapping[str, Any]


class ExchangeMatcher(Protocol):
    """Index of the bindings of one exchange, kept up to date binding by binding."""

    def add(self, binding: BindingRecord) -> None: ...

    def remove(self, binding: BindingRecord) -> None: ...

    def match(self, routing_keys: Sequence[str], headers: Callable[[], Headers]) -> Iterable[Destination]:
        """Destinations for a message, each once. ``headers`` decodes the headers table when called."""

    @property
    def looked_at(self) -> int:
        """What the last match has compared: bindings, or words of their keys and of the routing keys.

        Nothing where a routing key is only looked up, or none is needed: whoever asks counts the keys.
        """


def _destination(binding: BindingRecord) -> Destination:
    return Destination(binding.destination_kind, binding.destination)


class _CountedDestinations:
    """A set of destinations in which one may stand several times (bindings that differ in arguments)."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[Destination, int] = {}

    def add(self, destination: Destination) -> None:
        self.counts[destination] = self.counts.get(destination, 0) + 1

    def remove(self, destination: Destination) -> None:
        self.counts[destination] -= 1
        if not self.counts[destination]:
            del self.counts[destination]


class DirectMatcher:
    """Binding key equal to a routing key."""

    __slots__ = ("_by_key",)
    looked_at = 0

    def __init__(self) -> None:
        self._by_key: dict[str, _CountedDestinations] = {}

    def add(self, binding: BindingRecord) -> None:
        self._by_key.setdefault(binding.routing_key, _CountedDestinations()).add(_destination(binding))

    def remove(self, binding: BindingRecord) -> None:
        group = self._by_key[binding.routing_key]
        group.remove(_destination(binding))
        if not group.counts:
            del self._by_key[binding.routing_key]

    def match(self, routing_keys: Sequence[str], headers: Callable[[], Headers]) -> Iterable[Destination]:
        found: dict[Destination, None] = {}
        for key in dict.fromkeys(routing_keys):  # a message may name one thousands of times, and it many queues
            group = self._by_key.get(key)
            if group is not None:
                found.update(dict.fromkeys(group.counts))
        return found


class FanoutMatcher:
    """Every binding."""

    __slots__ = ("_destinations",)
    looked_at = 0

    def __init__(self) -> None:
        self._destinations = _CountedDestinations()

    def add(self, binding: BindingRecord) -> None:
        self._destinations.add(_destination(binding))

    def remove(self, binding: BindingRecord) -> None:
        self._destinations.remove(_destination(binding))

    def match(self, routing_keys: Sequence[str], headers: Callable[[], Headers]) -> Iterable[Destination]:
        return list(self._destinations.counts)


class TopicMatcher:
    """Binding key pattern matches a routing key (`node.routing.topic_trie`)."""

    __slots__ = ("_trie",)

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def add(self, binding: BindingRecord) -> None:
        self._trie.add(binding.routing_key, _destination(binding))

    def remove(self, binding: BindingRecord) -> None:
        self._trie.remove(binding.routing_key, _destination(binding))

    def match(self, routing_keys: Sequence[str], headers: Callable[[], Headers]) -> Iterable[Destination]:
        return sorted(self._trie.match(*routing_keys))

    @property
    def looked_at(self) -> int:
        return self._trie.looked_at


class HeadersMatcher:
    """Binding arguments compared with the headers of the message."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        #: By their identity: records that differ in the type of an argument only (1, true) are equal, and two bindings.
        self._bindings: dict[int, BindingRecord] = {}

    def add(self, binding: BindingRecord) -> None:
        self._bindings[id(binding)] = binding

    def remove(self, binding: BindingRecord) -> None:
        del self._bindings[id(binding)]

    def match(self, routing_keys: Sequence[str], headers: Callable[[], Headers]) -> Iterable[Destination]:
        if not self._bindings:
            return ()
        table = headers()
        matching = (each for each in self._bindings.values() if headers_match(each.arguments, table))
        return dict.fromkeys(map(_destination, matching))

    @property
    def looked_at(self) -> int:
        return len(self._bindings)


def headers_match(arguments: Headers, headers: Headers) -> bool:
    """Whether a binding of a headers exchange takes a message (reference section 5, point 5).

    ``x-match`` all (the default) or any; keys that begin with ``x-`` count only with all-with-x and any-with-x. A void
    argument asks for presence only. With nothing to compare, all matches every message and any none.
    """
    kind = arguments.get("x-match", "all")
    with_x = kind in ("all-with-x", "any-with-x")
    conditions = (
        key in headers and (value is None or _is_same(value, headers[key]))
        for key, value in arguments.items()
        if key != "x-match" and (with_x or not key.startswith("x-"))
    )
    return all(conditions) if kind in ("all", "all-with-x") else any(conditions)


def _is_same(argument: object, header: object) -> bool:
    """Numbers of all types are compared; true is none of them. A string is the same as its bytes, which many clients
    send as a field of another type."""
    if isinstance(argument, str) and isinstance(header, bytes):
        return argument.encode() == header
    if isinstance(argument, bytes) and isinstance(header, str):
        return argument == header.encode()
    return argument == header and isinstance(argument, bool) == isinstance(header, bool)


def make_matcher(exchange_type: str) -> ExchangeMatcher:
    """An empty index for an exchange type of `node.topology.names.EXCHANGE_TYPES`."""
    match exchange_type:
        case "direct":
            return DirectMatcher()
        case "fanout":
            return FanoutMatcher()
        case "topic":
            return TopicMatcher()
        case "headers":
            return HeadersMatcher()
    raise AssertionError(f"the topology admits no exchange type {exchange_type!r}")
