"""Routing through every kind of exchange, alternate exchanges, loops, CC headers, and the cache."""

from __future__ import annotations

from typing import Any

import pytest

from node.errors import ChannelError
from node.routing.exchange_matchers import DirectMatcher, headers_match
from node.routing.router import ROUTE_CACHE_ENTRIES_MAX, Router
from node.topology.commands import Bind, DeclareExchange, DeclareQueue, DeleteExchange, DeleteQueue, Unbind
from node.topology.records import BindingRecord
from node.topology.topology import Topology
from tests.support.local_catalogue import LocalCatalogue
from tests.support.messages import encode_headers

NONE = b"\x00\x00"


class Bench:
    """A router over a topology; routes are named by their queues, sorted."""

    def __init__(self) -> None:
        self.catalogue = LocalCatalogue()
        self.router = Router(self.catalogue.topology)

    def queues(self, *names: str) -> None:
        for name in names:
            self.catalogue.apply(DeclareQueue("/", name))

    def exchange(self, name: str, kind: str, **arguments: Any) -> None:
        plain = {key.replace("_", "-"): value for key, value in arguments.items()}
        self.catalogue.apply(DeclareExchange("/", name, kind, arguments=plain))

    def bind(self, source: str, queue: str, key: str = "", arguments: dict[str, Any] | None = None) -> None:
        self.catalogue.apply(Bind("/", source, queue, "queue", key, arguments or {}))

    def bind_exchange(self, source: str, destination: str, key: str = "") -> None:
        self.catalogue.apply(Bind("/", source, destination, "exchange", key))

    def route(self, exchange: str, key: str = "", properties: bytes = NONE) -> list[str]:
        route = self.router.route("/", exchange, key, properties)
        self.router.check_invariants()
        names = sorted(queue.name for queue in route)
        assert len(set(names)) == len(names), "each queue once"
        return names


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_default_exchange_leads_to_the_queue_of_that_name(bench: Bench) -> None:
    bench.queues("q")
    assert bench.route("", "q") == ["q"]
    assert bench.route("", "other") == []


def test_a_direct_exchange_wants_the_very_key(bench: Bench) -> None:
    bench.queues("a", "b")
    bench.bind("amq.direct", "a", "k")
    bench.bind("amq.direct", "b", "k")
    bench.bind("amq.direct", "b", "k", {"again": 1})
    assert bench.route("amq.direct", "k") == ["a", "b"]
    assert bench.route("amq.direct", "K") == []
    bench.catalogue.apply(Unbind("/", "amq.direct", "b", "queue", "k"))
    assert bench.route("amq.direct", "k") == ["a", "b"], "the binding with arguments is still there"


def test_a_fanout_exchange_takes_all(bench: Bench) -> None:
    bench.queues("a", "b")
    bench.bind("amq.fanout", "a", "k")
    bench.bind("amq.fanout", "b")
    assert bench.route("amq.fanout", "whatever") == ["a", "b"]


def test_a_topic_exchange_matches_patterns(bench: Bench) -> None:
    bench.queues("all", "errors")
    bench.bind("amq.topic", "all", "#")
    bench.bind("amq.topic", "errors", "*.error")
    assert bench.route("amq.topic", "db.error") == ["all", "errors"]
    assert bench.route("amq.topic", "db.info") == ["all"]


def test_a_headers_exchange_looks_at_the_headers_each_time(bench: Bench) -> None:
    bench.queues("a", "b")
    bench.bind("amq.headers", "a", "", {"colour": "red", "size": 2})
    bench.bind("amq.headers", "b", "", {"x-match": "any", "colour": "red", "size": 2})
    assert bench.route("amq.headers", "", encode_headers({"colour": "red", "size": 2})) == ["a", "b"]
    assert bench.route("amq.headers", "", encode_headers({"colour": "red"})) == ["b"]
    assert bench.route("amq.headers") == []
    assert not bench.router.cached("/")


def test_of_two_bindings_that_differ_in_a_type_the_right_one_goes(bench: Bench) -> None:
    bench.queues("q")
    bench.bind("amq.headers", "q", "", {"a": True})
    bench.bind("amq.headers", "q", "", {"a": 1})
    assert bench.route("amq.headers", properties=encode_headers({"a": 1})) == ["q"], "the index is made"
    bench.catalogue.apply(Unbind("/", "amq.headers", "q", "queue", "", {"a": 1}))
    assert bench.route("amq.headers", properties=encode_headers({"a": True})) == ["q"]
    assert bench.route("amq.headers", properties=encode_headers({"a": 1})) == []


