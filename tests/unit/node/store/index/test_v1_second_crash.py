"""A second loss of power, while an index of version 1 is recovered."""

from __future__ import annotations

import random

import pytest

from node.ids import SeqId
from node.store.disk.simulated import CrashStyle
from node.store.shared.config import StoreConfig
from tests.support.index_driver import V1, IndexDriver
from tests.support.messages import publications
from tests.support.stores import QUEUE_ID, QUEUE_NAME, StoreHarness


@pytest.mark.parametrize("operations", range(1, 8))
@pytest.mark.parametrize("style", list(CrashStyle))
def test_a_power_loss_while_a_file_is_begun_anew_is_no_damage(style: CrashStyle, operations: int) -> None:
    """Everything in it was replaced, which only the journal has; what is written now is shorter."""
    for seed in range(8):
        driver = IndexDriver(V1)
        driver.publish(1)
        driver.sync()
        driver.crash(CrashStyle.DROP, 0)
        driver.after_recovery(driver.verify_crash())
        driver.settle([0])
        driver.publish_at({0: driver.message(big=True)})
        driver.sync()
        driver.crash_twice(style, seed, operations)
        assert driver.verify_crash().keys() == {0}


def test_a_length_that_was_noted_of_a_file_that_was_begun_anew_is_no_damage_either() -> None:
    """More is recovered behind it, for so long that its length is noted, and then the power is lost."""
    harness = StoreHarness(StoreConfig(queue_version=1, v1_segment_entries=16))
    queue = harness.open_queue()
    queue.publish(publications(1, 20))
    harness.sync()
    harness.crash().terminate()  # all of it is in two segments
    queue = harness.open_queue()
    queue.ack([delivery.seq_id for delivery in queue.fetch(16, True)])
    larger = [each.message for each in publications(100, 16, body=bytes(200))]
    queue.insert([SeqId(number) for number in range(16)], larger, [message.envelope() for message in larger])
    harness.sync()
    harness.disk.crash(CrashStyle.DROP, random.Random(0))
    harness.start()
    for job in harness.store.queue_opening(QUEUE_ID, QUEUE_NAME, True):
        if job is not None:
            job()
            break
    harness.store.maintain(100_000)
    harness.sync()
    report = harness.crash().recovery_report
    assert report is not None
    assert (report.messages, report.problems) == (20, [])
