"""How many 1 KB messages per second one node sends to another over loopback, in ops frames as mirroring sends them.

    python tests/bench/mesh_bench.py [--messages N] [--batch N]

Two processes; the receiver counts and answers every frame as a mirror would. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
from random import Random

import uvloop

from cluster.mirroring.messages import Ops, OpsAck, PublishOp
from cluster.raft.messages import Message
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.transport.mesh import Mesh
from cluster.wire.convert import QueueFrameMessage
from node.ids import Epoch, Incarnation, MsgId, NodeName, OriginId, QueueId, SeqId
from node.message import Message as PublishedMessage
from node.message import pack_envelopes
from tests.support.messages import make_msg_id

RANDOM_BYTES = Random(1).randbytes

SENDER, RECEIVER = NodeName("n1"), NodeName("n2")
BODY_BYTES = 1024


class Counter:
    """Handler of both ends: the receiver acknowledges, the sender looks how far the acknowledgements are."""

    def __init__(self) -> None:
        self.mesh: Mesh | None = None
        self.up = asyncio.Event()
        self.acknowledged_index = 0
        self.received_index = 0
        self.received_bytes = 0
        #: The acknowledgement's second number carries the bytes received.
        self.acknowledged_bytes = 0
        self.progress = asyncio.Event()

    def on_consensus(self, peer: NodeName, messages: list[Message]) -> None:
        assert not messages, "only signs of life"

    def on_queue_frames(self, peer: NodeName, messages: list[QueueFrameMessage]) -> None:
        for message in messages:
            if isinstance(message, OpsAck):
                self.acknowledged_index = message.applied_index
                self.acknowledged_bytes = message.durable_index
            elif isinstance(message, Ops):
                assert message.first_index == self.received_index + 1, "nothing is lost or out of order"
                self.received_index += 1
                for op in message.ops:
                    assert isinstance(op, PublishOp), "the sender only publishes"
                    self.received_bytes += len(op.envelopes)
        self.progress.set()
        if self.received_index and self.mesh is not None:
            ack = OpsAck(QueueId(1), Epoch(1), 1, self.received_index, self.received_bytes, False, False)
            self.mesh.send_queue_frames(peer, [ack])

    def on_link_up(self, peer: NodeName, incarnation: Incarnation) -> None:
        self.up.set()

    def on_link_down(self, peer: NodeName, reason: str) -> None:
        print(f"link down: {reason}", file=sys.stderr)

    def on_peer_refused(self, peer: NodeName) -> None: ...

    def on_link_uncongested(self, peer: NodeName) -> None:
        self.progress.set()

    def on_link_room(self, peer: NodeName) -> None: ...


async def receive(addresses: dict[NodeName, str]) -> None:
    handler = Counter()
    handler.mesh = Mesh(
        RECEIVER,
        Incarnation(1),
        addresses[RECEIVER],
        addresses,
        handler,
        GrpcCarrier(),
        random_bytes=RANDOM_BYTES,
    )
    await handler.mesh.start()
    await asyncio.to_thread(sys.stdin.read)  # the sender closes our standard input when it is done
    await handler.mesh.stop()


async def send(addresses: dict[NodeName, str], messages: int, batch: int) -> float:
    """Seconds from the first batch until the last is acknowledged."""
    handler = Counter()
    mesh = handler.mesh = Mesh(
        SENDER, Incarnation(1), addresses[SENDER], addresses, handler, GrpcCarrier(), random_bytes=RANDOM_BYTES
    )
    await mesh.start()
    await handler.up.wait()
    origin = OriginId(b"benchmrk")
    body = bytes(BODY_BYTES)
    envelopes = pack_envelopes(
        [PublishedMessage(MsgId(make_msg_id(origin, n)), "", "queue", b"\0\0", body, True) for n in range(1, batch + 1)]
    )
    batches = messages // batch
    began = time.perf_counter()
    for index in range(1, batches + 1):
        op = PublishOp(SeqId(index * batch), batch, envelopes)
        mesh.send_queue_frames(RECEIVER, [Ops(QueueId(1), Epoch(1), 1, index, (op,))])
        await asyncio.sleep(0)  # one batch per turn of the loop, so frames do not grow beyond what is natural
        while mesh.is_congested(RECEIVER):
            handler.progress.clear()
            await handler.progress.wait()
    while handler.acknowledged_index < batches:
        handler.progress.clear()
        await handler.progress.wait()
    elapsed = time.perf_counter() - began
    assert handler.acknowledged_bytes == batches * len(envelopes), "every byte has arrived"
    await mesh.stop()
    return elapsed


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--receive", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.receive:
        uvloop.run(receive(json.loads(arguments.receive)))
        return
    addresses = {SENDER: free_address(), RECEIVER: free_address()}
    receiver = subprocess.Popen([sys.executable, __file__, "--receive", json.dumps(addresses)], stdin=subprocess.PIPE)
    try:
        elapsed = uvloop.run(send(addresses, arguments.messages, arguments.batch))
    finally:
        receiver.communicate(timeout=10)
    result = {
        "bench": "mesh",
        "messages": arguments.messages,
        "batch": arguments.batch,
        "body_bytes": BODY_BYTES,
        "messages_per_s": round(arguments.messages / elapsed),
        "seconds": round(elapsed, 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