def test_the_default_exchange_has_no_alternate() -> None:
    """A policy may give one to all exchanges."""
    catalogue = LocalCatalogue()
    router = Router(catalogue.topology, lambda _exchange: "amq.fanout")
    catalogue.apply(DeclareQueue("/", "q"))
    catalogue.apply(Bind("/", "amq.fanout", "q", "queue", ""))
    assert [queue.name for queue in router.route("/", "amq.direct", "nowhere", NONE)] == ["q"]
    assert router.route("/", "", "nowhere", NONE) == ()


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        ({}, {}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"a": None}, {"a": "present"}, True),
        ({"a": None}, {}, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": "x"}, {"a": b"x"}, True),
        ({"a": b"x"}, {"a": "x"}, True),
        ({"a": "x"}, {"a": b"y"}, False),
        ({"a": b"1"}, {"a": 1}, False),
        ({"x-secret": 1}, {}, True),
        ({"x-match": "all-with-x", "x-secret": 1}, {}, False),
        ({"x-match": "all-with-x", "x-secret": 1}, {"x-secret": 1}, True),
        ({"x-match": "any", "x-secret": 1}, {"x-secret": 1}, False),
        ({"x-match": "any-with-x", "x-secret": 1, "b": 2}, {"x-secret": 1}, True),
    ],
)
def test_headers_matching(arguments: dict[str, Any], headers: dict[str, Any], expected: bool) -> None:
    assert headers_match(arguments, headers) is expected


def test_exchanges_route_through_exchanges_and_loops_end(bench: Bench) -> None:
    bench.queues("q", "r")
    bench.exchange("in", "fanout")
    bench.exchange("out", "topic")
    bench.bind_exchange("in", "out", "")
    bench.bind_exchange("out", "in", "#")
    bench.bind("out", "q", "a.*")
    bench.bind("in", "q")
    bench.bind("in", "r")
    assert bench.route("in", "a.b") == ["q", "r"]
    assert bench.route("out", "zzz") == ["q", "r"]


def test_the_alternate_exchange_serves_when_there_is_no_destination(bench: Bench) -> None:
    bench.queues("q", "rest")
    bench.exchange("last", "fanout", alternate_exchange="main")  # a loop
    bench.exchange("middle", "direct", alternate_exchange="last")
    bench.exchange("main", "direct", alternate_exchange="middle")
    bench.exchange("lost", "direct", alternate_exchange="missing")
    bench.bind("main", "q", "k")
    assert bench.route("main", "other") == []
    bench.bind("last", "rest")
    assert bench.route("main", "k") == ["q"]
    assert bench.route("main", "other") == ["rest"]
    assert bench.route("lost", "k") == []


def test_a_policy_may_name_the_alternate_exchange(bench: Bench) -> None:
    named: dict[str, str] = {}
    router = Router(bench.catalogue.topology, lambda exchange: named.get(exchange.name))
    bench.queues("rest")
    bench.bind("amq.fanout", "rest")
    assert router.route("/", "amq.direct", "k", NONE) == ()
    named["amq.direct"] = "amq.fanout"
    router.forget_routes("/")
    assert [queue.name for queue in router.route("/", "amq.direct", "k", NONE)] == ["rest"]
    router.check_invariants()


def test_cc_and_bcc_add_routing_keys_and_are_not_cached(bench: Bench) -> None:
    bench.queues("a", "b", "c")
    both = encode_headers({"CC": ["b"], "BCC": ["c", "a"]})
    assert bench.route("", "a", both) == ["a", "b", "c"]
    assert bench.route("", "a") == ["a"]
    with pytest.raises(ChannelError) as caught:
        bench.route("", "a", encode_headers({"CC": "b"}))
    assert caught.value.reply_code == 406


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.fanout", "amq.topic", "amq.headers"])
def test_further_routing_keys_count_as_work(bench: Bench, exchange: str) -> None:
    bench.queues("q")
    if exchange:
        bench.bind(exchange, "q", "q")
    keys = [f"k{number}" for number in range(10_000)]
    bench.route(exchange, "q")
    before = bench.router.looked_at
    assert bench.route(exchange, "q", encode_headers({"CC": keys[:5_000], "BCC": keys[5_000:]})) == ["q"]
    assert bench.router.looked_at - before >= 10_000


