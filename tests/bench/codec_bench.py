"""Speed of the hot codec: publishes parsed and deliveries built per second, 100-byte bodies, one core.

Run it from the repository's root: ``python -m tests.bench.codec_bench``. Prints one JSON line.
"""

from __future__ import annotations

import json
import random
import time

from pamqp import commands, frame, header

from node.amqp.codec import FrameReader
from node.amqp.frames import Publishes
from node.amqp.values import pack_short_string
from node.amqp.writers import pack_deliveries
from node.ids import SeqId
from node.message import Message
from node.queues.backing_queue import Delivery

MESSAGES = 50_000
BODY_BYTES = 100
READ_BYTES = 65_536
BATCH_DELIVERIES = 100
ROUNDS = 5


def publish_stream(seed: int) -> bytes:
    """The bytes a producer with eight routing keys sends on one channel."""
    chance = random.Random(seed)
    properties = commands.Basic.Properties(content_type="application/octet-stream", delivery_mode=2)
    parts = []
    for _ in range(MESSAGES):
        parts.append(frame.marshal(commands.Basic.Publish(0, "amq.topic", f"key.{chance.randrange(8)}"), 1))
        parts.append(frame.marshal(header.ContentHeader(0, BODY_BYTES, properties), 1))
        parts.append(b"\x03\x00\x01" + BODY_BYTES.to_bytes(4, "big") + chance.randbytes(BODY_BYTES) + b"\xce")
    return b"".join(parts)


def parse_seconds(stream: bytes) -> tuple[float, list[Message]]:
    reader = FrameReader(131_072)
    messages: list[Message] = []
    started = time.perf_counter()
    for at in range(0, len(stream), READ_BYTES):
        items = reader.feed(stream[at : at + READ_BYTES])
        while reader.has_more:
            items += reader.feed(b"")
        for item in items:
            assert isinstance(item, Publishes)
            messages += item.messages
    return time.perf_counter() - started, messages


def build_seconds(messages: list[Message]) -> tuple[float, int]:
    deliveries = [Delivery(SeqId(number), message, False) for number, message in enumerate(messages)]
    consumer_tag = pack_short_string("amq.ctag-0123456789abcdefghijkl")
    size = 0
    started = time.perf_counter()
    for at in range(0, len(deliveries), BATCH_DELIVERIES):
        size += len(pack_deliveries(1, consumer_tag, at + 1, deliveries[at : at + BATCH_DELIVERIES], 131_072))
    return time.perf_counter() - started, size


def main() -> None:
    stream = publish_stream(seed=1)
    parsed = [parse_seconds(stream) for _ in range(ROUNDS)]
    messages = parsed[0][1]
    assert len(messages) == MESSAGES
    built = [build_seconds(messages) for _ in range(ROUNDS)]
    print(
        json.dumps(
            {
                "bench": "codec",
                "body_bytes": BODY_BYTES,
                "messages": MESSAGES,
                "publishes_parsed_per_second": round(MESSAGES / min(seconds for seconds, _ in parsed)),
                "deliveries_built_per_second": round(MESSAGES / min(seconds for seconds, _ in built)),
            }
        )
    )


if __name__ == "__main__":
    main()
