"""Whatever consumer the door lets in can be said to the node where its queue is served: what cannot be said costs the
link between the two nodes, again with every link."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pamqp.commands import Basic

from cluster.sessions.messages import SessionCall
from cluster.wire.convert import QueueEncoder
from node.amqp.cold_methods import consumer_spec
from node.amqp.values import Timestamp, pack_table, read_table
from node.broker.channel import with_parsed_arguments
from node.errors import ChannelError
from node.ids import QueueId
from tests.support.hostile import values

tables = st.dictionaries(st.sampled_from(("x-priority", "x-cancel-on-ha-failover")) | st.text(max_size=8), values)


@given(tables)
@example({"x-priority": Timestamp(2**64 - 1)})
@example({"x-priority": 2**63 - 1, "deep": {"a": [[{"b": b"\xff"}]]}})
def test_a_consumer_that_is_not_refused_can_be_said(table: dict[str, Any]) -> None:
    method = Basic.Consume(queue="q", consumer_tag="t", arguments=read_table(pack_table(table))[0])
    try:
        spec = with_parsed_arguments(consumer_spec(method, 65_535, 65_535), "consumer")
    except ChannelError:
        return
    assert QueueEncoder().encode(SessionCall(QueueId(1), 1, 1, "consume", 1, spec))


@pytest.mark.parametrize("priority", [Timestamp(5), Timestamp(2**64 - 1), True, 1.0, "1", None])
def test_a_priority_is_a_whole_number(priority: Any) -> None:
    with pytest.raises(ChannelError, match="x-priority"):
        consumer_spec(Basic.Consume(queue="q", arguments={"x-priority": priority}), 0, 0)
