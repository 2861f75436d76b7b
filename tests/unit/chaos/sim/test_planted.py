"""Defects planted in the product, one at a time: the simulator must say so, each time in the words that fit.

Each is a mistake that a version of the product could have. Most of them no client notices as long as the master lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pamqp import commands

from chaos.sim import release_watch
from chaos.sim.release_watch import ReleaseWatch
from chaos.sim.run import Outcome, run_schedule
from chaos.sim.schedule import Schedule
from cluster.metadata.commands import MirrorSynchronised, MoveMaster
from cluster.metadata.events import Applied
from cluster.metadata.state import MetadataState
from cluster.mirroring.confirms import ConfirmLedger
from cluster.mirroring.master import MirroredQueue
from cluster.mirroring.mirror import MirrorReplica
from cluster.runtime.queue_proposals import QueueProposals
from cluster.runtime.resource_alarms import ResourceAlarms
from node.amqp import channel
from node.amqp.channel import ChannelMachine
from node.amqp.channel_events import PublishToBroker
from node.broker.broker import Broker
from node.broker.definitions import Definitions
from node.errors import StorageError
from node.ids import ChannelKey, SeqId
from node.pieces import Pieces
from node.queues.events import Deliver
from node.queues.queue_process import QueueProcess
from node.queues.replica import SeqRange
from node.store.disk.simulated import SimulatedFile
from node.store.shared.config import StoreConfig
from node.topology.records import QueueRecord
from tests.support.simulated import publish, schedule

MANUAL = {"ha-mode": "all", "ha-sync-mode": "manual", "ha-promote-on-failure": "when-synced"}


def found(tried: Schedule) -> str:
    """The first violation, as it is said."""
    outcome: Outcome = run_schedule(tried)
    return str(outcome.violations[0]) if outcome.violations else ""


#: Messages that stay in the queue, mirrors that restart.
BACKLOG = schedule(publish(100), (500, "kill", "n2"), (1000, "start", "n2"), publish(1500), consumers=0)


def test_without_a_planted_defect_nothing_is_found() -> None:
    assert found(BACKLOG) == ""


# --- what the copies hold


def test_a_mirror_that_loses_a_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    insert = MirrorReplica._insert

    def lose_one(self: MirrorReplica, seq_ids: Sequence[int], packed: bytes) -> Any:
        messages = insert(self, seq_ids, packed)
        if 2 in seq_ids:
            self.local.remove([SeqRange(SeqId(2), SeqId(3))])
        return messages

    monkeypatch.setattr(MirrorReplica, "_insert", lose_one)
    assert "the copies on" in found(BACKLOG)


def test_a_mirror_that_keeps_other_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests are made of identities; the bytes are compared as well."""
    insert = MirrorReplica._insert

    def spoil(self: MirrorReplica, seq_ids: Sequence[int], packed: bytes) -> Any:
        return insert(self, seq_ids, packed.replace(b"....", b",,,,"))

    monkeypatch.setattr(MirrorReplica, "_insert", spoil)
    assert "differ in bytes" in found(BACKLOG)


def test_a_mirror_that_does_not_hear_of_acknowledgements_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MirroredQueue, "_note_settled", lambda _self, _seq_ids: None)
    assert "the copies on" in found(schedule(publish(100), (200, "consume", 0, 0)))


# --- where they are


def test_a_mirror_that_does_not_come_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: MetadataState, queue: QueueRecord, only_mode: str | None = None, **_how: bool) -> None:
        """Mirrors are chosen when a queue is declared, and never again."""

    monkeypatch.setattr(MetadataState, "_place", forget)
    lost_for_long = schedule(publish(100), (500, "stop", "n2"), (2500, "start", "n2"), consumers=0)
    assert "its policy wants" in found(lost_for_long)


def test_a_mirror_that_is_never_called_synchronised_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    say = QueueProposals._say

    def keep_to_itself(self: QueueProposals, command: Any) -> None:
        if not isinstance(command, MirrorSynchronised):
            say(self, command)

    monkeypatch.setattr(QueueProposals, "_say", keep_to_itself)
    assert "of its mirrors" in found(BACKLOG)


