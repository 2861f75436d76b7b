"""When a publish is confirmed, and what the ledger keeps until then."""

from __future__ import annotations

from dataclasses import replace
from weakref import ref

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.mirroring import progress
from cluster.mirroring.confirms import ConfirmLedger, HeldToken
from cluster.mirroring.master import MirroredQueue, MirroringSettings
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.reports import ReportSynchronised
from node.ids import Epoch
from node.queues.backing_queue import Publication
from tests.support.messages import make_message, msg_id_of, publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE, Pair
from tests.support.stores import StoreHarness


def test_the_confirms_of_a_turn_are_held_by_one_entry_per_kind_however_often_it_publishes() -> None:
    """What mirrors cost in memory must not grow with the messages that wait for them."""
    ledger = ConfirmLedger(durable_queue=True)
    tokens = []
    for counter in range(1, 100, 2):
        tokens += ledger.hold(publications(counter, 1), turn=1)
        tokens += ledger.hold(publications(counter + 1, 1, persistent=False), turn=1)
    batches = {id(held.token.batch) for held in tokens if isinstance(held.token, HeldToken)}
    assert len(tokens) == 100
    assert len(batches) == 2


def test_a_transient_publish_does_not_wait_for_the_disk_behind_a_persistent_one() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    pair.to_mirror()
    pair.master.publish(publications(2, 1, persistent=False))
    pair.exchange()
    assert pair.master.drain_confirmed() == [2]
    pair.quiet()
    assert pair.master.drain_confirmed() == [1]


def test_a_message_that_is_not_stored_does_not_wait_for_the_disk_behind_one_that_is() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    pair.to_mirror()
    pair.master.discard(publications(2, 1))
    assert pair.master.drain_confirmed() == []
    pair.exchange()
    assert pair.master.drain_confirmed() == [2]


def test_a_message_that_is_not_stored_waits_for_the_mirrors_like_one_that_is() -> None:
    """They must know it when it is sent again. What they say of the turn before says nothing of it."""
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1, persistent=False))
    pair.to_mirror()
    pair.master.discard(publications(2, 1))
    pair.to_master()
    assert pair.master.drain_confirmed() == [1]
    pair.exchange()
    assert pair.master.drain_confirmed() == [2]


def test_in_a_queue_that_is_not_durable_nothing_waits_for_disks() -> None:
    disks = StoreHarness(durable=False), StoreHarness(durable=False)
    record = MastershipRecord(QUEUE, Epoch(1), N1, (N2,), (N2,))
    pair = Pair()
    pair.master = MirroredQueue(N1, disks[0].open_queue(), record, MirroringSettings(is_durable=False))
    pair.mirror = MirrorReplica(QUEUE, disks[1].open_queue(), Epoch(1), is_durable=False)
    pair.up().exchange()
    for counter in (1, 2):
        pair.master.publish(publications(counter, 1))
        pair.exchange()
        assert pair.master.drain_confirmed() == [counter]
        assert [each[1:] for each in pair.master.mirrors_in_flight()] == [(0, 0, 0)]


def test_the_confirms_of_many_turns_may_come_together_while_a_disk_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "UNDURABLE_FRAMES_MAX", 2)
    pair = Pair().up().quiet()
    for counter in range(1, 6):
        pair.master.publish(publications(counter, 1))
        pair.exchange(1)
    pair.master_disk.sync()
    assert pair.master.drain_confirmed() == []
    pair.mirror_disk.sync()
    pair.to_master()
    assert pair.master.drain_confirmed() == [1, 2, 3, 4, 5]


def test_a_persistent_publish_waits_for_the_disks_of_both() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 2))
    pair.master_disk.sync()
    pair.exchange()
    assert pair.master.drain_confirmed() == []
    pair.mirror_disk.sync()
    pair.exchange()
    assert pair.master.drain_confirmed() == [1, 2]
    assert pair.master.drain_confirmed() == []


def test_a_transient_publish_waits_until_the_mirror_has_applied_it() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1, persistent=False))
    assert pair.master.drain_confirmed() == []
    pair.to_mirror()
    assert pair.master.drain_confirmed() == []
    pair.to_master()
    assert pair.master.drain_confirmed() == [1]


