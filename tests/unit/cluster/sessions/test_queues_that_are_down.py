"""A queue whose only nodes are down, for days perhaps: what its publishers wait for. n1 enters, n2 is down."""

from __future__ import annotations

import pytest

from cluster.sessions import credits as module
from cluster.sessions import routes
from cluster.sessions.messages import SessionCredit
from node.flow.credit import BETWEEN_NODES, Credit
from node.queues.events import INTERNAL_SEQ_BASE
from tests.support.entry_bench import EntryBench
from tests.support.session_network import QUEUE, RecordingSink, message

CREDIT = BETWEEN_NODES.initial


def publishes_without_confirms(bench: EntryBench, *counters: int) -> list[int]:
    """Of ``b"1"`` and so on, numbered as channels number them for themselves. Returns the numbers."""
    seqs = [INTERNAL_SEQ_BASE + counter for counter in counters]
    bench.entry.publish(bench.channel, QUEUE, [message(each, b"%d" % each) for each in counters], seqs)
    bench.entry.check_invariants()
    return seqs


def goes_down(bench: EntryBench) -> None:
    bench.link_breaks("n2")
    bench.moves("n2", 1, is_down=True)
    bench.sent()


def comes_back(bench: EntryBench, session: int) -> list[str]:
    bench.link_comes("n2")
    bench.moves("n2", 2)
    bench.accepts(session)
    return bench.told()


def test_whoever_waits_for_its_credit_waits_no_longer(opened: EntryBench) -> None:
    seqs = publishes_without_confirms(opened, *range(2, CREDIT + 2))
    assert opened.sink.waits()
    goes_down(opened)
    assert not opened.sink.waits()
    assert opened.sink.confirmed == seqs
    publishes_without_confirms(opened, *range(CREDIT + 2, 4 * CREDIT))
    assert not opened.sink.waits()
    comes_back(opened, 2)
    assert opened.sink.waits(), "everything was sent, and counts"


def test_what_nobody_waits_for_is_kept_up_to_a_bound_and_arrives_in_order(
    opened: EntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a session has carried, what none has, and what was published to a queue that was known to be down."""
    monkeypatch.setattr(routes, "UNTRACKED_MESSAGES_MAX", 4)
    seqs = publishes_without_confirms(opened, 2, 3)
    opened.link_breaks("n2")
    seqs += publishes_without_confirms(opened, 4)
    opened.moves("n2", 1, is_down=True)
    seqs += publishes_without_confirms(opened, 5, 6)
    opened.publishes(7)  # the client asks for confirms from here on
    opened.moves("n2", 1, is_down=True)
    assert opened.sink.confirmed == seqs
    opened.sent()
    assert comes_back(opened, 2) == [
        "n2 open 2",
        "n2 publish 2: 3 resent",
        "n2 publish 2: 4 5 6",
        "n2 publish 2: 7",
    ]


def test_what_nobody_waits_for_is_sent_in_pieces_of_one_channel(
    opened: EntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one ten thousand would keep the loop for a third of a second, at once they would go as one."""
    monkeypatch.setattr(routes, "UNTRACKED_AT_ONCE", 2)
    other = opened.entry.open_channel(RecordingSink())
    goes_down(opened)
    publishes_without_confirms(opened, 2, 3, 4)
    seqs = [INTERNAL_SEQ_BASE + 1]
    opened.entry.publish(other, QUEUE, [message(1, b"of another", b"origin-2")], seqs)
    publishes_without_confirms(opened, 5)
    assert comes_back(opened, 2)[1:] == [
        "n2 publish 2: 2 3",
        "n2 publish 2: 4",
        "n2 publish 2: of another",
        "n2 publish 2: 5",
    ]


def test_a_channel_that_asked_for_confirms_when_it_went_down_keeps_those(opened: EntryBench) -> None:
    opened.link_breaks("n2")
    seqs = publishes_without_confirms(opened, 2)
    opened.publishes(3)
    opened.moves("n2", 1, is_down=True)
    opened.publishes(4)
    assert opened.sink.confirmed == seqs
    opened.sent()
    assert comes_back(opened, 2) == ["n2 open 2", "n2 publish 2: 2", "n2 publish 2: 3 4"]
    opened.confirms(2, 3, 4)
    assert opened.sink.confirmed == [*seqs, 3, 4]


def test_whoever_waits_for_confirms_waits_for_those_only_up_to_a_bound(
    opened: EntryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DOWN_CREDIT", Credit(CREDIT + 10, CREDIT + 10))
    opened.publishes(*range(2, CREDIT + 2))
    assert opened.sink.waits()
    goes_down(opened)
    assert not opened.sink.waits()
    opened.publishes(*range(CREDIT + 2, CREDIT + 11))
    assert not opened.sink.waits()
    opened.publishes(CREDIT + 11)
    assert opened.sink.waits()
    assert opened.sink.confirmed == []
    comes_back(opened, 2)
    opened.confirms(2, *range(2, CREDIT + 12))
    assert opened.sink.confirmed == list(range(2, CREDIT + 12))


def test_a_queue_that_was_down_before_anybody_here_used_it_stops_nobody(bench: EntryBench) -> None:
    bench.moves("n2", 1, is_down=True)
    seqs = publishes_without_confirms(bench, *range(1, 2 * CREDIT))
    assert not bench.sink.waits()
    assert bench.sink.confirmed == seqs


def test_the_last_words_of_a_master_that_is_declared_down_count_and_give_no_credit(opened: EntryBench) -> None:
    """The link to it still stands, and its confirms hold. Its grants were those of a session that is over."""
    opened.publishes(2, 3, 4)
    opened.moves("n2", 1, is_down=True)
    opened.hears(SessionCredit(QUEUE, 1, opened.channel.channel_id, 3))
    opened.confirms(1, 2, 3)
    assert opened.sink.confirmed == [2, 3]
    opened.entry.check_invariants()
