"""`VariableQueue` on the simulated disk against a model that is a dict, through clean restarts and crashes.

The thresholds are shrunk so that a few messages fill segments (8 entries), roll and compact shared store files (512
bytes), and leave memory (a target of a few messages, or lazy mode, switched on and off); the index is converted from
one version to the other and back. Promises checked after a
crash: every confirmed persistent message that was not settled is there, in its place, with the same bytes; nothing is
there that was never published; everything is flagged; no position of a confirmed message is used again.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar

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

import node.queues.digests
import node.queues.local_replica
from node.ids import SeqId
from node.message import Message
from node.queues.backing_queue import Delivery, Publication
from node.queues.replica import SeqRange
from node.store.disk.simulated import CrashStyle, SimulatedCrashError
from node.store.shared.config import StoreConfig
from tests.support.digests import expected_digests
from tests.support.messages import make_message, msg_id_of
from tests.support.state_machines import run_machine
from tests.support.stores import StoreHarness

#: Body sizes: embedded, embedded, shared store.
SIZES = (0, 20, 90)


class VariableQueueMachine(RuleBasedStateMachine):
    #: Of all machines in this process.
    steps_run: ClassVar[int] = 0

    @initialize(
        durable=st.sampled_from([True, True, True, False]),
        version=st.sampled_from([1, 2]),
        digest_entries=st.sampled_from([4, 16]),
    )
    def begin(self, durable: bool, version: int, digest_entries: int) -> None:
        self.digest_entries = digest_entries
        self.patches = pytest.MonkeyPatch()
        for module in (node.queues.digests, node.queues.local_replica):
            self.patches.setattr(module, "DIGEST_SEGMENT_ENTRIES", digest_entries)
        self.harness = StoreHarness(
            StoreConfig(
                embed_below_bytes=60,
                file_size_limit_bytes=512,
                v1_segment_entries=8,
                v1_journal_entries_max=12,
                v2_segment_entries=8,
                io_batch_messages=2,
                queue_version=version,
                confirm_after_sync=True,
            ),
            durable=durable,
        )
        self.durable = durable
        self.queue = self.harness.open_queue()
        self.counter = 0
        self.ready: dict[int, Message] = {}
        self.unacked: dict[int, Message] = {}
        #: Everything ever published and persistent, by position.
        self.published: dict[int, list[Message]] = {}
        #: Persistent messages whose confirm came while they were live.
        self.confirmed: dict[int, Message] = {}
        #: Positions of persistent messages that were confirmed at any time.
        self.used: set[int] = set()
        #: Tokens not yet returned.
        self.waiting: set[int] = set()
        self.next_deliver = 0

    def teardown(self) -> None:
        if hasattr(self, "patches"):
            self.patches.undo()

    # -- helpers

    def message(self, size: int, persistent: bool) -> Message:
        self.counter += 1
        return make_message(self.counter, body=self.counter.to_bytes(4, "big") + bytes(size), persistent=persistent)

    def note(self, seq_id: int, message: Message) -> None:
        if message.persistent and self.durable:
            self.published.setdefault(seq_id, []).append(message)

    def settled(self, seq_id: int) -> None:
        self.confirmed.pop(seq_id, None)

    def drain(self) -> None:
        live = {m.msg_id: s for place in (self.ready, self.unacked) for s, m in place.items()}
        for token in self.queue.drain_confirmed():
            assert token in self.waiting, "a token comes back once"
            assert isinstance(token, int)
            self.waiting.remove(token)
            seq_id = live.get(msg_id_of(token))
            if seq_id is not None:
                message = self.ready.get(seq_id) or self.unacked[seq_id]
                if message.persistent and self.durable:
                    self.confirmed[seq_id] = message
                    self.used.add(seq_id)

    def check_deliveries(self, deliveries: list[Delivery], expected: list[int], place: dict[int, Message]) -> None:
        assert [delivery.seq_id for delivery in deliveries] == expected
        for delivery in deliveries:
            assert delivery.message.envelope() == place[delivery.seq_id].envelope()
            assert delivery.redelivered == (delivery.seq_id < self.next_deliver)

    # -- rules

    @rule(batch=st.lists(st.tuples(st.sampled_from(SIZES), st.booleans()), min_size=1, max_size=6))
    def publish(self, batch: list[tuple[int, bool]]) -> None:
        first = self.queue.next_seq_id
        made = [self.message(size, persistent) for size, persistent in batch]
        tokens = list(range(self.counter - len(made) + 1, self.counter + 1))
        self.waiting.update(tokens)
        if not self.ready and len(made) == 1:
            deliveries = self.queue.publish_delivered([Publication(made[0], tokens[0])])
            assert [d.seq_id for d in deliveries] == [first]
            self.unacked[first] = made[0]
            self.next_deliver = max(self.next_deliver, first + 1)
        else:
            self.queue.publish([Publication(m, t) for m, t in zip(made, tokens, strict=True)])
            self.ready.update(enumerate(made, first))
        for seq_id, message in enumerate(made, first):
            self.note(seq_id, message)

    @rule(count=st.integers(1, 20))
    def skip(self, count: int) -> None:
        self.queue.advance_next_seq_id(SeqId(self.queue.next_seq_id + count))

    @rule(ram_count=st.none() | st.integers(0, 6))
    def want_in_memory(self, ram_count: int | None) -> None:
        """As the memory monitor does, rates left aside."""
        self.queue.engine.paging.target_ram_count = ram_count
        while self.queue.engine.paging.page_out():
            pass

    @rule(is_lazy=st.booleans())
    def switch_mode(self, is_lazy: bool) -> None:
        self.queue.set_lazy(is_lazy)

    @rule(version=st.sampled_from([None, 1, 2]))
    def switch_version(self, version: int | None) -> None:
        """Steps of the conversion come with `maintain`."""
        self.queue.set_index_version(version)

    @rule()
    def maintain(self) -> None:
        self.queue.engine.maintain()
        if self.queue.wants_warming:
            self.queue.warm(8)

    @rule(data=st.data(), count=st.integers(1, 4), size=st.sampled_from(SIZES), persistent=st.booleans())
    def insert(self, data: Any, count: int, size: int, persistent: bool) -> None:
        """At free positions near what is live, as a sync batch does."""
        top = self.queue.next_seq_id
        candidates = [s for s in range(max(0, top - 12), top + 3) if s not in self.ready and s not in self.unacked]
        chosen = sorted(data.draw(st.sets(st.sampled_from(candidates), min_size=1, max_size=count)))
        made = [self.message(size, persistent) for _ in chosen]
        seq_ids = [SeqId(s) for s in chosen]
        self.queue.insert(seq_ids, made, [m.envelope() for m in made])
        for seq_id, message in zip(chosen, made, strict=True):
            self.ready[seq_id] = message
            self.note(seq_id, message)

    @rule(count=st.integers(1, 8), ack_required=st.booleans())
    def fetch(self, count: int, ack_required: bool) -> None:
        expected = sorted(self.ready)[:count]
        deliveries = self.queue.fetch(count, ack_required)
        self.check_deliveries(deliveries, expected, self.ready)
        for seq_id in expected:
            message = self.ready.pop(seq_id)
            if ack_required:
                self.unacked[seq_id] = message
            else:
                self.settled(seq_id)
            self.next_deliver = max(self.next_deliver, seq_id + 1)

    @rule(count=st.integers(1, 3))
    def drop(self, count: int) -> None:
        expected = sorted(self.ready)[:count]
        assert self.queue.drop(count) == expected
        for seq_id in expected:
            del self.ready[seq_id]
            self.settled(seq_id)

    @rule(data=st.data(), requeue=st.booleans())
    @precondition(lambda self: self.unacked)
    def settle_or_requeue(self, data: Any, requeue: bool) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.unacked)), min_size=1, unique=True))
        operation = self.queue.requeue if requeue else self.queue.ack
        assert operation([SeqId(s) for s in chosen]) == len(chosen)
        for seq_id in chosen:
            message = self.unacked.pop(seq_id)
            if requeue:
                self.ready[seq_id] = message
            else:
                self.settled(seq_id)

    @rule()
    def purge(self) -> None:
        assert self.queue.purge() == len(self.ready)
        for seq_id in self.ready:
            self.settled(seq_id)
        self.ready.clear()

    @rule(data=st.data(), width=st.integers(1, 6))
    @precondition(lambda self: self.ready)
    def remove(self, data: Any, width: int) -> None:
        first = data.draw(st.sampled_from(sorted(self.ready)))
        gone = [s for s in (*self.ready, *self.unacked) if first <= s < first + width]
        assert self.queue.remove([SeqRange(SeqId(first), SeqId(first + width))]) == len(gone)
        for seq_id in gone:
            self.ready.pop(seq_id, None)
            self.unacked.pop(seq_id, None)
            self.settled(seq_id)

    @rule()
    def flush(self) -> None:
        self.harness.store.flush_writes()

    @rule()
    def sync(self) -> None:
        self.harness.sync()
        self.drain()

    @rule()
    def read_all(self) -> None:
        wanted = sorted((*self.ready, *self.unacked))
        expected = [(s, (self.ready.get(s) or self.unacked[s]).envelope()) for s in wanted]
        assert self.queue.read([SeqId(s) for s in wanted]) == expected

    @rule()
    def restart(self) -> None:
        next_seq_id = self.queue.next_seq_id
        self.drain()
        self.queue = self.harness.restart()
        assert self.queue.next_seq_id == (next_seq_id if self.durable else 0)
        report = self.queue.recovery_report
        if not self.durable:
            assert report is None
            self.next_deliver = 0
            self.adopt({})
            return
        assert report is not None
        assert report.clean
        assert report.torn == report.torn_acks == report.corrupt == 0
        live = {s: m for s, m in sorted((*self.ready.items(), *self.unacked.items())) if m.persistent}
        assert report.messages == len(live)
        self.adopt(live)

    @rule(style=st.sampled_from(CrashStyle), seed=st.integers(0, 1000), after=st.none() | st.integers(1, 12))
    def crash(self, style: CrashStyle, seed: int, after: int | None) -> None:
        """At rest, or in the middle of a round of writes."""
        self.drain()
        if after is not None:
            self.harness.disk.crash_after = after
            # A flush does not raise, whatever it has met; whoever dies in one hears no more of his disk.
            with suppress(SimulatedCrashError):
                self.harness.sync()
                self.harness.sync()
            if self.harness.disk.crash_after > 0:
                self.drain()
        self.queue = self.harness.crash(style, seed)
        report = self.queue.recovery_report
        if report is None:
            assert not self.confirmed, "the directory of a queue with confirmed messages is there"
            self.next_deliver = 0
            self.adopt({})
            return
        assert report.corrupt == 0, report.problems
        recovered = {int(s): e for s, e in self.queue.read([SeqId(s) for s in range_of(self.queue)])}
        for seq_id, message in self.confirmed.items():
            assert recovered.get(seq_id) == message.envelope(), f"confirmed message at {seq_id} is lost"
        live: dict[int, Message] = {}
        for seq_id, envelope in recovered.items():
            candidates = [m for m in self.published.get(seq_id, []) if m.envelope() == envelope]
            assert candidates, f"nothing like the message at {seq_id} was ever published there"
            live[seq_id] = candidates[0]
        assert all(seq_id < self.queue.next_seq_id for seq_id in self.used)
        self.next_deliver = self.queue.next_seq_id
        assert report.redelivered == len(live)
        self.adopt(live)

    def adopt(self, live: dict[int, Message]) -> None:
        self.ready, self.unacked = live, {}
        self.waiting.clear()
        # Recovery synced what it found.
        self.confirmed = dict(live)

    # -- checked after every rule

    @invariant()
    def agrees(self) -> None:
        VariableQueueMachine.steps_run += 1
        if not hasattr(self, "queue"):
            return
        self.harness.store.check_invariants()
        self.harness.group_commit.check_invariants()
        assert (self.queue.ready, self.queue.unacked) == (len(self.ready), len(self.unacked))
        live = {**self.ready, **self.unacked}
        assert self.queue.first_live_seq_id == min(live, default=self.queue.next_seq_id)
        expected = expected_digests({seq_id: message.msg_id for seq_id, message in live.items()}, self.digest_entries)
        assert self.queue.live_counts() == [(digest.segment, digest.entries) for digest in expected]
        assert range_of(self.queue) == sorted(live)
        assert self.queue.digests() == expected


def range_of(queue: Any) -> list[int]:
    """Positions that are live, by what the replica interface tells."""
    return [seq_id for segment, _ in queue.live_counts() for seq_id in queue.live_positions(segment)]


VariableQueueMachine.TestCase.settings = settings(
    max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestVariableQueueStateful = VariableQueueMachine.TestCase


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_model_holds_for_long() -> None:
    """About a minute."""
    before = VariableQueueMachine.steps_run
    run_machine(VariableQueueMachine, examples=800, steps=50)
    assert VariableQueueMachine.steps_run - before > 20_000
