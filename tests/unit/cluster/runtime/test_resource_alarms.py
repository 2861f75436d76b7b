"""A node's alarms from measurement to broker, peers, queues and reports."""

from __future__ import annotations

import logging

import pytest

from cluster.membership.messages import NodeAlarms
from cluster.runtime.resource_alarms import ResourceAlarms
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.alarms.registry import Alarm
from node.errors import DirectoryGoneError, StorageError
from node.ids import NodeName, QueueId
from tests.support.resources import FakePagingQueues, FakeProbe

N1, N2 = NodeName("n1"), NodeName("n2")
TOTAL = 100 * 1024 * 1024
MIB = 1024 * 1024


class Bench:
    """n1 with 100 MiB of memory, of which it may use 40, and must keep 1 MiB of disk free."""

    def __init__(self) -> None:
        self.probe = FakeProbe(used_bytes=10 * MIB)
        self.queues = FakePagingQueues(q1=10.0)
        self.reasons: list[str] = []
        self.said: list[NodeAlarms] = []
        self.now_ms = 0
        self.alarms = ResourceAlarms(N1, TOTAL, MemoryWatermark(0.4), 0.5, DiskFreeLimit(MIB), self.probe, self.queues)
        self.alarms.on_reason = self.reasons.append
        self.alarms.on_own_change = self.said.append
        self.alarms.node_up(N2)

    def tick(self, ms: int = 100) -> None:
        for _ in range(ms // 100):
            self.now_ms += 100
            self.alarms.tick(self.now_ms)
            self.alarms.check_invariants()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_shortage_reaches_the_broker_and_the_peers_and_so_does_its_end(bench: Bench) -> None:
    bench.tick()
    assert (bench.reasons, bench.said) == ([], [])
    bench.probe.used_bytes = 41 * MIB
    bench.tick()
    assert bench.reasons == ["low on memory"]
    bench.probe.used_bytes = 10 * MIB
    bench.tick(1100)
    assert bench.reasons == ["low on memory", ""]
    assert bench.said == [NodeAlarms((Alarm.MEMORY,)), NodeAlarms(())]


def test_the_disk_is_looked_at_when_it_is_time(bench: Bench) -> None:
    bench.probe.free_bytes = 251 * 1_000_000
    bench.tick(2100)
    assert bench.probe.disk_checks == 2, "250 MB above the limit are worth two seconds"
    bench.probe.free_bytes = MIB - 1
    bench.tick(2000)
    assert bench.reasons == ["low on disk"]
    assert bench.alarms.own_alarms() == NodeAlarms((Alarm.DISK,))


def test_a_limit_set_at_run_time_holds_at_once(bench: Bench) -> None:
    bench.tick()
    bench.alarms.set_memory_watermark(MemoryWatermark(0.0), bench.now_ms)
    assert bench.reasons == ["low on memory"]
    bench.alarms.set_disk_limit(DiskFreeLimit(relative=10**6), bench.now_ms)
    assert bench.reasons == ["low on memory", "low on memory & disk"]
    bench.alarms.set_memory_watermark(MemoryWatermark(0.4), bench.now_ms)
    bench.alarms.set_disk_limit(DiskFreeLimit(MIB), bench.now_ms)
    assert bench.reasons[2:] == ["low on disk", ""]
    assert bench.said[-1] == NodeAlarms(())


def test_an_alarm_of_a_peer_blocks_here_until_it_clears_or_the_peer_is_gone(bench: Bench) -> None:
    bench.alarms.receive(N2, NodeAlarms((Alarm.MEMORY,)))
    assert bench.alarms.listing() == [{"resource": "memory", "node": "n2"}]
    bench.alarms.receive(N2, NodeAlarms(()))
    bench.alarms.receive(N2, NodeAlarms((Alarm.DISK,)))
    bench.alarms.link_lost(N2)
    assert bench.reasons == ["low on memory", "", "low on disk"]
    bench.alarms.node_down(N2, is_linked=False)
    assert bench.reasons[3:] == [""]
    assert bench.said == [], "what another node says is not repeated"
    bench.alarms.check_invariants()


def test_the_same_shortage_on_two_nodes_is_one_reason(bench: Bench) -> None:
    bench.alarms.receive(N2, NodeAlarms((Alarm.MEMORY,)))
    bench.alarms.set_memory_watermark(MemoryWatermark(0.0), 0)
    bench.alarms.receive(N2, NodeAlarms(()))
    assert bench.reasons == ["low on memory"]


def test_an_unmeasurable_disk_is_said_once_and_tried_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.probe.failure = StorageError("statvfs of /data failed: Stale file handle (errno 116)")
    bench.tick(25_000)
    assert bench.probe.disk_checks == 3
    bench.probe.failure = None
    with caplog.at_level(logging.INFO):
        bench.tick(10_000)
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "cannot be measured" in text] == [
        "the free space of the disk cannot be measured, so its alarm does not work: "
        "statvfs of /data failed: Stale file handle (errno 116)"
    ]
    assert said[-1] == "the free space of the disk can be measured again"


