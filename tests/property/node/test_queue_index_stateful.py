"""An index of either version against a model that is a dictionary, through clean restarts and crashes.

Thresholds are shrunk: 8 entries a segment, a journal of 12 records, so that a few steps fill segments, carry journals
over and delete both. `tests.support.index_driver` has the model and says what must hold after a crash. A version joins
by a subclass that names its `IndexKind`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from node.store.disk.simulated import CrashStyle, SimulatedCrashError
from tests.support.index_driver import V1, V2, IndexDriver, IndexKind
from tests.support.state_machines import run_machine


class QueueIndexMachine(RuleBasedStateMachine):
    """See the module text."""

    kind: ClassVar[IndexKind]
    #: Of all machines in this process.
    steps_run: ClassVar[int] = 0

    @initialize()
    def begin(self) -> None:
        self.driver = IndexDriver(self.kind)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.check()

    @invariant()
    def count_step(self) -> None:
        QueueIndexMachine.steps_run += 1

    def some(self, data: st.DataObject) -> list[int]:
        """Some positions of live messages, ascending."""
        return sorted(data.draw(st.sets(st.sampled_from(sorted(self.driver.live)), min_size=1, max_size=10)))

    @rule(count=st.integers(1, 9), big=st.booleans(), persistent=st.sampled_from([True, True, True, False]))
    def publish(self, count: int, big: bool, persistent: bool) -> None:
        self.driver.publish(count, big=big, persistent=persistent)

    @rule(gap=st.integers(1, 20))
    def skip_positions(self, gap: int) -> None:
        self.driver.next_seq_id += gap

    @rule(data=st.data(), big=st.booleans())
    def page_out_late(self, data: st.DataObject, big: bool) -> None:
        """A transient message of an earlier position comes to disk."""
        taken = self.driver.used if self.kind.overwrites else self.driver.live
        free = [seq_id for seq_id in range(self.driver.next_seq_id) if seq_id not in taken]
        if free:
            seq_id = data.draw(st.sampled_from(free))
            self.driver.publish_at({seq_id: self.driver.message(big=big, persistent=False)})

    @precondition(lambda self: self.driver.live)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        self.driver.settle(self.some(data))

    @precondition(lambda self: self.driver.live)
    @rule(count=st.integers(1, 12))
    def settle_oldest(self, count: int) -> None:
        self.driver.settle(sorted(self.driver.live)[:count])

    @precondition(lambda self: self.driver.live and not self.kind.overwrites)
    @rule(data=st.data())
    def use_positions_again(self, data: st.DataObject) -> None:
        """A mirror whose tail is replaced."""
        seq_ids = self.some(data)
        self.driver.settle(seq_ids)
        self.driver.publish_at({seq_id: self.driver.message(big=bool(seq_id & 1)) for seq_id in seq_ids})

    @rule(first=st.integers(0, 60), size=st.integers(0, 60), data=st.data())
    def settle_range(self, first: int, size: int, data: st.DataObject) -> None:
        keeps_some = bool(self.driver.live) and data.draw(st.booleans())
        keep = self.some(data) if keeps_some else []
        self.driver.settle_range(first, first + size, keep)

    @rule()
    def flush(self) -> None:
        self.driver.flush()

    @rule(
        count=st.integers(1, 9),
        room_bytes=st.integers(0, 700),
        share=st.sampled_from([4, 4, 3, 2, 1, 0]),
        settled=st.sampled_from(["nothing", "half", "all", "range"]),
    )
    def publish_on_a_full_disk(self, count: int, room_bytes: int, share: int, settled: str) -> None:
        """And settle it, perhaps, before it could be written."""
        driver = self.driver
        first = driver.next_seq_id
        driver.publish(count, big=room_bytes % 3 == 0)
        if driver.flush_without_room(room_bytes, lambda longest: longest * share // 4):
            return
        if settled == "range":
            driver.settle_range(first, first + count)
        elif settled != "nothing":
            driver.settle(range(first, first + count, 1 + (settled == "half")))

    @rule()
    def sync(self) -> None:
        self.driver.sync()

    @rule()
    def check(self) -> None:
        self.driver.check()

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule(style=st.sampled_from(CrashStyle), seed=st.integers(0, 1000))
    def crash(self, style: CrashStyle, seed: int) -> None:
        self.driver.crash(style, seed)
        self.driver.after_recovery(self.driver.verify_crash())

    @rule(operations=st.none() | st.integers(1, 12))
    def die(self, operations: int | None) -> None:
        """The process only, perhaps in the middle of something. What it then finds survives a crash."""
        if operations is not None:
            self.run_into_crash(operations)
        self.driver.die()
        self.driver.after_recovery(self.driver.verify_crash())

    @rule(style=st.sampled_from(CrashStyle), seed=st.integers(0, 1000), operations=st.integers(1, 12))
    def crash_soon(self, style: CrashStyle, seed: int, operations: int) -> None:
        """In the middle of a flush, a sync or a clean stop; and once more while recovering."""
        self.run_into_crash(operations)
        if not self.kind.overwrites:
            self.driver.crash_twice(style, seed, operations)
        else:
            self.driver.crash(style, seed)
        self.driver.after_recovery(self.driver.verify_crash())

    def run_into_crash(self, operations: int) -> None:
        driver = self.driver
        driver.disk.crash_after = operations
        with suppress(SimulatedCrashError):
            driver.flush()
            driver.sync()
            driver.index.close(driver.next_seq_id)


class QueueIndexV1Machine(QueueIndexMachine):
    kind = V1


class QueueIndexV2Machine(QueueIndexMachine):
    kind = V2


MACHINES = [QueueIndexV1Machine, QueueIndexV2Machine]


@pytest.mark.parametrize("machine", MACHINES)
def test_it_agrees_with_the_model(machine: type[QueueIndexMachine]) -> None:
    run_machine(machine, examples=20, steps=50)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", MACHINES)
def test_it_agrees_with_the_model_for_long(machine: type[QueueIndexMachine]) -> None:
    """About twenty seconds."""
    before = QueueIndexMachine.steps_run
    run_machine(machine, examples=1200, steps=60)
    assert QueueIndexMachine.steps_run - before > 20_000
