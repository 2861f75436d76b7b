"""Converting an index, both ways, with work going on: at random, and with a crash after every single disk operation.

`tests.support.converting_driver` converts, `tests.support.index_driver` says what must hold after a crash. An ack of an
entry that is in both indexes goes to two files and counts as synced when both are, so that it is left out here.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable

import pytest

from node.errors import StorageError
from node.store.disk.simulated import CrashStyle, SimulatedCrashError
from node.store.index.conversion import ConvertingIndex
from tests.support.converting_driver import ConvertingDriver, convert_randomly, fill
from tests.support.index_driver import DIRECTORY, V1, V2, IndexKind, random_steps

DIRECTIONS = [pytest.param(V1, V2, id="1->2"), pytest.param(V2, V1, id="2->1")]
STYLES = list(CrashStyle)
#: More than 500 disk operations.
STEPS = 330


def run_workload(
    old: IndexKind, new: IndexKind, *, crash_after: int | None = None, fail_sync_at: int = -1
) -> ConvertingDriver:
    """All of it, to the end of the conversion, or up to the injected fault."""
    driver = ConvertingDriver(old, new)
    driver.disk.crash_after = crash_after
    driver.disk.fail_sync_at = fail_sync_at
    try:
        convert_randomly(driver, random.Random(11), STEPS)
        driver.finish()
    except SimulatedCrashError:
        assert crash_after is not None
    except StorageError:
        assert driver.disk.has_failed, "only the injected failure stops the workload"
        driver.index.abandon()
    return driver


def crash_in_every_style(driver: ConvertingDriver, seed: int) -> None:
    for style in STYLES:
        crashed = copy.deepcopy(driver)
        crashed.crash(style, seed)
        crashed.after_recovery(crashed.verify_crash())
        # The conversion goes on, and ends.
        if crashed.new is None:
            crashed.begin()
        random_steps(crashed, random.Random(seed), 5)
        crashed.finish()
        crashed.check()


def crash_after(old: IndexKind, new: IndexKind, operations: Iterable[int]) -> None:
    for operation in operations:
        crash_in_every_style(run_workload(old, new, crash_after=operation), operation)


def fail_syncs(old: IndexKind, new: IndexKind, operations: Iterable[int]) -> None:
    for operation in operations:
        driver = run_workload(old, new, fail_sync_at=operation)
        assert driver.disk.has_failed
        crash_in_every_style(driver, operation)


def random_story(old: IndexKind, new: IndexKind, seed: int) -> None:
    """Work, convert, stop, crash and die in any order; then convert to the end."""
    rng = random.Random(seed)
    driver = ConvertingDriver(old, new)
    random_steps(driver, rng, rng.randint(1, 80))
    fill(driver, 60)
    driver.begin()
    for number in range(30):
        random_steps(driver, rng, rng.randint(1, 6))
        driver.check()
        if rng.random() < 0.7:
            driver.step(rng.randint(1, 3))
            driver.check()
        event = rng.random()
        if event < 0.08:
            driver.restart()
        elif event < 0.2:
            driver.crash(rng.choice(STYLES), seed * 1000 + number)
            driver.after_recovery(driver.verify_crash())
        elif event < 0.25:
            driver.die()
            driver.after_recovery(driver.verify_crash())
    driver.finish()
    driver.check()
    driver.restart()
    left = [name for name in driver.disk.list(DIRECTORY) if name.rpartition(".")[0].isdigit()]
    suffixes = (".qi", ".qs") if new is V2 else (".idx", ".jif")
    assert all(name.endswith(suffixes) for name in left), "nothing of the old version is left"
    assert "conversion.cursor" not in driver.disk.list(DIRECTORY)


@pytest.mark.parametrize(("old", "new"), DIRECTIONS)
def test_it_stays_one_index_whatever_happens(old: IndexKind, new: IndexKind) -> None:
    random_story(old, new, seed=0)


@pytest.mark.parametrize(("old", "new"), DIRECTIONS)
def test_a_crash_after_some_operations(old: IndexKind, new: IndexKind) -> None:
    driver = run_workload(old, new)
    assert driver.disk.operations >= 500
    assert isinstance(driver.index, ConvertingIndex)
    assert driver.index.is_finished
    crash_after(old, new, range(1, driver.disk.operations, 311))


@pytest.mark.parametrize(("old", "new"), DIRECTIONS)
def test_some_failing_fsyncs(old: IndexKind, new: IndexKind) -> None:
    fail_syncs(old, new, run_workload(old, new).disk.sync_numbers[3::61])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("old", "new"), DIRECTIONS)
def test_a_crash_after_every_operation(old: IndexKind, new: IndexKind) -> None:
    """About a minute."""
    crash_after(old, new, range(1, run_workload(old, new).disk.operations + 1))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("old", "new"), DIRECTIONS)
def test_every_fsync_fails_once(old: IndexKind, new: IndexKind) -> None:
    """Twenty seconds."""
    syncs = run_workload(old, new).disk.sync_numbers
    assert len(syncs) > 100
    fail_syncs(old, new, syncs)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("old", "new"), DIRECTIONS)
def test_it_stays_one_index_for_long(old: IndexKind, new: IndexKind) -> None:
    """Ten seconds."""
    for seed in (1, *range(100, 150)):
        random_story(old, new, seed)
