"""A queue whose index is of version 1, of version 2, or on its way from one to the other."""

from __future__ import annotations

import random

import pytest

from node.queues.local_replica import LocalReplica
from node.store.disk.simulated import CrashStyle, SimulatedFile
from node.store.shared.config import StoreConfig
from tests.support.backing_queue_contract import counters
from tests.support.messages import make_message, publications
from tests.support.stores import QUEUE_ID, QUEUE_NAME, StoreHarness


def harness_of(version: int) -> StoreHarness:
    return StoreHarness(
        StoreConfig(
            embed_below_bytes=100,
            queue_version=version,
            v1_segment_entries=64,
            v1_journal_entries_max=50,
            v2_segment_entries=64,
            io_batch_messages=16,
        )
    )


def suffixes(harness: StoreHarness) -> set[str]:
    names = harness.disk.list(harness.queue_directory)
    return {name.rpartition(".")[2] for name in names if name.rpartition(".")[0].isdigit()}


def version_of(queue: LocalReplica) -> object:
    return queue.backing_queue_status()["version"]


def convert(harness: StoreHarness, queue: LocalReplica, steps: int = 1000) -> None:
    """So many steps, with a round of the group commit after each."""
    while steps and queue.engine.maintain():
        steps -= 1
        harness.sync()


@pytest.mark.parametrize(("version", "expected"), [(1, {"jif"}), (2, {"qi", "qs"})])
def test_the_configured_version_is_that_of_a_queue_that_asks_for_none(version: int, expected: set[str]) -> None:
    harness = harness_of(version)
    queue = harness.open_queue()
    queue.publish(publications(1, 10))
    harness.sync()
    assert suffixes(harness) == expected
    assert version_of(queue) == version