@pytest.mark.parametrize("is_watched", [True, False])
def test_metadata_that_differ_are_found(monkeypatch: pytest.MonkeyPatch, is_watched: bool) -> None:
    """Where the members change, while the run goes on; and wherever it was, in the end."""
    apply_in_pieces = MetadataState.apply_in_pieces
    states: list[MetadataState] = []

    def depend_on_the_node(
        self: MetadataState, index: int, request: Any, payload: bytes | None = None
    ) -> Pieces[Applied]:
        if self not in states:
            states.append(self)
        applied = yield from apply_in_pieces(self, index, request, payload)
        if self is states[-1] and self.policies:
            self._matches.restore(())
        return applied

    monkeypatch.setattr(MetadataState, "apply_in_pieces", depend_on_the_node)
    monkeypatch.setattr(release_watch, "COMPARED_EVERY", 1)
    if is_watched:
        assert "has other metadata than others behind entry" in found(BACKLOG)
    else:
        monkeypatch.setattr(ReleaseWatch, "applied", lambda *_args: None)
        assert "different metadata" in found(BACKLOG)


def test_a_queue_that_outlives_its_connection_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(_self: object) -> None:
        """The queues stay."""

    monkeypatch.setattr(Definitions, "close", forget)
    monkeypatch.setattr(Broker, "delete_abandoned_queues", forget)
    assert "should be gone" in found(schedule((100, "guest", 0, "exclusive"), guests=1))


def test_an_alarm_that_does_not_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = ResourceAlarms._measure

    def stick(self: ResourceAlarms, now_ms: int) -> None:
        if not self.registry.own:
            measure(self, now_ms)

    monkeypatch.setattr(ResourceAlarms, "_measure", stick)
    short = schedule((100, "memory_alarm", "n1"), (800, "memory_alarm_end", "n1"))
    assert "knows of an alarm" in found(short)


# --- service


def test_a_queue_that_delivers_to_nobody_new_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    drain = QueueProcess.drain

    def swallow(self: QueueProcess) -> Any:
        return [each for each in drain(self) if not (isinstance(each, Deliver) and each.consumer_tag == "probe")]

    monkeypatch.setattr(QueueProcess, "drain", swallow)
    assert found(BACKLOG).startswith("not served")


def test_a_queue_that_forgets_whom_it_served_before_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes anew, as the probes of the end do, is served."""
    dispatch = QueueProcess._dispatch
    tired: dict[QueueProcess, int] = {}

    def serve_newcomers(self: QueueProcess, count_max: int) -> None:
        if tired.get(self) != len(self._consumers):
            dispatch(self, count_max)
        if self.unacked:
            tired[self] = len(self._consumers)

    monkeypatch.setattr(QueueProcess, "_dispatch", serve_newcomers)
    one_by_one = schedule((10, "consume", 0, 0), publish(500), prefetch=1)
    assert found(one_by_one).startswith("stuck: 4 messages in q0, and c0 would take some")


def test_masters_that_change_without_a_reason_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that never comes to rest serves, between two changes."""
    tick = QueueProposals.readmit

    def wander(self: QueueProposals) -> None:
        for record in list(self._metadata.state.masterships.values()):
            if record.master == self._node and record.synchronised:
                self.propose(MoveMaster(record.queue_id, record.epoch, record.synchronised[0]))
        tick(self)

    monkeypatch.setattr(QueueProposals, "readmit", wander)
    monkeypatch.setattr("cluster.runtime.housekeeping.READMIT_EVERY_TICKS", 10)
    assert found(BACKLOG).startswith(("stuck", "unsteady"))


# --- what may be lost


