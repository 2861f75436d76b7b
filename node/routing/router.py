"""Which queues a message goes to.

A message enters at its exchange with its routing key and the keys of its ``CC`` and ``BCC`` headers. Bindings lead to
queues or to further exchanges, which route with the same keys; every exchange is visited once per message, so loops
end. An exchange that yields no destination hands the message to its alternate exchange, if it has one. Each queue gets
one copy, however many ways lead to it.

Cost. For a given topology the answer depends on (exchange, routing key) alone unless a headers exchange was visited or
the message has CC or BCC headers. Such answers are kept per vhost, so a publish usually costs one look-up
(`Router.cached`). Any change in the vhost empties its cache: changes are rare next to publishes, and an answer can
depend on bindings anywhere in the vhost. The indexes behind the cache are not rebuilt: they follow the topology
binding by binding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.errors import ChannelError
from node.routing.exchange_matchers import ExchangeMatcher, Headers, make_matcher
from node.routing.properties import headers_of
from node.topology.bindings import Destination
from node.topology.names import DEFAULT_EXCHANGE, missing_exchange
from node.topology.records import BindingRecord, ExchangeRecord, QueueRecord
from node.topology.topology import Topology, TopologyObserver

log = logging.getLogger(__name__)

#: Answers kept per vhost. At about 300 bytes each this is some 6 MB for a publisher with ever new routing keys.
ROUTE_CACHE_ENTRIES_MAX = 20_000
#: Both names of the headers with further routing keys contain this: a cheap test that spares most messages a decoding.
EXTRA_KEYS_MARK = b"CC"

#: The alternate exchange of an exchange, if it has one (a cluster lets policies name it).
AlternateExchange = Callable[[ExchangeRecord], str | None]
RouteCache = Mapping[tuple[str, str], tuple[QueueRecord, ...]]
_NOTHING_KNOWN: RouteCache = {}


def argued_alternate_exchange(exchange: ExchangeRecord) -> str | None:
    """The alternate exchange that the arguments of the exchange name."""
    alternate = exchange.arguments.get("alternate-exchange")
    return alternate if isinstance(alternate, str) else None


class Router(TopologyObserver):
    """Routes of one topology; follows its changes."""

    def __init__(self, topology: Topology, alternate_exchange: AlternateExchange = argued_alternate_exchange) -> None:
        self._topology = topology
        self._alternate_exchange = alternate_exchange
        #: Index of an exchange, made when a message first reaches it.
        self._matchers: dict[tuple[str, str], ExchangeMatcher] = {}
        self._caches: dict[str, dict[tuple[str, str], tuple[QueueRecord, ...]]] = {}
        #: Work of all answers so far that were not known (`ExchangeMatcher.looked_at`, and at each exchange the keys of
        #: CC and BCC headers): whoever asks for many in a turn of the loop is to look at it.
        self.looked_at = 0
        topology.observe(self)

    def cached(self, vhost: str) -> RouteCache:
        """Known answers for messages without CC and BCC headers: (exchange, routing key) -> queues.

        Filled by `route`, given up by changes of the vhost: good for this turn of the loop.
        """
        return self._caches.get(vhost, _NOTHING_KNOWN)

    def route(self, vhost: str, exchange: str, routing_key: str, properties: bytes) -> tuple[QueueRecord, ...]:
        """The queues for one message, each once.

        Raises `ChannelError` 404 for a missing exchange, 406 for a malformed CC or BCC header,
        `ConnectionFailure` 501 for a headers table that cannot be decoded.
        """
        keys = [routing_key]
        if EXTRA_KEYS_MARK in properties:
            keys += extra_routing_keys(headers_of(properties))
        if len(keys) == 1:
            known = self.cached(vhost).get((exchange, routing_key))
            if known is not None:
                return known
        queues, depends_on_headers = self._walk(vhost, exchange, keys, properties)
        if len(keys) == 1 and not depends_on_headers:
            # Only of a vhost that exists: whoever deletes it has it forgotten here, once.
            cache = self._caches.setdefault(vhost, {})
            if len(cache) >= ROUTE_CACHE_ENTRIES_MAX:
                cache.clear()
            cache[exchange, routing_key] = queues
        return queues

    def _walk(
        self, vhost: str, exchange: str, keys: Sequence[str], properties: bytes
    ) -> tuple[tuple[QueueRecord, ...], bool]:
        """The queues, and whether the answer depends on the headers."""
        first = self._topology.exchange(vhost, exchange)
        if first is None:
            raise missing_exchange(vhost, exchange)
        headers: Headers | None = None

        def decode_headers() -> Headers:
            nonlocal headers
            if headers is None:
                headers = headers_of(properties)
            return headers

        queues: dict[str, QueueRecord] = {}
        visited = {exchange}
        todo = [first]
        depends_on_headers = False
        while todo:
            current = todo.pop()
            depends_on_headers = depends_on_headers or current.type == "headers"
            for name in self._step(current, keys, decode_headers, queues):
                if name not in visited:
                    visited.add(name)
                    record = self._topology.exchange(vhost, name)
                    if record is not None:
                        todo.append(record)
        return tuple(queues.values()), depends_on_headers

    def _step(
        self,
        exchange: ExchangeRecord,
        keys: Sequence[str],
        headers: Callable[[], Headers],
        queues: dict[str, QueueRecord],
    ) -> list[str]:
        """Route at one exchange: add to ``queues``, return the exchanges to go to next."""
        vhost = exchange.vhost
        self.looked_at += len(keys) - 1
        if exchange.name == DEFAULT_EXCHANGE:
            destinations = [Destination("queue", key) for key in keys if self._topology.queue(vhost, key) is not None]
        else:
            matcher = self._matcher(exchange)
            destinations = list(matcher.match(keys, headers))
            self.looked_at += matcher.looked_at
        if not destinations:
            # The default exchange has no alternate, whatever a policy says of all exchanges.
            alternate = self._alternate_exchange(exchange) if exchange.name != DEFAULT_EXCHANGE else None
            return [alternate] if alternate is not None else []
        onward = []
        for kind, name in destinations:
            if kind == "exchange":
                onward.append(name)
            else:
                queue = self._topology.queue(vhost, name)
                if queue is not None:
                    queues[name] = queue
        self.looked_at += len(onward)
        return onward

    def _matcher(self, exchange: ExchangeRecord) -> ExchangeMatcher:
        """The index of an exchange. It is kept only when it has all bindings: half of them would lose messages."""
        matcher = self._matchers.get((exchange.vhost, exchange.name))
        if matcher is None:
            matcher = make_matcher(exchange.type)
            for binding in self._topology.bindings_from(exchange.vhost, exchange.name):
                matcher.add(binding)
            self._matchers[exchange.vhost, exchange.name] = matcher
        return matcher

    # --- following the topology ---

    def forget_routes(self, vhost: str) -> None:
        """Something else that routes depend on has changed in the vhost (a policy names another alternate exchange)."""
        self._caches.pop(vhost, None)

    def queue_added(self, queue: QueueRecord) -> None:
        self.forget_routes(queue.vhost)

    def queue_removed(self, queue: QueueRecord) -> None:
        self.forget_routes(queue.vhost)

    def exchange_added(self, exchange: ExchangeRecord) -> None:
        self.forget_routes(exchange.vhost)

    def exchange_removed(self, exchange: ExchangeRecord) -> None:
        self._matchers.pop((exchange.vhost, exchange.name), None)
        self.forget_routes(exchange.vhost)

    def binding_added(self, binding: BindingRecord) -> None:
        self._update(binding, lambda matcher: matcher.add(binding))

    def binding_removed(self, binding: BindingRecord) -> None:
        self._update(binding, lambda matcher: matcher.remove(binding))

    def _update(self, binding: BindingRecord, update: Callable[[ExchangeMatcher], None]) -> None:
        """Keep the index of an exchange up to date, if there is one.

        Only some nodes have it, but all must change the topology alike: if the index fails it is made anew.
        """
        key = (binding.vhost, binding.source)
        matcher = self._matchers.get(key)
        if matcher is not None:
            try:
                update(matcher)
            except Exception:
                log.exception("the index of exchange '%s' in vhost '%s' is made anew", binding.source, binding.vhost)
                del self._matchers[key]
        self.forget_routes(binding.vhost)

    def topology_restored(self) -> None:
        self._matchers.clear()
        self._caches.clear()

    def check_invariants(self) -> None:
        for vhost, cache in self._caches.items():
            assert len(cache) <= ROUTE_CACHE_ENTRIES_MAX, "the cache is bounded"
            for (exchange, key), queues in cache.items():
                fresh, depends_on_headers = self._walk(vhost, exchange, [key], b"\x00\x00")
                assert not depends_on_headers, "an answer that depends on headers must not be kept"
                assert set(_identities(fresh)) == set(_identities(queues)), "a change left an old answer behind"
        for vhost, name in self._matchers:
            assert self._topology.exchange(vhost, name) is not None, "an index goes with its exchange"


def _identities(queues: Sequence[QueueRecord]) -> list[tuple[str, int]]:
    """Names and lives of queues, for comparison."""
    return [(queue.name, queue.queue_id) for queue in queues]


def extra_routing_keys(headers: Mapping[str, Any]) -> list[str]:
    """Routing keys of the ``CC`` and ``BCC`` headers. Raises `ChannelError` 406 unless they are arrays of strings."""
    keys: list[str] = []
    for name in ("CC", "BCC"):
        value = headers.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise ChannelError(406, f"unsupported type of {name} header: expected an array of strings")
        keys += value
    return keys
