"""What clients may ask for elsewhere and this release does not do: it is refused by name, and never ignored."""

from __future__ import annotations

from typing import Any

import pytest

from node.errors import ChannelError
from node.topology.commands import DeclareQueue
from tests.support.broker_bench import BrokerBench


@pytest.fixture
async def bench() -> BrokerBench:
    return BrokerBench()


NOT_CARRIED_OUT: dict[str, Any] = {
    "message_ttl": 5000,
    "expires": 5000,
    "dead_letter_exchange": "amq.direct",
    "dead_letter_routing_key": "k",
    "max_priority": 10,
    "queue_leader_locator": "client-local",
}


@pytest.mark.parametrize("argument", NOT_CARRIED_OUT)
async def test_what_is_not_carried_out_is_refused_and_named(bench: BrokerBench, argument: str) -> None:
    arguments = {argument: NOT_CARRIED_OUT[argument]}
    client = bench.client()
    with pytest.raises(ChannelError) as refused:
        await client.declare("q", **arguments)
    assert refused.value.reply_code == 406
    assert f"invalid arg 'x-{argument.replace('_', '-')}' for queue 'q'" in refused.value.reply_text
    if argument == "queue_leader_locator":
        assert "x-queue-master-locator" in refused.value.reply_text
    elif argument != "dead_letter_routing_key":  # alone it never makes sense
        assert "in this release" in refused.value.reply_text
    assert bench.catalogue.topology.queue("/", "q") is None


async def test_a_queue_that_an_earlier_release_declared_with_more_can_be_declared_again(bench: BrokerBench) -> None:
    """It is there, and serves."""
    arguments = {f"x-{name.replace('_', '-')}": value for name, value in NOT_CARRIED_OUT.items()}
    bench.catalogue.apply(DeclareQueue("/", "q", False, None, False, arguments))
    assert await bench.client().declare("q", **NOT_CARRIED_OUT) == ("q", 0, 0)
