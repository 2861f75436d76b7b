"""A second loss of power, while an index of version 1 is recovered."""

from __future__ import annotations

import pytest

from node.store.disk.simulated import CrashStyle
from tests.support.index_driver import V1, IndexDriver


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
