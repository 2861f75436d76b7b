"""What the link to a master has no room for waits, and everything said after it does. n1 enters, the queue is on n2.

The link has room for 8 MiB at once, or for nothing, if a test says so.
"""

from __future__ import annotations

import pytest

from cluster.sessions.backlog import FRAME_BYTES_MAX
from cluster.sessions.messages import SessionPublish
from cluster.sessions.questions import Question
from node.flow.credit import BETWEEN_NODES
from node.ids import NodeName, SeqId
from node.message import iter_envelopes
from node.queues.events import ConsumerSpec
from tests.support.entry_bench import EntryBench
from tests.support.session_network import QUEUE, RecordingSink, message

MEBIBYTE = 1024 * 1024
N2 = NodeName("n2")


def publishes_large(bench: EntryBench, *publish_seqs: int) -> None:
    """Of a megabyte each."""
    messages = [message(seq, bytes(MEBIBYTE)) for seq in publish_seqs]
    bench.entry.publish(bench.channel, QUEUE, messages, publish_seqs)
    bench.entry.check_invariants()


def carried(bench: EntryBench) -> list[SessionPublish]:
    """The publishes that went out since the last look."""
    said = [each for _, each in bench.sent() if isinstance(each, SessionPublish)]
    assert all(len(each.envelopes) <= FRAME_BYTES_MAX for each in said)
    assert all(len(each.publish_seqs) == len(list(iter_envelopes(each.envelopes))) for each in said)
    return said


def numbers(said: list[SessionPublish]) -> list[int]:
    return [seq for each in said for seq in each.publish_seqs]


def frees_link(bench: EntryBench) -> None:
    bench.entry.link_free(N2)
    bench.entry.check_invariants()


def closes_link(bench: EntryBench) -> None:
    """It has no room from now on."""
    bench.sent()
    bench.link_bytes = -1


def opens_link(bench: EntryBench) -> None:
    bench.link_bytes = 8 * MEBIBYTE
    frees_link(bench)


@pytest.mark.parametrize("is_open", [True, False])
def test_what_is_published_goes_out_in_messages_of_bounded_size_as_the_link_has_room(
    bench: EntryBench, is_open: bool
) -> None:
    """In an open session as in one that begins: at once what makes the link congested, the rest when it is free."""
    if is_open:
        publishes_large(bench, 100)
        bench.accepts(1)
        bench.confirms(1, 100)
        bench.sent()
        publishes_large(bench, *range(1, 31))
    else:
        publishes_large(bench, *range(1, 21))
        publishes_large(bench, *range(21, 31))
        bench.accepts(1)
    first = numbers(carried(bench))
    assert first == list(range(1, len(first) + 1))
    assert 8 <= len(first) <= 12
    assert bench.sink.waits()
    seqs = first
    while bench.sink.waits():
        frees_link(bench)
        portion = numbers(carried(bench))
        assert len(portion) <= 12
        seqs += portion
    assert seqs == list(range(1, 31))


def test_one_message_that_is_larger_than_a_frame_goes_out_alone(opened: EntryBench) -> None:
    messages = [message(2), message(3, bytes(FRAME_BYTES_MAX)), message(4)]
    opened.entry.publish(opened.channel, QUEUE, messages, [2, 3, 4])
    frees_link(opened)
    said = [each for _, each in opened.sent() if isinstance(each, SessionPublish)]
    assert [list(each.publish_seqs) for each in said] == [[2], [3], [4]]


def test_whatever_is_said_after_what_waits_comes_after_it(opened: EntryBench) -> None:
    closes_link(opened)
    opened.publishes(2)
    opened.entry.settle_ack(opened.channel, QUEUE, 1, [SeqId(0)])
    call = opened.asks(Question("counts"))
    assert opened.proceeds(call) is None
    opened.publishes(3)
    opened.entry.grant(opened.channel, QUEUE, 1, "tag", 1)
    opened.closes()
    assert opened.told() == []
    opens_link(opened)
    assert opened.told() == [
        "n2 publish 1: 2",
        "n2 settle 1",
        "n2 counts 1",
        "n2 publish 1: 3",
        "n2 grant 1",
        "n2 channelclosed 1",
    ]


def test_while_nothing_waits_a_congested_link_holds_up_publishes_only(opened: EntryBench) -> None:
    closes_link(opened)
    opened.entry.settle_ack(opened.channel, QUEUE, 1, [SeqId(0)])
    assert opened.told() == ["n2 settle 1"]


def test_consumers_are_attached_again_however_much_waits(opened: EntryBench) -> None:
    """A queue that goes with its last consumer waits for them, but not for ever."""
    opened.consumes(1, ConsumerSpec("tag", no_ack=False, exclusive=False))
    opened.publishes(2)
    closes_link(opened)
    opened.moves("n3", 2)
    opened.link_comes("n3")
    opened.accepts(2)
    assert opened.told() == ["n3 open 2", "n3 consume 2", "n3 counts 2"]
    opened.link_bytes = MEBIBYTE
    opened.entry.link_free(NodeName("n3"))
    assert opened.told() == ["n3 publish 2: 2 resent"]


def test_what_waited_when_its_session_ended_was_never_sent(opened: EntryBench) -> None:
    """The next session carries it for the first time, after what is sent again."""
    opened.publishes(2)
    closes_link(opened)
    opened.publishes(3)
    opened.publishes(4)
    opened.link_breaks("n2")
    opened.publishes(5)
    opened.link_bytes = MEBIBYTE
    opened.link_comes("n2")
    opened.accepts(2)
    assert opened.told() == ["n2 open 2", "n2 publish 2: 2 resent", "n2 publish 2: 3 4 5"]


