"""Deliveries, returns, get-oks and confirms, read back by `pamqp`."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import body, commands, header

from node.amqp.values import pack_short_string
from node.amqp.writers import pack_confirm, pack_deliveries, pack_get_ok, pack_return
from node.ids import MsgId, SeqId
from node.message import Message
from node.queues.backing_queue import Delivery
from tests.support.amqp_frames import unmarshal_all

FRAME_MAX = 4096
PLAIN = commands.Basic.Properties()
RICH = commands.Basic.Properties(content_type="text/plain", headers={"a": "b"}, delivery_mode=2)


def delivery(
    number: int,
    payload: bytes = b"hello",
    *,
    key: str = "q",
    exchange: str = "",
    redelivered: bool = False,
    properties: commands.Basic.Properties = PLAIN,
) -> Delivery:
    message = Message(MsgId(b""), exchange, key, properties.marshal(), payload, False)
    return Delivery(SeqId(number), message, redelivered)


def contents(data: bytes) -> list[tuple[Any, dict[str, Any], bytes]]:
    """(method, properties that are set, body) of each content, checking the frames in between."""
    result: list[tuple[Any, dict[str, Any], bytes]] = []
    missing = 0
    for channel, value in unmarshal_all(data):
        assert channel == 7
        if isinstance(value, header.ContentHeader):
            missing = value.body_size
            result[-1] = (result[-1][0], {k: v for k, v in value.properties if v}, b"")
        elif isinstance(value, body.ContentBody):
            assert value.value is not None
            assert 0 < len(value.value) <= FRAME_MAX - 8
            missing -= len(value.value)
            result[-1] = (*result[-1][:2], result[-1][2] + value.value)
        else:
            assert missing == 0
            result.append((value, {}, b""))
    assert missing == 0
    return result


def test_a_mixed_batch_of_deliveries() -> None:
    """Everything that the writer remembers from one delivery to the next changes once, and changes back."""
    batch = [
        delivery(1),
        delivery(2),
        delivery(3, key="other"),
        delivery(4, key="q"),
        delivery(5, properties=RICH),
        delivery(6, payload=b"hello again", properties=RICH),
        delivery(7, payload=b""),
        delivery(8, payload=b""),
        delivery(9, payload=bytes(FRAME_MAX - 8)),
        delivery(10, payload=bytes(range(256)) * 64),
        delivery(11, redelivered=True, exchange="x"),
    ]
    seen = contents(pack_deliveries(7, pack_short_string("tag"), 41, batch, FRAME_MAX))
    assert len(seen) == len(batch)
    for tag, (given, (method, properties, payload)) in enumerate(zip(batch, seen, strict=True), 41):
        assert isinstance(method, commands.Basic.Deliver)
        assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("tag", tag, given.redelivered)
        assert (method.exchange, method.routing_key) == (given.message.exchange, given.message.routing_key)
        rich = given.message.properties == RICH.marshal()
        assert properties == ({"content_type": "text/plain", "headers": {"a": "b"}, "delivery_mode": 2} if rich else {})
        assert payload == given.message.body


@pytest.mark.parametrize("size", [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 3 * FRAME_MAX])
def test_get_ok_and_return(size: int) -> None:
    given = delivery(1, payload=b"x" * size, key="key", exchange="ex", redelivered=True, properties=RICH)
    ((got, properties, payload),) = contents(pack_get_ok(7, 9, given, 12, FRAME_MAX))
    assert isinstance(got, commands.Basic.GetOk)
    assert dict(got) == {
        "delivery_tag": 9, "redelivered": True, "exchange": "ex", "routing_key": "key", "message_count": 12
    }  # fmt: skip
    assert properties["delivery_mode"] == 2
    assert payload == given.message.body
    ((returned, _, payload),) = contents(pack_return(7, 312, "NO_ROUTE", given.message, FRAME_MAX))
    assert isinstance(returned, commands.Basic.Return)
    assert dict(returned) == {
        "reply_code": 312, "reply_text": "NO_ROUTE", "exchange": "ex", "routing_key": "key"
    }  # fmt: skip
    assert payload == given.message.body


def test_confirms() -> None:
    data = pack_confirm(7, 5, True, True) + pack_confirm(7, 6, False, True) + pack_confirm(7, 7, True, False)
    seen = [(value.name, value.delivery_tag, value.multiple) for _, value in unmarshal_all(data)]
    assert seen == [("Basic.Ack", 5, True), ("Basic.Ack", 6, False), ("Basic.Nack", 7, True)]
