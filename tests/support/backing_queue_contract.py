"""What every `BackingQueue` promises, as one suite. A test module subclasses it and gives the fixture ``make_queue``.

``make_queue()`` returns a fresh durable queue and ``settle_disk``, which makes everything written so far as safe as the
queue promises (a round of group commit; for a mirrored queue also the mirrors' answers). Invariants are checked
after every test by the suite itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from node.ids import OriginId, SeqId
from node.queues.backing_queue import BackingQueue, Delivery, Publication
from tests.support.messages import make_message, msg_id_of, publications

MakeQueue = Callable[[], tuple[BackingQueue, Callable[[], None]]]


def counters(deliveries: list[Delivery]) -> list[int]:
    """Which messages of `tests.support.messages` these are."""
    return [int.from_bytes(delivery.message.msg_id[8:], "big") for delivery in deliveries]


class BackingQueueContract:
    """The suite."""

    @pytest.fixture
    def opened(self, make_queue: MakeQueue) -> Iterator[tuple[BackingQueue, Callable[[], None]]]:
        queue, settle_disk = make_queue()
        yield queue, settle_disk
        queue.check_invariants()

    @pytest.fixture
    def queue(self, opened: tuple[BackingQueue, Callable[[], None]]) -> BackingQueue:
        return opened[0]

    @pytest.fixture
    def settle_disk(self, opened: tuple[BackingQueue, Callable[[], None]]) -> Callable[[], None]:
        return opened[1]

    def test_first_in_first_out(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 3))
        queue.publish(publications(4, 2))
        assert queue.ready == 5
        assert counters(queue.fetch(2, ack_required=True)) == [1, 2]
        assert counters(queue.fetch(10, ack_required=True)) == [3, 4, 5]
        assert queue.fetch(1, ack_required=True) == []
        assert (queue.ready, queue.unacked) == (0, 5)

    def test_seq_ids_ascend_and_bytes_are_kept(self, queue: BackingQueue) -> None:
        sent = publications(1, 4)
        queue.publish(sent)
        deliveries = queue.fetch(4, ack_required=True)
        seq_ids = [delivery.seq_id for delivery in deliveries]
        assert seq_ids == list(range(seq_ids[0], seq_ids[0] + 4))
        assert [delivery.message for delivery in deliveries] == [publication.message for publication in sent]

    def test_a_persistent_message_is_confirmed_after_the_disk_only(
        self, queue: BackingQueue, settle_disk: Callable[[], None]
    ) -> None:
        queue.publish(publications(1, 3))
        assert queue.drain_confirmed() == []
        settle_disk()
        assert sorted(queue.drain_confirmed()) == [1, 2, 3]  # type: ignore[type-var]
        settle_disk()
        assert queue.drain_confirmed() == []

    def test_a_transient_message_is_confirmed(self, queue: BackingQueue, settle_disk: Callable[[], None]) -> None:
        queue.publish(publications(1, 2, persistent=False))
        settle_disk()
        assert queue.drain_confirmed() == [1, 2]

    def test_a_message_settled_before_the_disk_is_confirmed_once(
        self, queue: BackingQueue, settle_disk: Callable[[], None]
    ) -> None:
        queue.publish(publications(1, 2))
        [delivery] = queue.fetch(1, ack_required=True)
        queue.ack([delivery.seq_id])
        confirmed = queue.drain_confirmed()
        settle_disk()
        confirmed += queue.drain_confirmed()
        assert sorted(confirmed) == [1, 2]  # type: ignore[type-var]

    def test_a_publication_without_token_is_not_confirmed(
        self, queue: BackingQueue, settle_disk: Callable[[], None]
    ) -> None:
        queue.publish(publications(1, 2, tokens=False))
        settle_disk()
        assert queue.drain_confirmed() == []

    def test_ack_counts_the_known_and_skips_the_unknown(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 3))
        first, second, _ = queue.fetch(3, ack_required=True)
        assert queue.ack([first.seq_id, SeqId(1 << 40), second.seq_id]) == 2
        assert queue.ack([first.seq_id]) == 0
        assert (queue.ready, queue.unacked) == (0, 1)

    def test_a_ready_message_cannot_be_acked(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 1))
        [delivery] = queue.fetch(1, ack_required=True)
        queue.requeue([delivery.seq_id])
        assert queue.ack([delivery.seq_id]) == 0
        assert queue.ready == 1

    def test_requeued_messages_return_to_their_places_flagged(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 6))
        taken = queue.fetch(4, ack_required=True)
        assert not any(delivery.redelivered for delivery in taken)
        assert queue.requeue([taken[3].seq_id, taken[1].seq_id]) == 2
        again = queue.fetch(10, ack_required=True)
        assert counters(again) == [2, 4, 5, 6]
        assert [delivery.redelivered for delivery in again] == [True, True, False, False]

    def test_requeue_behind_what_is_ready_again(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 5))
        taken = queue.fetch(5, ack_required=True)
        queue.requeue([taken[0].seq_id, taken[3].seq_id])
        queue.requeue([taken[2].seq_id])
        assert counters(queue.fetch(5, ack_required=True)) == [1, 3, 4]

    def test_requeue_all(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 3))
        queue.fetch(2, ack_required=True)
        assert queue.requeue_all() == 2
        assert (queue.ready, queue.unacked) == (3, 0)
        assert [delivery.redelivered for delivery in queue.fetch(3, ack_required=True)] == [True, True, False]

    def test_fetch_without_ack_forgets(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 2))
        [delivery] = queue.fetch(1, ack_required=False)
        assert (queue.ready, queue.unacked) == (1, 0)
        assert queue.ack([delivery.seq_id]) == 0

    def test_publish_delivered_is_unacked_and_not_redelivered(self, queue: BackingQueue) -> None:
        [first, second] = queue.publish_delivered(publications(1, 2))
        assert counters([first, second]) == [1, 2]
        assert not first.redelivered
        assert (queue.ready, queue.unacked) == (0, 2)
        queue.requeue([first.seq_id])
        [again] = queue.fetch(2, ack_required=True)
        assert counters([again]) == [1]
        assert again.redelivered

    def test_discard_confirms_and_remembers(self, queue: BackingQueue, settle_disk: Callable[[], None]) -> None:
        queue.discard(publications(1, 2))
        settle_disk()
        assert queue.drain_confirmed() == [1, 2]
        assert queue.ready == queue.unacked == 0
        assert queue.is_duplicate(msg_id_of(2))

    def test_what_is_here_can_be_flagged_as_delivered_before(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 2))
        queue.flag_redelivered()
        queue.publish(publications(3, 1))
        assert [delivery.redelivered for delivery in queue.fetch(3, ack_required=True)] == [True, True, False]

    def test_drop_takes_from_the_head(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 5))
        (first, *_) = dropped = queue.drop(3)
        assert dropped == [first, first + 1, first + 2]
        assert (queue.ready, queue.unacked) == (2, 0)
        assert counters(queue.fetch(1, ack_required=False)) == [4]
        assert queue.drop(3) == [first + 4]
        assert queue.drop(3) == []

    def test_drop_stops_behind_the_message_that_makes_up_the_bytes(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 5, body=b"1234"))
        assert len(queue.drop(9, 5)) == 2
        assert len(queue.drop(2, 99)) == 2
        assert queue.status().ready_bytes == 4

    def test_fetch_stops_behind_the_message_that_makes_up_the_bytes(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 6, body=b"1234"))
        assert counters(queue.fetch(9, True, 1)) == [1], "one at least"
        assert counters(queue.fetch(9, True, 8)) == [2, 3]
        assert counters(queue.fetch(1, True, 8)) == [4]
        assert counters(queue.fetch(9, True, 99)) == [5, 6]
        assert (queue.status().ready_bytes, queue.status().unacked_bytes) == (0, 24)

    def test_purge_leaves_the_unacked(self, queue: BackingQueue, settle_disk: Callable[[], None]) -> None:
        queue.publish(publications(1, 5))
        taken = queue.fetch(2, ack_required=True)
        assert queue.purge() == 3
        assert (queue.ready, queue.unacked) == (0, 2)
        settle_disk()
        assert sorted(queue.drain_confirmed()) == [1, 2, 3, 4, 5]  # type: ignore[type-var]
        queue.requeue([taken[1].seq_id])
        queue.publish(publications(6, 1))
        assert counters(queue.fetch(5, ack_required=True)) == [2, 6]

    def test_duplicates_are_known_by_origin(self, queue: BackingQueue) -> None:
        other = OriginId(b"origin-2")
        assert not queue.is_duplicate(msg_id_of(1))
        queue.publish(publications(1, 3))
        assert queue.is_duplicate(msg_id_of(1))
        assert queue.is_duplicate(msg_id_of(3))
        assert not queue.is_duplicate(msg_id_of(4))
        assert not queue.is_duplicate(msg_id_of(1, other))
        queue.publish([Publication(make_message(7, origin=other))])
        assert queue.is_duplicate(msg_id_of(7, other))

    def test_a_duplicate_is_confirmed_not_before_its_first_copy(
        self, queue: BackingQueue, settle_disk: Callable[[], None]
    ) -> None:
        queue.publish(publications(1, 1))
        queue.confirm_when_safe(msg_id_of(1), "again")
        assert queue.drain_confirmed() == []
        settle_disk()
        assert set(queue.drain_confirmed()) == {1, "again"}

    def test_a_duplicate_of_a_settled_message_is_confirmed(
        self, queue: BackingQueue, settle_disk: Callable[[], None]
    ) -> None:
        queue.publish(publications(1, 1))
        queue.ack([delivery.seq_id for delivery in queue.fetch(1, ack_required=True)])
        settle_disk()
        queue.drain_confirmed()
        queue.confirm_when_safe(msg_id_of(1), "again")
        assert queue.drain_confirmed() == ["again"]

    def test_status_counts(self, queue: BackingQueue) -> None:
        queue.publish(publications(1, 3, body=b"12345"))
        queue.publish(publications(4, 1, body=b"1", persistent=False))
        queue.fetch(1, ack_required=True)
        status = queue.status()
        assert (status.ready, status.unacked) == (3, 1)
        assert (status.ready_bytes, status.unacked_bytes) == (11, 5)
        assert status.persistent == 3
        assert 1 <= status.in_ram <= 4
        assert status.memory_bytes > 16