def test_what_waited_to_be_sent_again_when_its_session_ended_was_sent_before(opened: EntryBench) -> None:
    opened.publishes(2)
    opened.link_breaks("n2")
    opened.publishes(3)
    opened.sent()
    for session in (2, 3):
        opened.link_bytes = -1 if session == 2 else MEBIBYTE
        opened.link_comes("n2")
        opened.accepts(session)
        if session == 2:
            assert opened.told() == ["n2 open 2"]
            opened.link_breaks("n2")
    assert opened.told() == ["n2 open 3", "n2 publish 3: 2 resent", "n2 publish 3: 3"]


def test_a_part_that_has_gone_out_is_sent_again_and_the_rest_is_not(opened: EntryBench) -> None:
    publishes_large(opened, *range(2, 22))
    first = numbers(carried(opened))
    opened.link_breaks("n2")
    opened.link_bytes = 100 * MEBIBYTE
    opened.link_comes("n2")
    opened.accepts(2)
    said = carried(opened)
    assert numbers([each for each in said if each.is_resent]) == first
    assert numbers(said) == list(range(2, 22))


def test_what_a_closed_channel_left_waiting_outlives_the_session(opened: EntryBench) -> None:
    """Before the end of its channel as after."""
    closes_link(opened)
    opened.publishes(2)
    opened.closes()
    opened.link_breaks("n2")
    opened.link_comes("n2")
    opened.accepts(2)
    opened.link_breaks("n2")
    opened.link_bytes = MEBIBYTE
    opened.link_comes("n2")
    opened.accepts(3)
    assert opened.told()[-2:] == ["n2 publish 3: 2", "n2 channelclosed 3"]


def test_who_asked_behind_what_waits_is_told_when_the_session_ends(opened: EntryBench) -> None:
    closes_link(opened)
    opened.publishes(2)
    call = opened.asks(Question("counts"))
    assert opened.proceeds(call) is None
    opened.link_breaks("n2")
    opened.link_bytes = MEBIBYTE
    opened.link_comes("n2")
    assert opened.proceeds(call) is None
    opened.accepts(2)
    assert opened.proceeds(call) is None
    assert opened.told() == ["n2 open 2", "n2 publish 2: 2", "n2 counts 2"]


def test_what_waits_for_a_queue_that_is_deleted_or_moves_away_is_not_said(opened: EntryBench) -> None:
    closes_link(opened)
    opened.publishes(2)
    opened.moves("n3", 2)
    opens_link(opened)
    assert opened.told() == ["n3 open 2"]
    closes_link(opened)
    opened.accepts(2)
    opened.queue_is_deleted()
    assert opened.sink.confirmed == [2]
    opened.entry.link_free(NodeName("n3"))
    assert opened.told() == []


def test_a_channel_that_waits_for_a_link_is_free_only_when_nothing_waits_for_it(opened: EntryBench) -> None:
    """Another one that published a little, too: it would add to what waits."""
    sink = RecordingSink()
    other = opened.entry.open_channel(sink)
    publishes_large(opened, *range(2, 22))
    opened.publishes(30, channel=other)
    opened.sent()
    assert sink.waits()
    frees_link(opened)
    opened.sent()
    assert sink.waits()
    frees_link(opened)
    assert not sink.waits()
    assert [each.publish_seqs for each in carried(opened)][-1] == (30,)


@pytest.mark.parametrize("is_all", [True, False])
def test_what_is_answered_while_it_waits_to_be_carried_again_goes_out_no_more(bench: EntryBench, is_all: bool) -> None:
    """Its master had it in the session before."""
    bench.publishes(1, 2, 3)
    bench.accepts(1)
    bench.link_breaks("n2")
    closes_link(bench)
    bench.link_comes("n2")
    bench.accepts(2)
    bench.publishes(4)
    assert numbers(carried(bench)) == []
    bench.confirms(2, *([1, 2, 3] if is_all else [1, 3]))
    opens_link(bench)
    left = [4] if is_all else [2, 4]
    assert numbers(carried(bench)) == left


def test_what_was_answered_while_it_waited_is_not_kept_for_the_next_session(bench: EntryBench) -> None:
    """A master that comes out of a restart does not know what was settled, or refused: it would take that for new."""
    bench.publishes(1, 2, 3)
    bench.accepts(1)
    bench.link_breaks("n2")
    closes_link(bench)
    bench.link_comes("n2")
    bench.accepts(2)
    bench.confirms(2, 1, 2, 3)
    bench.moves("n2", 2)
    bench.accepts(3)
    opens_link(bench)
    assert numbers(carried(bench)) == []
    assert bench.sink.confirmed == [1, 2, 3]


def test_what_is_answered_while_it_waits_to_be_carried_again_is_paid_back(bench: EntryBench) -> None:
    """Its master does not get it in this session, and grants nothing for it: the channel would wait for ever."""
    seqs = range(1, BETWEEN_NODES.initial)
    bench.publishes(*seqs)
    bench.accepts(1)
    bench.link_breaks("n2")
    closes_link(bench)
    bench.link_comes("n2")
    bench.accepts(2)
    bench.confirms(2, *seqs[:-10])
    bench.confirms(2, *seqs[-10:])
    opens_link(bench)
    assert not bench.sink.waits()
    bench.publishes(*range(BETWEEN_NODES.initial, BETWEEN_NODES.initial + BETWEEN_NODES.more_after))
    assert not bench.sink.waits(), "less than one grant is owed for"