def test_a_data_directory_that_is_gone_is_no_matter_of_an_alarm(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    gone: list[StorageError] = []
    bench.alarms.on_directory_gone = gone.append
    bench.probe.failure = DirectoryGoneError("data_dir /data was removed")
    bench.tick()
    assert gone == [bench.probe.failure]
    assert not any("cannot be measured" in record.getMessage() for record in caplog.records)


def test_the_log_says_what_happened_and_what_it_means(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.probe.used_bytes = 41 * MIB
    bench.tick()
    bench.probe.used_bytes = 5
    bench.tick(1100)
    assert [record.getMessage() for record in caplog.records] == [
        f"*** MEMORY ALARM raised on n1: {41 * MIB} bytes in use, the limit is {40 * MIB}. "
        "Publishers are blocked on every node until it clears. ***",
        "publishers are blocked on this node: low on memory",
        f"*** MEMORY alarm cleared on n1: 5 bytes in use, the limit is {40 * MIB}. ***",
        "no alarm is left in the cluster: publishers go on",
    ]


def test_queues_page_under_pressure_unless_the_disk_is_short_too(bench: Bench) -> None:
    bench.probe.used_bytes = 20 * MIB
    bench.tick()
    assert bench.queues.targets_s == {QueueId(1): 22.0}
    bench.probe.used_bytes = 41 * MIB
    bench.tick(300)
    assert bench.queues.targets_s == {QueueId(1): 0.0}
    bench.alarms.set_disk_limit(DiskFreeLimit(10**15), bench.now_ms)
    bench.tick(300)
    assert bench.queues.targets_s == {QueueId(1): float("inf")}


def test_freed_memory_goes_back_to_the_system_as_long_as_that_helps(bench: Bench) -> None:
    bench.tick(5000)
    assert bench.probe.returns == 0, "with room enough the allocator keeps what it has"
    bench.probe.used_bytes, bench.probe.returnable_bytes = 50 * MIB, 20 * MIB
    bench.tick()
    assert bench.probe.returns == 1
    assert bench.probe.used_bytes == 30 * MIB
    bench.tick(500)
    assert bench.probe.returns == 2
    bench.tick(20_000)
    assert bench.probe.returns == 2 + 6, "after 1, 2 and then every 4 seconds"
    bench.probe.used_bytes = 5 * MIB
    bench.tick()
    bench.probe.used_bytes = 50 * MIB
    bench.tick(2000)
    assert bench.probe.returns == 8 + 2, "after 0.5 and 1 second: it is tried often again"


def test_status_shows_limits_and_settings(bench: Bench) -> None:
    assert bench.alarms.status() == {
        "vm_memory_high_watermark_setting": {"relative": 0.4},
        "vm_memory_high_watermark_limit": 40 * MIB,
        "vm_memory_calculation_strategy": "rss",
        "total_memory_available": TOTAL,
        "disk_free_limit_setting": {"absolute": MIB},
        "disk_free_limit": MIB,
        "alarms": [],
    }
    bench.alarms.set_memory_watermark(MemoryWatermark(absolute_bytes=5), 0)
    bench.alarms.set_disk_limit(DiskFreeLimit(relative=2.0), 0)
    status = bench.alarms.status()
    assert (status["vm_memory_high_watermark_setting"], status["vm_memory_high_watermark_limit"]) == (
        {"absolute": 5},
        5,
    )
    assert (status["disk_free_limit_setting"], status["disk_free_limit"]) == ({"relative": 2.0}, 2 * TOTAL)
    assert status["alarms"] == [{"resource": "memory", "node": "n1"}]


def test_the_log_says_each_limit_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    absolute, relative = MemoryWatermark(absolute_bytes=40 * MIB), DiskFreeLimit(relative=0.5)
    ResourceAlarms(N1, TOTAL, absolute, 0.5, DiskFreeLimit(MIB), bench.probe, bench.queues)
    bench.alarms.set_memory_watermark(MemoryWatermark(0.4), bench.now_ms)
    bench.alarms.set_memory_watermark(MemoryWatermark(absolute_bytes=TOTAL + 1), bench.now_ms)
    bench.alarms.set_disk_limit(relative, bench.now_ms)
    assert [record.getMessage() for record in caplog.records if "limit" in record.getMessage()][:4] == [
        f"memory limit: {40 * MIB} bytes; disk limit: {MIB} bytes",
        f"memory limit set to 0.4 of available memory: {40 * MIB} bytes",
        f"memory limit set to {TOTAL + 1} bytes: {TOTAL} bytes",
        f"disk limit set to 0.5 times the total memory: {50 * MIB} bytes",
    ]