def test_a_key_that_is_named_again_and_again_is_looked_up_once(bench: Bench) -> None:
    """Each time would take as long as it has queues."""
    bench.queues("q")
    bench.bind("amq.direct", "q", "k")
    assert bench.route("amq.direct", "k") == ["q"]
    matcher = bench.router._matchers["/", "amq.direct"]
    assert isinstance(matcher, DirectMatcher)
    looks: list[str] = []

    class Watched(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            looks.append(key)
            return super().get(key, default)

    matcher._by_key = Watched(matcher._by_key)
    bench.router.route("/", "amq.direct", "k", encode_headers({"CC": ["k"] * 100 + ["j"]}))
    assert looks == ["k", "j"]


def test_a_missing_exchange_is_404(bench: Bench) -> None:
    with pytest.raises(ChannelError) as caught:
        bench.route("missing")
    assert caught.value.reply_text == "NOT_FOUND - no exchange 'missing' in vhost '/'"


def test_a_cached_route_follows_every_change(bench: Bench) -> None:
    bench.queues("a")
    bench.exchange("x", "direct")
    bench.bind("x", "a", "k")
    assert bench.route("x", "k") == ["a"]
    assert ("x", "k") in bench.router.cached("/")
    bench.queues("b")
    bench.bind("x", "b", "k")
    assert bench.route("x", "k") == ["a", "b"]
    first_life = bench.catalogue.topology.queue("/", "a")
    bench.catalogue.apply(DeleteQueue("/", "a"))
    assert bench.route("x", "k") == ["b"]
    bench.queues("a")
    bench.bind("x", "a", "k")
    route = bench.router.route("/", "x", "k", NONE)
    assert bench.catalogue.topology.queue("/", "a") in route
    assert first_life not in route, "another life of the queue"
    bench.catalogue.apply(DeleteExchange("/", "x"))
    bench.exchange("x", "fanout")
    assert bench.route("x", "k") == []


def test_a_restored_topology_forgets_everything_known(bench: Bench) -> None:
    bench.queues("a")
    bench.bind("amq.fanout", "a")
    assert bench.route("amq.fanout") == ["a"]
    empty: Topology = LocalCatalogue().topology
    bench.catalogue.topology.restore(empty.snapshot())
    assert bench.route("amq.fanout") == []


def test_the_cache_is_bounded(bench: Bench) -> None:
    for number in range(ROUTE_CACHE_ENTRIES_MAX + 5):
        bench.router.route("/", "", str(number), NONE)
    assert len(bench.router.cached("/")) == 5


def test_an_index_that_fails_is_made_anew_and_the_topology_changes_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not every node has the index, but every node must change the topology alike."""

    def fail(_matcher: object, _binding: object) -> None:
        raise TypeError("a mistake of ours")

    bench.queues("q", "r")
    bench.bind("amq.direct", "q", "k")
    assert bench.route("amq.direct", "k") == ["q"]
    with monkeypatch.context() as patch:
        patch.setattr(DirectMatcher, "add", fail)
        bench.bind("amq.direct", "r", "k")
    assert "index of exchange 'amq.direct'" in caplog.text
    assert bench.route("amq.direct", "k") == ["q", "r"]


def test_an_index_that_breaks_while_it_is_made_is_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every publish is told: none may go to those bindings only that came before the one at fault."""
    add = DirectMatcher.add

    def fail_for_b(matcher: DirectMatcher, binding: BindingRecord) -> None:
        if binding.destination == "b":
            raise TypeError("a mistake of ours")
        add(matcher, binding)

    bench.queues("a", "b", "c")
    for name in ("a", "b", "c"):
        bench.bind("amq.direct", name, "k")
    with monkeypatch.context() as patch:
        patch.setattr(DirectMatcher, "add", fail_for_b)
        for _ in range(2):
            with pytest.raises(TypeError, match="a mistake of ours"):
                bench.route("amq.direct", "k")
    assert bench.route("amq.direct", "k") == ["a", "b", "c"]
