"""A shared message store on the simulated disk, with a model beside it that is three dicts."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest

from node.errors import StorageError
from node.ids import MsgId
from node.store.disk.disk import Disk
from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedCrashError, SimulatedDisk
from node.store.shared.compaction import hole_filling, merging, relocation
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore
from tests.support.messages import make_message, msg_id_of

STORE_DIRECTORY = "/vhost/msg_store_persistent"


def envelope_of(counter: int, body_bytes: int = 100) -> bytes:
    """Message ``counter``; its body depends on the counter alone, so that nobody else's bytes pass for it."""
    body = random.Random(counter).randbytes(body_bytes)
    return make_message(counter, body=body).envelope()


def shorten_steps(monkeypatch: pytest.MonkeyPatch, step_bytes: int, step_records: int) -> None:
    """Compaction of small files takes many steps, as that of files of 16 MiB does."""
    for module in (relocation, hole_filling, merging):
        monkeypatch.setattr(module, "STEP_BYTES", step_bytes)
        monkeypatch.setattr(module, "STEP_RECORDS", step_records)


class SharedStoreNode:
    """A store through restarts and crashes; ``references`` plays the queue indexes."""

    def __init__(self, config: StoreConfig, disk: SimulatedDisk | None = None) -> None:
        self.config = config
        self.disk = disk or SimulatedDisk()
        self.disk.mkdir_durably(STORE_DIRECTORY)
        #: What the indexes say.
        self.references: Counter[MsgId] = Counter()
        self.envelopes: dict[MsgId, bytes] = {}
        #: Generation in which a message was written; 0 if a stop or a recovery made it durable.
        self.generations: dict[MsgId, int] = {}
        self.start()

    def start(self, may_open_clean: bool = True) -> None:
        self.group_commit = GroupCommit()
        self.store = MessageStore(
            self.open_disk(),
            STORE_DIRECTORY,
            self.group_commit,
            self.config,
            lambda: dict(+self.references),
            may_open_clean=may_open_clean,
        )

    def open_disk(self) -> Disk:
        """What the store sees of the disk."""
        return self.disk

    # -- what queues do

    def write(self, *counters: int, body_bytes: int = 100) -> None:
        items = [(msg_id_of(counter), envelope_of(counter, body_bytes)) for counter in counters]
        generation = self.group_commit.open_generation
        self.store.write_batch(items)
        for msg_id, envelope in items:
            if not self.references[msg_id]:
                self.envelopes[msg_id] = envelope
                self.generations[msg_id] = generation
        self.references.update(msg_id for msg_id, _ in items)

    def release(self, *counters: int) -> None:
        msg_ids = [msg_id_of(counter) for counter in counters]
        self.references.subtract(msg_ids)
        self.store.release_many(msg_ids)

    def sync(self) -> bool:
        """One round; false if there was nothing to do. Raises `StorageError` after telling the group commit."""
        sync_round = self.group_commit.begin()
        if sync_round is None:
            return False
        try:
            sync_round.run()
        except StorageError as error:
            self.group_commit.fail(sync_round, error)
            raise
        self.group_commit.complete(sync_round)
        return True

    def compact(self) -> int:
        """Maintain and sync until nothing is left to do; returns the number of steps."""
        steps = 0
        idle = 0
        # Looking at a file takes steps that nobody sees.
        while idle < 100:
            before = self.store.status()
            self.store.maintain()
            idle = idle + 1 if not self.sync() and self.store.status() == before else 0
            steps += 1
            assert steps < 100_000, "compaction comes to an end"
        return steps

    # -- what happens to them

    def twin(self) -> SharedStoreNode:
        """The same on a disk of its own. Its store is still ours: crash it and start it."""
        other = copy.copy(self)
        other.disk = self.disk.twin()
        return other

    def stop(self) -> None:
        self.store.close()
        self.generations = dict.fromkeys(self.live(), 0)

    def crash(self, style: CrashStyle, seed: int) -> None:
        """Lose power and start again; what was not durable is forgotten by the indexes if the store has lost it."""
        durable = self.durable()
        self.disk.crash(style, random.Random(seed))
        self.start()
        self.go_on(durable)

    def crash_while_starting(self, style: CrashStyle, seed: int, after: int) -> None:
        """Lose power, and again in the ``after``-th operation of the start, if it has so many."""
        durable = self.durable()
        self.disk.crash(style, random.Random(seed))
        self.disk.crash_after = after
        with suppress(SimulatedCrashError):
            self.start()
        self.disk.crash(style, random.Random(seed + 1))
        self.start()
        self.go_on(durable)

    def go_on(self, durable: set[MsgId]) -> None:
        """The indexes forget what the store has lost. ``durable`` must be there."""
        self.check_survivors(durable)
        for msg_id in list(self.live()):
            if not self.store.contains(msg_id):
                del self.references[msg_id]
        self.generations = dict.fromkeys(self.live(), 0)

    # -- what must be true

    def live(self) -> Iterator[MsgId]:
        return (msg_id for msg_id, count in self.references.items() if count > 0)

    def durable(self) -> set[MsgId]:
        """Live messages that no crash may take."""
        done = self.group_commit.durable_generation
        return {msg_id for msg_id in self.live() if self.generations[msg_id] <= done}

    def files(self) -> list[str]:
        return self.disk.list(STORE_DIRECTORY)

    def check(self) -> None:
        """The store holds exactly what the model holds."""
        self.store.check_invariants()
        live = list(self.live())
        assert self.store.read_many(live) == [self.envelopes[msg_id] for msg_id in live]
        assert self.store.status().messages == len(live)
        for msg_id in self.envelopes:
            assert self.store.references_of(msg_id) == max(0, self.references[msg_id])

    def check_survivors(self, durable: Iterable[MsgId]) -> None:
        """After a crash: all that was durable, nothing that was never written, and no talk of damage."""
        store = self.store
        store.check_invariants()
        assert store.recovery.corrupt == []
        for msg_id in durable:
            assert store.contains(msg_id), f"{msg_id.hex()} was durable and is lost"
        survivors = [msg_id for msg_id in self.live() if store.contains(msg_id)]
        assert store.read_many(survivors) == [self.envelopes[msg_id] for msg_id in survivors]
        assert all(store.references_of(msg_id) == self.references[msg_id] for msg_id in survivors)
        assert store.status().messages == len(survivors), "nothing is invented"

    def check_every_crash(self, seed: int) -> None:
        """Crash copies of the disk in every style; one of them once more, behind what its recovery wrote."""
        durable = self.durable()
        for number, style in enumerate(CrashStyle):
            twin = self.twin()
            twin.disk.crash(style, random.Random(seed))
            twin.start()
            twin.check_survivors(durable)
            if seed % len(CrashStyle) == number:
                twin.store.write_batch([(msg_id_of(1 << 40), envelope_of(1 << 40))])
                twin.disk.crash(style, random.Random(seed + 1))
                twin.start()
                twin.check_survivors(durable)