@pytest.mark.parametrize(("version", "suffix"), [(1, ".idx"), (2, ".qs")])
def test_while_a_segment_is_recovered_the_system_fetches_the_next(
    version: int, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = harness_of(version)
    queue = harness.open_queue()
    for first in range(1, 64 * 6, 32):
        queue.publish(publications(first, 32))
        harness.sync()
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    harness.start()
    happened: list[tuple[str, str]] = []
    read = SimulatedFile.pread

    def watched_read(file: SimulatedFile, size: int, offset: int) -> bytes:
        happened.append(("read", file.path.rpartition("/")[2]))
        return read(file, size, offset)

    def announced(file: SimulatedFile, size: int, offset: int) -> None:
        assert (size, offset) == (file.size, 0)
        happened.append(("fetch", file.path.rpartition("/")[2]))

    monkeypatch.setattr(SimulatedFile, "pread", watched_read)
    monkeypatch.setattr(SimulatedFile, "will_read", announced)
    harness.open_queue()
    of_segments = [each for each in dict.fromkeys(happened) if each[1].endswith(suffix)]
    expected = [[("fetch", f"{number}{suffix}"), ("read", f"{number - 1}{suffix}")] for number in range(1, 5)]
    assert of_segments[: 2 * len(expected)] == [each for pair in expected for each in pair]


@pytest.mark.parametrize("version", [1, 2])
def test_a_clean_stop_keeps_a_persistent_message_among_transient_ones_that_is_not_written_yet(version: int) -> None:
    """A mirror got a position again in the turn in which its node stops."""
    harness = harness_of(version)
    queue = harness.open_queue()
    queue.set_lazy(True)
    queue.publish(publications(1, 10, persistent=False))
    harness.store.flush_writes()
    position = queue.fetch(5, ack_required=True)[4].seq_id
    queue.ack([position])
    harness.store.flush_writes()
    message = make_message(50)
    queue.insert([position], [message], [message.envelope()])
    assert counters(harness.restart().fetch(99, True)) == [50]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
def test_a_clean_stop_at_any_time_of_a_conversion_is_followed_by_a_clean_start(old: int, new: int, steps: int) -> None:
    harness = harness_of(old)
    queue = harness.open_queue()
    queue.publish(publications(1, 1200))
    queue.publish(publications(1201, 20, body=b"big" * 50))
    harness.sync()
    before = queue.status().memory_bytes
    queue.set_index_version(new)
    convert(harness, queue, steps)
    assert queue.engine.is_converting == (steps < 1000)
    in_both = queue.status().memory_bytes - before
    assert (in_both > 512 * 200) == (steps in (2, 3)), "what is in both indexes is known by entry"
    queue.ack([each.seq_id for each in queue.fetch(100, ack_required=True)])
    queue = harness.restart()
    report = queue.recovery_report
    assert report is not None
    assert (report.clean, report.messages) == (True, 1120)
    if steps in (0, 1000):
        assert version_of(queue) == (new if steps else old)
    assert counters(queue.fetch(9999, True)) == list(range(101, 1221))


@pytest.mark.parametrize("version", [1, 2])
def test_a_crash_leaves_nothing_of_transient_messages_on_disk_and_says_how_many_they_were(version: int) -> None:
    harness = harness_of(version)
    queue = harness.open_queue()
    queue.set_lazy(True)
    queue.publish(publications(1, 5))
    queue.publish(publications(6, 4, persistent=False))
    queue.publish(publications(10, 2, persistent=False, body=bytes(500)))
    queue.publish(publications(12, 1))
    harness.sync()
    queue = harness.crash()
    report = queue.recovery_report
    assert report is not None
    assert (report.messages, report.transient, report.torn, report.corrupt) == (6, 6, 0, 0)
    assert report.body_bytes == sum(len(make_message(counter).body) for counter in (1, 2, 3, 4, 5, 12))
    assert counters(queue.fetch(99, True)) == [1, 2, 3, 4, 5, 12]


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
def test_a_queue_without_files_is_of_another_version_at_once(old: int, new: int) -> None:
    harness = harness_of(old)
    queue = harness.open_queue(durable=False)
    queue.publish(publications(1, 10))
    queue.set_index_version(new)
    convert(harness, queue, steps=1)
    assert version_of(queue) == new
    assert not queue.engine.is_converting
    assert not harness.disk.exists(harness.queue_directory)
    queue.set_ram_duration_target(0.0)
    queue.engine.maintain()
    harness.sync()
    assert suffixes(harness) == ({"jif"} if new == 1 else {"qi", "qs"})
    assert counters(queue.fetch(99, True)) == list(range(1, 11))


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
def test_a_queue_is_converted_while_it_works(old: int, new: int) -> None:
    harness = harness_of(old)
    queue = harness.open_queue()
    queue.publish(publications(1, 1000))
    queue.publish(publications(1001, 100, body=b"big" * 50))
    queue.set_ram_duration_target(0.0)
    queue.engine.paging.page_out()
    harness.sync()
    assert len(queue.drain_confirmed()) == 1100
    queue.set_index_version(new)
    convert(harness, queue, steps=2)
    assert suffixes(harness) > {"qi"}, "both versions are there"
    taken = queue.fetch(50, ack_required=True)
    queue.publish(publications(1101, 10))
    queue.ack([delivery.seq_id for delivery in taken[:25]])
    queue.check_invariants()
    convert(harness, queue)
    queue.check_invariants()
    queue.requeue_all()
    assert version_of(queue) == new
    assert suffixes(harness) <= ({"qi", "qs"} if new == 2 else {"idx", "jif"})
    assert counters(queue.fetch(2000, ack_required=True)) == list(range(26, 1111))


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
def test_a_conversion_goes_on_after_a_stop_in_its_middle(old: int, new: int, crash: bool) -> None:
    harness = harness_of(old)
    queue = harness.open_queue()
    queue.publish(publications(1, 2000))
    harness.sync()
    queue.set_index_version(new)
    convert(harness, queue, steps=3)
    queue.fetch(100, ack_required=False)
    harness.sync()
    if crash:
        harness.disk.crash(CrashStyle.DROP, random.Random(0))
        harness.start()
    else:
        harness.store.close()
        harness.start()
    queue = harness.store.open_queue(QUEUE_ID, QUEUE_NAME, durable=True, version=new)
    assert queue.engine.wants_maintenance
    convert(harness, queue)
    queue.check_invariants()
    assert version_of(queue) == new
    found = counters(queue.fetch(3000, ack_required=True))
    assert found[-1900:] == list(range(101, 2001))
    assert crash or len(found) == 1900, "an ack that was not synced may be undone by a crash only"


def test_a_conversion_does_not_wait_for_a_queue_to_be_idle() -> None:
    """Something may always be collected when it has its turn."""
    harness = harness_of(1)
    queue = harness.open_queue()
    queue.publish(publications(1, 100))
    harness.sync()
    queue.set_index_version(2)
    for counter in range(101, 400):
        queue.publish(publications(counter, 1))
        queue.engine.maintain()
        harness.sync()
    assert version_of(queue) == 2


def test_a_conversion_back_begins_when_the_one_before_is_through() -> None:
    harness = harness_of(2)
    queue = harness.open_queue()
    queue.publish(publications(1, 2000))
    harness.sync()
    queue.set_index_version(1)
    convert(harness, queue, steps=2)
    assert suffixes(harness) > {"qi", "qs"}, "the first is under way"
    queue.set_index_version(2)
    convert(harness, queue)
    assert version_of(queue) == 2
    assert suffixes(harness) == {"qi", "qs"}
    assert counters(queue.fetch(3000, ack_required=True)) == list(range(1, 2001))


@pytest.mark.parametrize(("old", "new"), [(1, 2), (2, 1)])
def test_a_conversion_waits_while_the_disk_is_full(old: int, new: int) -> None:
    harness = harness_of(old)
    queue = harness.open_queue()
    queue.publish(publications(1, 500))
    harness.sync()
    queue.set_index_version(new)
    for room_bytes in (0, 500, 2_000, 4_000):
        harness.disk.capacity_bytes = harness.disk.used_bytes + room_bytes
        convert(harness, queue, steps=3)
        queue.check_invariants()
    assert not queue.engine.has_failed
    harness.disk.capacity_bytes = 1 << 40
    convert(harness, queue)
    queue.check_invariants()
    assert version_of(queue) == new
    assert suffixes(harness) == ({"qi", "qs"} if new == 2 else {"idx", "jif"})
    assert counters(queue.fetch(1000, ack_required=True)) == list(range(1, 501))


@pytest.mark.parametrize(("old", "new", "suffix"), [(1, 2, ".qi"), (2, 1, ".jif")])
def test_a_conversion_that_fails_asks_for_no_further_step(old: int, new: int, suffix: str) -> None:
    harness = harness_of(old)
    queue = harness.open_queue()
    queue.publish(publications(1, 500))
    harness.sync()
    queue.set_index_version(new)
    harness.disk.fail_writes = suffix
    has_more = True
    while not queue.engine.has_failed:
        assert has_more
        has_more = queue.engine.maintain()
    assert not has_more
    assert not queue.engine.wants_maintenance


@pytest.mark.parametrize("version", [1, 2])
def test_a_conversion_that_has_copied_nothing_may_be_turned_round_by_a_clean_stop(version: int) -> None:
    """Each index gets its own terms back, though what was new is old now."""
    harness = StoreHarness(StoreConfig(queue_version=version, v1_segment_entries=8, v2_segment_entries=8))
    queue = harness.open_queue()
    queue.publish(publications(1, 1))
    harness.sync()
    queue.set_index_version(3 - version)
    queue.engine.maintain()
    queue.publish(publications(2, 1))
    queue = harness.restart()
    assert queue.recovery_report is not None
    assert queue.recovery_report.clean
    assert counters(queue.fetch(9, True)) == [1, 2]
    queue.check_invariants()
