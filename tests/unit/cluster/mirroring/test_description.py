"""A mirror that has long been away says what it has a piece at a time, and goes on with its master meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.mirroring import conversations
from cluster.mirroring.description import PIECE_SEGMENTS, Description
from cluster.mirroring.messages import Attach, AttachReply, MirrorMessage, OpsAck
from cluster.mirroring.progress import MirrorState
from cluster.mirroring.settings import MirroringSettings
from node.ids import SeqId
from tests.support.messages import publications
from tests.support.mirror_pair import N1, N2, Pair
from tests.support.stores import StoreHarness

SEGMENT_ENTRIES = 4
SEGMENTS = 5


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cluster.mirroring.mirror", "node.queues.digests", "node.queues.local_replica"):
        monkeypatch.setattr(f"{module}.DIGEST_SEGMENT_ENTRIES", SEGMENT_ENTRIES)


def differing_everywhere(settings: MirroringSettings | None = None) -> Pair:
    """The mirror was away while the master settled a message of every segment."""
    pair = Pair(settings=settings).up()
    pair.master.publish(publications(1, SEGMENTS * SEGMENT_ENTRIES))
    pair.quiet()
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    deliveries = pair.master.fetch(SEGMENTS * SEGMENT_ENTRIES, ack_required=True)
    pair.master.ack([delivery.seq_id for delivery in deliveries[::SEGMENT_ENTRIES]])
    pair.master.take_messages()
    return pair.up()


def kinds(messages: list[MirrorMessage]) -> list[type]:
    return [type(message) for message in messages]


def test_each_turn_describes_one_segment_and_the_last_acknowledgement_ends_it() -> None:
    pair = differing_everywhere()
    pair.to_mirror()
    for _ in range(SEGMENTS - 1):
        [reply, *_] = pair.to_master()
        assert isinstance(reply, AttachReply)
        assert len(reply.mismatched) == 1
        assert pair.mirror.has_more
        assert pair.state() is MirrorState.ATTACHING
    assert kinds(pair.to_master()) == [AttachReply, OpsAck]
    assert not pair.mirror.has_more
    assert pair.state() is MirrorState.FILLING
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_what_is_published_meanwhile_is_no_part_of_the_difference() -> None:
    """It shares a segment with what is compared, and must not be taken for something that the master has not."""
    messages = 2 * SEGMENT_ENTRIES + 2
    pair = Pair().up()
    pair.master.publish(publications(1, messages))
    pair.quiet()
    pair.master.mirror_link_down(N2)
    pair.mirror.link_lost()
    deliveries = pair.master.fetch(messages, ack_required=True)
    pair.master.ack([delivery.seq_id for delivery in deliveries[::SEGMENT_ENTRIES]])
    pair.up().to_mirror()
    pair.to_master()
    pair.master.publish(publications(100, 2))
    pair.to_mirror()
    assert pair.mirror.has_more, "the last segment is described with those two in it"
    pair.quiet()
    assert pair.state() is MirrorState.SYNCHRONISED
    assert pair.mirror_local.live_positions(2) == [9, 10, 11]


def test_the_window_stays_open_while_a_long_queue_is_described() -> None:
    pair = differing_everywhere(MirroringSettings(window_bytes=2000))
    pair.to_mirror()
    counter = 1000
    while pair.mirror.has_more:
        counter += 10
        pair.master.publish(publications(counter, 10))
        pair.to_mirror()
        said = pair.to_master()
        assert [message.is_describing for message in said if isinstance(message, OpsAck)] == [pair.mirror.has_more]
        assert pair.state() in (MirrorState.ATTACHING, MirrorState.FILLING)
    pair.quiet()
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_a_master_of_an_older_release_hears_nothing_before_everything_is_described() -> None:
    """It takes the first acknowledgement for the end of the difference."""
    pair = differing_everywhere()
    [(_, attach)] = pair.master.take_messages()
    assert isinstance(attach, Attach)
    pair.mirror.receive(N1, replace(attach, hears_between=False))
    said = [message for _ in range(SEGMENTS) for _, message in pair.mirror.take_messages()]
    assert kinds(said) == [AttachReply] * SEGMENTS + [OpsAck]


def test_a_mirror_that_is_describing_is_not_asked_again() -> None:
    """However long it takes altogether: each piece shows that it is at work."""
    pair = differing_everywhere()
    pair.to_mirror()
    now_ms = 0
    while pair.mirror.has_more:
        pair.to_master()
        for _ in range(2):
            now_ms += conversations.ATTACH_RETRY_MS // 2
            pair.master.tick(now_ms)
        assert Attach not in kinds(pair.to_mirror())


@pytest.mark.parametrize("how", ["link lost", "later epoch"])
def test_nobody_is_told_the_rest_when_the_conversation_is_over(how: str) -> None:
    pair = differing_everywhere()
    pair.to_mirror()
    pair.to_master()
    if how == "link lost":
        pair.mirror.link_lost()
    else:
        pair.mirror.adopt_epoch(pair.mirror.epoch + 1)  # type: ignore[arg-type]
    assert not pair.mirror.has_more
    assert pair.mirror.take_messages() == []


def test_segments_of_which_nothing_is_here_go_together() -> None:
    local = StoreHarness().open_queue()
    description = Description(local, range(PIECE_SEGMENTS + 1), SeqId(1_000_000))
    assert [holdings.segment for holdings in description.next_piece()] == list(range(PIECE_SEGMENTS))
    assert description
    assert [holdings.segment for holdings in description.next_piece()] == [PIECE_SEGMENTS]
    assert not description


def test_what_came_after_the_attach_is_not_described() -> None:
    """Not even what is at the very position at which the master was."""
    local = StoreHarness().open_queue()
    local.publish(publications(1, 3))
    [piece] = Description(local, [0], SeqId(2)).next_piece()
    assert [holding.seq_id for holding in piece.holdings] == [0, 1]


def test_a_description_that_is_repeated_when_it_is_over_says_nothing() -> None:
    pair = differing_everywhere()
    pair.to_mirror()
    [reply, *_] = pair.to_master()
    assert isinstance(reply, AttachReply)
    pair.quiet()
    pair.master.receive(N2, reply)
    pair.check()
    assert pair.to_mirror() == [], "it lacks nothing"