def test_a_mirror_that_lacks_something_takes_over_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `when-synced` never; and clients may lose nothing by it that time."""
    monkeypatch.setattr(MetadataState, "_is_loss_allowed", lambda _self, _queue, _reason: True)
    # Both mirrors come back while the master serves, and are not filled; then the master goes.
    steps = [publish(100), (500, "kill", "n1"), (1500, "start", "n1"), publish(1000)]
    steps += [(2500, "kill", "n2"), publish(3000), (3500, "start", "n2"), (5000, "kill", "n3")]
    alone = schedule(*steps, policy=MANUAL, consumers=0, lasts_ms=8_000)
    assert found(alone).startswith("promotion: ")


@pytest.mark.slow
def test_confirms_that_come_before_the_sync_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one of some seeds: three disks must lose the same. Where the configuration says so, that may go."""
    original = StoreConfig.__init__

    def hasty(self: StoreConfig, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **(kwargs | {"confirm_after_sync": False}))

    monkeypatch.setattr(StoreConfig, "__init__", hasty)
    steps: list[tuple[Any, ...]] = [publish(at_ms, 3) for at_ms in range(100, 900, 20)]
    steps += [(901, "power", "n1", "n2", "n3"), *((1000, "start", node) for node in ("n1", "n2", "n3"))]
    slow: dict[str, Any] = {"sync_ms": (50, 100), "consumers": 0, "lasts_ms": 4000}
    assert any(found(replace(schedule(*steps, **slow), seed=seed)).startswith("lost") for seed in range(1, 9))
    assert found(schedule(*steps, is_flush=True, **slow)) == ""


def test_confirms_that_wait_for_no_mirror_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harm is done in the time between master and mirrors, which no fault at a time of its own ever hit."""
    release = ConfirmLedger.release
    monkeypatch.setattr(ConfirmLedger, "release", lambda self, *_: release(self, float("inf"), float("inf")))
    steps = [(500, "ambush", 0, "confirm", "power", 1000), publish(510)]
    trap = schedule(*steps, consumers=0, lasts_ms=8000)
    # The publisher must have come to the master itself: to any other node a confirm is as slow as the copies are.
    assert any(found(replace(trap, seed=seed)).startswith("lost") for seed in range(17, 24))


# --- repetitions


def test_a_settled_message_that_comes_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flagged as redelivered, so that a client which takes no notice of acknowledgements is content."""
    ack = QueueProcess.ack
    forgotten: list[SeqId] = []

    def forget_one(self: QueueProcess, key: ChannelKey, seq_ids: Sequence[SeqId]) -> None:
        if not forgotten and seq_ids:
            forgotten.extend(seq_ids[:1])
            self._holdings.release(key, seq_ids[:1])
            self._backing_queue.requeue(seq_ids[:1])
            seq_ids = seq_ids[1:]
        ack(self, key, seq_ids)

    monkeypatch.setattr(QueueProcess, "ack", forget_one)
    assert "resurrected" in kinds(schedule(publish(100, 3), (200, "consume", 0, 0), prefetch=1))


def kinds(tried: Schedule) -> list[str]:
    return [violation.kind for violation in run_schedule(tried).violations]


def test_a_transaction_that_is_not_rolled_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: ChannelMachine, _method: object) -> None:
        ended = self._end_transaction()
        seqs = self.confirms.issue(len(ended.publishes))
        requests = [each._replace(publish_seq=seq) for each, seq in zip(ended.publishes, seqs, strict=True)]
        self.effects.append(PublishToBroker(requests))
        self._send(commands.Tx.RollbackOk)

    monkeypatch.setitem(channel._HANDLERS, commands.Tx.Rollback, commit)
    rolled_back = schedule((100, "transaction", 0, 0, 4, 100, 1, 0), transactors=1)
    assert found(rolled_back).startswith("refused_but_delivered")


