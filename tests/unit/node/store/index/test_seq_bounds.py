"""The bound below which positions may have been used: a crash never takes it back."""

from __future__ import annotations

import random

import pytest

from node.store.disk.group_commit import GroupCommit
from node.store.disk.simulated import CrashStyle, SimulatedDisk
from node.store.index.terms import RESERVE_STEP, SeqBounds
from tests.support.stores import run_sync_round

PATH = "/queue/seq.bounds"


@pytest.mark.parametrize("durable", [1, 2, 3])
def test_a_torn_write_leaves_the_bound_that_was_durable(durable: int) -> None:
    for seed in range(30):
        disk, group_commit = SimulatedDisk(), GroupCommit()
        disk.mkdir("/queue")
        bounds = SeqBounds(disk, PATH, 7, group_commit)
        for number in range(durable):
            bounds.renew(number * RESERVE_STEP)
            run_sync_round(group_commit)
        reserved = bounds.reserved
        bounds.renew(durable * RESERVE_STEP)
        disk.crash(CrashStyle.TEAR, random.Random(seed))
        assert SeqBounds(disk, PATH, 7, group_commit).reserved in (reserved, reserved + RESERVE_STEP)
