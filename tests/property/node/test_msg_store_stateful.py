"""`MessageStore` against a model that is a dict of references: both kinds of compaction, stops, crashes, a full disk.

Files are 512 bytes, so that a few messages fill one. After a crash every durable message that is still referenced is
there with the same bytes, nothing else is, and no damage is reported; after a flipped bit nothing wrong is served, and
what is missing was reported.
"""

from __future__ import annotations

import random
from contextlib import suppress
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from node.errors import DiskFullError
from node.store.disk.simulated import CrashStyle
from node.store.shared.compaction import hole_filling
from node.store.shared.config import StoreConfig
from tests.support.messages import msg_id_of
from tests.support.shared_store import SharedStoreNode, shorten_steps
from tests.support.state_machines import run_machine

FILE_BYTES = 512
#: The third is copied by pieces, the fourth fills a file alone.
BODY_SIZES = (10, 60, 120, 500)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read, waited for, copied, and cut in several steps, as one of 16 MiB is."""
    shorten_steps(monkeypatch, step_bytes=128, step_records=4)
    monkeypatch.setattr(hole_filling, "CUT_BYTES", 100)


class MessageStoreMachine(RuleBasedStateMachine):
    #: Of all machines in this process.
    steps_run: ClassVar[int] = 0

    @initialize(kind=st.sampled_from(["holes", "merge"]))
    def begin(self, kind: str) -> None:
        self.node = SharedStoreNode(StoreConfig(file_size_limit_bytes=FILE_BYTES, compaction=kind))
        self.counter = 0
        #: Referenced messages; one with two references twice.
        self.live: list[int] = []

    @rule(count=st.integers(1, 6), size=st.sampled_from(BODY_SIZES))
    def write(self, count: int, size: int) -> None:
        counters = list(range(self.counter + 1, self.counter + count + 1))
        self.counter += count
        self.node.write(*counters, body_bytes=size)
        self.live += counters

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def write_to_another_queue(self, data: st.DataObject) -> None:
        counter = data.draw(st.sampled_from(self.live))
        self.node.store.write_batch([(msg_id_of(counter), self.node.envelopes[msg_id_of(counter)])])
        self.node.references[msg_id_of(counter)] += 1
        self.live.append(counter)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, min(6, len(self.live))))
        for _ in range(count):
            at = data.draw(st.integers(0, len(self.live) - 1))
            self.node.release(self.live.pop(at))

    @rule(count=st.integers(8, 24), kept=st.integers(1, 8), seed=st.integers(0, 1000), steps=st.integers(0, 40))
    def most_of_some_files_is_settled(self, count: int, kept: int, seed: int, steps: int) -> None:
        """Which gives compaction something to do, or more to do than it knew of."""
        chance = random.Random(seed)
        first = len(self.live)
        for _ in range(count):
            self.write(1, chance.choice(BODY_SIZES[:3]))
        self.node.sync()
        chance.shuffle(self.live)
        for _ in range(len(self.live) - min(first, 4) - kept):
            self.node.release(self.live.pop())
        self.maintain(steps, synced=True)

    @rule()
    def sync(self) -> None:
        self.node.sync()

    @rule(steps=st.integers(1, 40), synced=st.booleans())
    def maintain(self, steps: int, synced: bool) -> None:
        for _ in range(steps):
            self.node.store.maintain()
            if synced:
                self.node.sync()

    @rule(steps=st.integers(1, 12))
    def maintain_on_a_full_disk(self, steps: int) -> None:
        disk = self.node.disk
        disk.capacity_bytes, capacity_bytes = disk.used_bytes, disk.capacity_bytes
        for _ in range(steps):
            self.node.store.maintain()
        disk.capacity_bytes = capacity_bytes

    @rule(
        count=st.integers(1, 6),
        size=st.sampled_from(BODY_SIZES),
        room_bytes=st.integers(0, 1500),
        share=st.sampled_from([0, 1, 2, 3, 4]),
    )
    def write_on_a_full_disk(self, count: int, size: int, room_bytes: int, share: int) -> None:
        disk = self.node.disk
        disk.capacity_bytes, capacity_bytes = disk.used_bytes + room_bytes, disk.capacity_bytes
        disk.prefix_of, usual = lambda longest: longest * share // 4, disk.prefix_of
        with suppress(DiskFullError):
            self.write(count, size)
        disk.capacity_bytes, disk.prefix_of = capacity_bytes, usual

    @rule()
    def the_process_is_killed(self) -> None:
        """Everything written is there."""
        durable = self.node.durable()
        self.node.start(may_open_clean=False)
        assert self.node.store.recovery.torn == 0
        self.node.go_on(durable)
        survivors = set(self.node.live())
        self.live = [counter for counter in self.live if msg_id_of(counter) in survivors]

    @rule(may_open_clean=st.booleans())
    def restart(self, may_open_clean: bool) -> None:
        self.node.stop()
        self.node.start(may_open_clean)
        assert self.node.store.recovery.clean == may_open_clean
        assert (self.node.store.recovery.torn, self.node.store.recovery.corrupt) == (0, [])

    @rule(style=st.sampled_from(CrashStyle), seed=st.integers(0, 1000))
    def crash(self, style: CrashStyle, seed: int) -> None:
        self.node.crash(style, seed)
        survivors = set(self.node.live())
        self.live = [counter for counter in self.live if msg_id_of(counter) in survivors]

    @rule(style=st.sampled_from(CrashStyle), seed=st.integers(0, 1000), after=st.integers(1, 30))
    def crash_while_starting(self, style: CrashStyle, seed: int, after: int) -> None:
        self.node.crash_while_starting(style, seed, after)
        survivors = set(self.node.live())
        self.live = [counter for counter in self.live if msg_id_of(counter) in survivors]

    @rule(place=st.integers(0, 1 << 30), bit=st.integers(0, 7))
    def one_bit_is_flipped_in_a_twin(self, place: int, bit: int) -> None:
        """In the state a power failure leaves; the store itself goes on unharmed."""
        twin = self.node.twin()
        twin.disk.crash(CrashStyle.DROP, random.Random(place))
        files = {path: len(data) for path, data in twin.disk.snapshot().items() if path.endswith(".rdq") and data}
        if not files:
            return
        path = sorted(files)[place % len(files)]
        durable = self.node.durable()
        twin.disk.flip_bit(path, place % files[path], bit)
        twin.start()
        missing = [msg_id for msg_id in durable if not twin.store.contains(msg_id)]
        assert not missing or twin.store.recovery.corrupt
        for msg_id in durable - set(missing):
            assert twin.store.read(msg_id) == self.node.envelopes[msg_id]

    @invariant()
    def same_as_the_model(self) -> None:
        MessageStoreMachine.steps_run += 1
        if hasattr(self, "node"):
            self.node.check()

    def teardown(self) -> None:
        if hasattr(self, "node"):
            self.node.crash(CrashStyle.TEAR, self.counter)


TestMessageStore = MessageStoreMachine.TestCase
TestMessageStore.settings = settings(
    max_examples=15, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_model_holds_for_long() -> None:
    """About a minute."""
    before = MessageStoreMachine.steps_run
    run_machine(MessageStoreMachine, examples=800, steps=50)
    assert MessageStoreMachine.steps_run - before > 20_000