def test_an_acknowledgement_that_is_not_rolled_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    rolled_back = schedule(publish(100, 1), (500, "get_in_transaction", 0, 0), consumers=0)
    assert found(rolled_back) == ""

    def settle(self: ChannelMachine, _method: object) -> None:
        transaction = self._transaction
        assert transaction is not None
        self._commit_at_once(transaction)
        self._end_transaction()
        self._send(commands.Tx.RollbackOk)

    monkeypatch.setitem(channel._HANDLERS, commands.Tx.Rollback, settle)
    assert found(rolled_back).startswith("vanished")


# --- deletions and purges


def test_a_queue_that_is_deleted_as_empty_and_was_not_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = QueueProcess.seal_for_delete
    full = schedule(publish(100, 3), (500, "delete_if", 0, "empty"), consumers=0)
    assert found(full) == "", "it is refused"
    monkeypatch.setattr(QueueProcess, "seal_for_delete", lambda self, if_unused, if_empty: seal(self, if_unused, False))
    assert found(full).startswith("lost")


def test_a_queue_that_is_deleted_as_empty_may_take_what_channels_hold() -> None:
    held = schedule(publish(100, 3), (200, "consume", 0, 0), (900, "delete_if", 0, "empty"), hold_percent=100)
    outcome = run_schedule(held)
    assert outcome.violations == []
    assert "an empty queue was deleted on that condition" in outcome.sightings


def test_a_purge_that_takes_what_a_channel_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    purge = QueueProcess.purge
    held = schedule(publish(100, 3), (200, "consume", 0, 0), (900, "purge", 0), hold_percent=100)
    assert found(held) == ""

    def take_more(self: QueueProcess) -> int:
        for key, holding in self._holdings.by_channel.items():
            self.ack(key, list(holding.held))
        return purge(self)

    monkeypatch.setattr(QueueProcess, "purge", take_more)
    assert found(held).startswith("vanished")


def test_a_get_without_acknowledgement_that_takes_two_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    get = QueueProcess.get
    got = schedule(publish(100, 3), (900, "get_no_ack", 0), consumers=0)
    assert found(got) == ""

    def take_two(self: QueueProcess, key: ChannelKey, no_ack: bool) -> Any:
        if no_ack:
            get(self, key, no_ack)
        return get(self, key, no_ack)

    monkeypatch.setattr(QueueProcess, "get", take_two)
    assert found(got).startswith("lost")


# --- nodes


def test_a_disk_is_blamed_only_after_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that fails by itself is a defect, also in a world where disks may fail."""
    sync = SimulatedFile.sync
    syncs = 0

    def fail_once(self: SimulatedFile) -> None:
        nonlocal syncs
        syncs += 1
        if syncs == 100:
            raise StorageError("a mistake of ours")
        sync(self)

    monkeypatch.setattr(SimulatedFile, "sync", fail_once)
    assert found(schedule(publish(100), publish(500), publish(900), faults=("fail_sync", "full_disk")))


def test_a_refused_publish_that_is_delivered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_and_keep(self: QueueProcess, publications: Iterable[Any]) -> None:
        kept = list(publications)
        self._outgoing.rejected.extend(each.token for each in kept if each.token is not None)
        self._backing_queue.publish([each._replace(token=None) for each in kept])

    monkeypatch.setattr(QueueProcess, "_refuse", refuse_and_keep)
    full = schedule(publish(100, 9), overflow="reject-publish", length_max=5, consumers=0)
    assert found(full)


@pytest.mark.slow
def test_what_is_published_again_after_a_reset_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent again over a new session, and not recognised."""
    monkeypatch.setattr(MirroredQueue, "is_duplicate", lambda _self, _msg_id: False)
    steps = [publish(at_ms, 3) for at_ms in range(100, 1500, 10)]
    steps += [(at_ms, "reset", "n1", "n2", "both", 50) for at_ms in range(150, 1500, 100)]
    steps += [(at_ms, "reset", "n1", "n3", "both", 50) for at_ms in range(170, 1500, 100)]
    steps += [(at_ms, "reset", "n3", "n2", "both", 50) for at_ms in range(190, 1500, 100)]
    assert "are there twice" in found(schedule(*steps, consumers=0, sync_ms=(5, 20)))
