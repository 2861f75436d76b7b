"""How long a broker takes to find the queues of what a client publishes."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands, header

from node.errors import ChannelError
from node.routing.router import Router
from node.topology.commands import Bind, DeclareExchange
from tests.support.broker_bench import BrokerBench, request
from tests.support.messages import encode_headers


async def test_publishes_that_are_long_to_route_are_routed_in_steps_bounded_by_bindings() -> None:
    """Whatever goes through a headers exchange is compared with all of its bindings."""
    bench = BrokerBench()
    client = bench.client()
    await client.declare("q")
    await client.declare("other")
    for number in range(300):
        await client.definitions.bind_queue("q", "amq.headers", "", {"number": number})
    bodies = [b"%d" % number for number in range(8)]
    found = header.ContentHeader(0, 0, commands.Basic.Properties(headers={"number": 7})).marshal()[12:]
    requests = [request(each.decode(), exchange="amq.headers", properties=found, seq=int(each) + 1) for each in bodies]
    work = client.channel.publish([*requests, request("last", key="other", seq=9)])
    assert work is not None
    routed, steps = bench.broker.router.looked_at, 0
    while not work.step(client.channel):
        assert bench.broker.router.looked_at - routed <= 2 * 300
        routed, steps = bench.broker.router.looked_at, steps + 1
    assert steps >= 3
    assert [each.body for each in bench.node.messages("q")] == bodies
    assert [each.body for each in bench.node.messages("other")] == [b"last"]
    confirmed = " ".join(await client.heard()).replace("confirm", "").split()
    assert sorted(map(int, confirmed)) == list(range(1, 10))
    client.channel.check_invariants()


async def test_publishes_through_very_many_exchanges_are_routed_in_steps() -> None:
    bench = BrokerBench()
    apply = bench.catalogue.apply
    apply(DeclareExchange("/", "wide", "fanout"))
    apply(Bind("/", "amq.headers", "wide", "exchange", "", {"a": 1}))
    for number in range(1000):
        apply(DeclareExchange("/", f"x{number}", "fanout"))
        apply(Bind("/", "wide", f"x{number}", "exchange", ""))
    client = bench.client()
    publishes = [request(exchange="amq.headers", properties=encode_headers({"a": 1})) for _ in range(4)]
    work = client.channel.publish(publishes)
    assert work is not None
    steps = 1
    while not work.step(client.channel):
        steps += 1
    assert steps >= 3


@pytest.mark.parametrize("exchange", ["", "amq.direct", "amq.fanout", "amq.topic"])
async def test_publishes_with_very_many_keys_are_routed_one_at_a_time(
    exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame has room for some ten thousand keys, which takes as long as a thousand publishes without."""
    bench = BrokerBench()
    client = bench.client()
    await client.declare("q")
    if exchange:
        await client.definitions.bind_queue("q", exchange, "q", {})
    keys = [f"k{number}" for number in range(10_000)]
    many = encode_headers({"CC": keys})
    routed: list[str] = []
    route = Router.route

    def watched_route(router: Router, vhost: str, *message: Any) -> Any:
        routed.append(vhost)
        return route(router, vhost, *message)

    monkeypatch.setattr(Router, "route", watched_route)
    looked_at = bench.broker.router.looked_at
    work = client.channel.publish([request(exchange=exchange, properties=many, seq=seq) for seq in (1, 2, 3)])
    assert work is not None
    assert bench.broker.router.looked_at - looked_at >= 10_000
    steps = 0
    assert len(routed) == 1
    while not work.step(client.channel):
        steps += 1
        assert len(routed) == 1 + steps
    assert steps == 2
    assert len(bench.node.messages("q")) == 3
    client.channel.check_invariants()


@pytest.mark.parametrize("length", [255, 256, 60_000])
async def test_an_alternate_exchange_has_a_name_as_others_have(length: int) -> None:
    """It comes as a long string, and permissions are patterns whose cost is bounded for names."""
    client = BrokerBench().client()
    declared = client.definitions.declare_exchange(
        "x",
        "direct",
        passive=False,
        durable=False,
        auto_delete=False,
        internal=False,
        arguments={"alternate-exchange": "a" * length},
    )
    if length > 255:
        with pytest.raises(ChannelError, match="a name has 255 bytes at most") as refused:
            await declared
        assert refused.value.reply_code == 406
    else:
        await declared