def test_a_synchronised_mirror_without_a_link_holds_confirms_until_the_record_drops_it() -> None:
    pair = Pair()
    pair.master.publish(publications(1, 1))
    pair.master_disk.sync()
    pair.master.take_messages()
    assert pair.master.drain_confirmed() == []
    pair.master.set_record(replace(pair.record, mirrors=(), synchronised=()))
    assert pair.master.drain_confirmed() == [1]


def test_an_unsynchronised_mirror_holds_only_what_was_published_after_its_attach() -> None:
    pair = Pair(synchronised=False)
    pair.master.publish(publications(1, 1))
    pair.master_disk.sync()
    pair.master.take_messages()
    assert pair.master.drain_confirmed() == [1], "nobody was ever attached"
    pair.master.publish(publications(2, 1))
    pair.up().exchange()
    pair.master_disk.sync()
    assert pair.master.drain_confirmed() == [2], "published before the attach"
    pair.master.publish(publications(3, 1))
    pair.sync()
    pair.master.take_messages()
    assert pair.master.drain_confirmed() == []


def test_a_mirror_that_was_reported_holds_confirms_though_the_record_does_not_show_it_yet() -> None:
    """The command may commit at any time, so from the report on the mirror counts as synchronised."""
    pair = Pair(synchronised=False).up().quiet()
    assert ReportSynchronised(N2) in pair.master.take_reports()
    pair.master.mirror_link_down(N2)
    pair.master.publish(publications(1, 1))
    pair.master_disk.sync()
    pair.master.take_messages()
    pair.master.mirror_link_up(N2)
    pair.to_mirror()
    assert pair.master.drain_confirmed() == [], "a new attach alone must not release it: the mirror lacks the message"
    pair.quiet()
    assert pair.master.drain_confirmed() == [1]
    assert pair.mirror_local.digests() == pair.master_local.digests()


def test_bare_tokens_from_before_the_first_mirror_wait_for_a_required_one() -> None:
    disk = StoreHarness()
    master = MirroredQueue(N1, disk.open_queue(), MastershipRecord(QUEUE, Epoch(1), N1))
    master.publish(publications(1, 1))
    master.set_record(MastershipRecord(QUEUE, Epoch(1), N1, (N2,), (N2,)))
    disk.sync()
    assert master.drain_confirmed() == []
    master.set_record(MastershipRecord(QUEUE, Epoch(1), N1))
    assert master.drain_confirmed() == [1]


def test_a_message_settled_before_its_confirm_is_confirmed_once() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    [delivery] = pair.master.fetch(1, ack_required=True)
    assert pair.master.ack([delivery.seq_id]) == 1
    pair.quiet()
    assert pair.master.drain_confirmed() == [1]
    pair.quiet()
    assert pair.master.drain_confirmed() == []
    assert pair.mirror_local.digests() == []


def test_a_repetition_waits_for_the_mirror_to_have_the_message() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    pair.master.confirm_when_safe(msg_id_of(1), "again")
    pair.master_disk.sync()
    assert pair.master.drain_confirmed() == []
    pair.quiet()
    assert pair.master.drain_confirmed() == [1, "again"]


class Token:
    """Of a publisher, who may be gone."""


def test_what_is_confirmed_is_not_kept() -> None:
    """A queue may see no publish for days after the burst whose tokens it has returned."""
    ledger = ConfirmLedger(durable_queue=True)
    ledger.hold_unwrapped(1)
    tokens = [Token(), Token()]
    bare, wrapped = tokens
    [publication] = ledger.hold([Publication(make_message(1), wrapped)], turn=1)
    assert ledger.take([bare, publication.token]) == []
    ledger.release(1, 1)
    assert ledger.take([]) == tokens
    kept = [ref(token) for token in tokens]
    del bare, wrapped, tokens, publication
    assert [token() for token in kept] == [None, None]


def test_a_mirror_that_nobody_requires_has_nothing_to_do_as_it_comes() -> None:
    """It is waited for from then on. What was published before need not be there before publishers may go on."""
    record = MastershipRecord(QUEUE, Epoch(1), N1, (N2, N3), (N3,))
    master = MirroredQueue(N1, StoreHarness().open_queue(), record)
    master.publish(publications(1, 3))
    master.mirror_link_up(N2)
    master.take_messages()
    assert {each.node: each.unapplied for each in master.mirrors_in_flight()} == {N2: 0, N3: 3}
    master.publish(publications(4, 1))
    assert {each.node: each.unapplied for each in master.mirrors_in_flight()} == {N2: 1, N3: 4}
