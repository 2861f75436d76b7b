"""A mirror may get any prefix of what its master sends: what it then takes for a repetition it has, or had.

A publisher's node sends again what was not confirmed, and a promoted mirror confirms what it takes for a repetition. So
after each prefix of the frames, also of frames of one turn, the promoted mirror must hold what it claims, unless it was
told that this was settled, or it never was to be stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.messages import Attach, HorizonOp, MirrorMessage, Ops, PublishOp, SettleOp
from node.ids import Epoch, MsgId, OriginId, SeqId
from node.queues.backing_queue import Publication
from tests.support.amounts import few_examples
from tests.support.messages import make_message
from tests.support.mirror_pair import N1, N2, Pair

ORIGINS = [OriginId(f"origin-{number}".encode()) for number in range(3)]

#: What happens to a queue: what, of which origin (or how many), and the size of a body. An envelope has some 70 bytes.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["publish"] * 4
            + ["bypass", "discard", "discard", "fetch", "fetch no-ack", "ack", "drop", "resend"]
            # The end of a turn; a link that breaks, so that the next turn begins with an attach; answers.
            + ["turn"] * 3
            + ["link", "answer", "sync"]
        ),
        st.integers(0, 2),
        st.sampled_from([0, 10, 200, 700]),
    ),
    min_size=4,
    max_size=40,
)


@pytest.fixture(autouse=True, scope="module")
def small_frames() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cluster.mirroring.turn.FRAME_BYTES_MAX", 300)
        yield


class Stream:
    """A master that does as it is told, and everything it says to its mirror on n2."""

    def __init__(self, is_synchronised: bool, window_bytes: int) -> None:
        self.pair = Pair(is_synchronised, MirroringSettings(window_bytes=window_bytes, sync_automatically=True)).up()
        self.counters = dict.fromkeys(ORIGINS, 0)
        self.published: list[Publication] = []
        self.ids_by_position: dict[int, MsgId] = {}
        #: Delivered without being stored: whoever hears of them may claim them.
        self.discarded: set[MsgId] = set()
        self.delivered: dict[SeqId, MsgId] = {}
        #: Messages, each with what was settled when the master said it.
        self.said: list[tuple[MirrorMessage, frozenset[MsgId]]] = []
        self.settled: set[MsgId] = set()
        self.highest_delivered = -1
        #: Highest position that was delivered when the master said it; of each message.
        self.delivered_when_said: list[int] = []

    def do(self, action: str, number: int, size: int) -> None:
        master = self.pair.master
        match action:
            case "publish":
                self._publish(number, size)
            case "bypass" if not master.ready:
                first = master.local.next_seq_id
                publication = self._new(number, size)
                self.ids_by_position[first] = publication.message.msg_id
                self._delivered(
                    [(each.seq_id, each.message.msg_id) for each in master.publish_delivered([publication])]
                )
            case "discard" if not master.ready:
                publication = self._new(number, size)
                self.discarded.add(publication.message.msg_id)
                master.discard([publication])
            case "fetch":
                self._delivered([(each.seq_id, each.message.msg_id) for each in master.fetch(number + 1, True)])
            case "fetch no-ack":
                gone = master.fetch(number + 1, False)
                self.settled.update(each.message.msg_id for each in gone)
                self.highest_delivered = max([self.highest_delivered, *[each.seq_id for each in gone]])
            case "ack" if self.delivered:
                seq_id = list(self.delivered)[number % len(self.delivered)]
                master.ack([seq_id])
                self.settled.add(self.delivered.pop(seq_id))
            case "drop":
                self.settled.update(self.ids_by_position[each] for each in master.drop(number))
            case "resend" if self.published:
                publication = self.published[-1 - number % len(self.published)]
                assert master.is_duplicate(publication.message.msg_id)
                master.confirm_when_safe(publication.message.msg_id, ("again", publication.message.msg_id))
            case "turn":
                self._turn()
            case "link":
                self._turn()
                master.mirror_link_down(N2)
                self.pair.mirror.link_lost()
                master.mirror_link_up(N2)
            case "answer":
                self.pair.to_master()
            case "sync":
                self.pair.sync()

    def _new(self, number: int, size: int) -> Publication:
        origin = ORIGINS[number]
        self.counters[origin] += 1
        message = make_message(self.counters[origin], origin=origin, body=b"x" * size)
        self.published.append(Publication(message, message.msg_id))
        return self.published[-1]

    def _publish(self, number: int, size: int) -> None:
        first = self.pair.master.local.next_seq_id
        publication = self._new(number, size)
        self.ids_by_position[first] = publication.message.msg_id
        self.pair.master.publish([publication])

    def _delivered(self, deliveries: list[tuple[SeqId, MsgId]]) -> None:
        self.delivered.update(deliveries)
        self.highest_delivered = max([self.highest_delivered, *[seq_id for seq_id, _ in deliveries]])

    def _turn(self) -> None:
        for message in self.pair.to_mirror():
            self.said.append((message, frozenset(self.settled)))
            self.delivered_when_said.append(self.highest_delivered)


class Survivor:
    """A mirror that got the first messages of a stream, as the master of the next epoch."""

    def __init__(self, stream: Stream, count: int) -> None:
        #: What it was told is settled.
        self.settled: set[MsgId] = set()
        pair = Pair(synchronised=bool(stream.pair.record.synchronised))
        for message, settled in stream.said[:count]:
            pair.mirror.receive(N1, message)
            if isinstance(message, Attach):
                self.settled |= settled
            elif isinstance(message, Ops):
                ranges = [each for op in message.ops if isinstance(op, SettleOp) for each in op.ranges]
                self.settled.update(
                    stream.ids_by_position[seq_id] for first, end in ranges for seq_id in range(first, end)
                )
        record = replace(stream.pair.record, epoch=Epoch(2), master=N2, mirrors=(), synchronised=(), complete=(N2,))
        local = pair.mirror_local
        self.live = {holding.msg_id for segment, _ in local.live_counts() for holding in local.holdings(segment)}
        self.queue: MirroredQueue = pair.mirror.promote(N2, record)


@few_examples(40, 300, steps=STEPS, is_synchronised=st.booleans(), window_bytes=st.sampled_from([500, 2000, 1_000_000]))
def test_whoever_has_a_prefix_of_the_stream_claims_no_message_that_it_lacks(
    steps: list[tuple[str, int, int]], is_synchronised: bool, window_bytes: int
) -> None:
    stream = Stream(is_synchronised, window_bytes)
    for step in steps:
        stream.do(*step)
    stream.do("turn", 0, 0)
    for count in range(len(stream.said) + 1):
        survivor = Survivor(stream, count)
        accounted_for = survivor.live | survivor.settled | stream.discarded
        for publication in stream.published:
            msg_id = publication.message.msg_id
            assert msg_id in accounted_for or not survivor.queue.is_duplicate(msg_id), (
                f"after {count} of {len(stream.said)} messages {msg_id.hex()} is claimed and lacking"
            )


@few_examples(40, 300, steps=STEPS, window_bytes=st.sampled_from([500, 2000, 1_000_000]))
def test_whoever_has_a_prefix_of_the_stream_flags_what_may_have_been_delivered(
    steps: list[tuple[str, int, int]], window_bytes: int
) -> None:
    """What was delivered before the frame was sent is below the horizon of whoever has the frame."""
    stream = Stream(True, window_bytes)
    for step in steps:
        stream.do(*step)
    stream.do("turn", 0, 0)
    for count in range(1, len(stream.said) + 1):
        survivor = Survivor(stream, count)
        was_delivered = stream.delivered_when_said[count - 1]
        for seq_id, message, is_flagged in survivor.queue.local.fetch(survivor.queue.ready, ack_required=True):
            assert is_flagged or seq_id > was_delivered, (
                f"{message.msg_id.hex()} was delivered before and is not flagged"
            )


def test_the_horizon_travels_before_and_settles_after_what_they_speak_of() -> None:
    stream = Stream(True, 1_000_000)
    stream.do("turn", 0, 0)
    stream.pair.quiet()
    stream.said.clear()
    for _ in range(300):  # more than one horizon
        stream.do("bypass", 0, 200)
    for _ in range(300):
        stream.do("ack", 0, 0)
    stream.do("turn", 0, 0)
    ops = [op for message, _ in stream.said if isinstance(message, Ops) for op in message.ops]
    assert [type(op) for op in ops] == [HorizonOp, *[PublishOp] * (len(ops) - 2), SettleOp]
    assert len(stream.said) > 100
