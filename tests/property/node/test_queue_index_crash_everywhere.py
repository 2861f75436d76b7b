"""Crash after every single disk operation of a long workload, in every style; damage every byte of every file.

The workload is the same each time (a seeded generator), so that "crash after operation N" walks through all places
where a machine can die. `tests.support.index_driver` says what must hold then.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable

import pytest

from node.errors import StorageError
from node.store.disk.simulated import CrashStyle, SimulatedCrashError
from node.store.formats.record import HEADER_BYTES, JOURNAL_FORMAT, SEGMENT_FORMAT
from node.store.index.index import RecoveryReport
from node.store.index.v1.format import Record, checksum_seed, scan_records
from tests.support.index_driver import DIRECTORY, V1, V2, IndexDriver, IndexKind, random_steps

KINDS = [V1, V2]
#: Steps of the workload: more than 500 disk operations.
STEPS = 500
STYLES = list(CrashStyle)


def run_workload(kind: IndexKind, *, crash_after: int | None = None, fail_sync_at: int = -1) -> IndexDriver:
    """All of it, or up to the injected fault."""
    driver = IndexDriver(kind)
    driver.disk.crash_after = crash_after
    driver.disk.fail_sync_at = fail_sync_at
    try:
        random_steps(driver, random.Random(4), STEPS)
        driver.index.close(driver.next_seq_id)
    except SimulatedCrashError:
        assert crash_after is not None
    except StorageError:
        assert driver.disk.has_failed, "only the injected failure stops the workload"
        driver.index.abandon()
    return driver


def crash_in_every_style(driver: IndexDriver, seed: int) -> None:
    for style in STYLES:
        crashed = copy.deepcopy(driver)
        if not driver.overwrites:
            crashed.crash_twice(style, seed, seed % 9 + 1)
        else:
            crashed.crash(style, seed)
        crashed.after_recovery(crashed.verify_crash())
        # And it goes on working.
        random_steps(crashed, random.Random(seed), 10)
        crashed.check()


def crash_after(kind: IndexKind, operations: Iterable[int]) -> None:
    for operation in operations:
        crash_in_every_style(run_workload(kind, crash_after=operation), operation)


def fail_syncs(kind: IndexKind, operations: Iterable[int]) -> None:
    """The same with an fsync that fails."""
    for operation in operations:
        driver = run_workload(kind, fail_sync_at=operation)
        assert driver.disk.has_failed
        crash_in_every_style(driver, operation)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_crash_after_some_operations(kind: IndexKind) -> None:
    operations = run_workload(kind).disk.operations
    assert operations >= 500
    crash_after(kind, range(1, operations, 199))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_some_failing_fsyncs(kind: IndexKind) -> None:
    fail_syncs(kind, run_workload(kind).disk.sync_numbers[3::61])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_crash_after_every_operation(kind: IndexKind) -> None:
    """Thirty seconds."""
    crash_after(kind, range(1, run_workload(kind).disk.operations + 1))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_fsync_fails_once(kind: IndexKind) -> None:
    syncs = run_workload(kind).disk.sync_numbers
    assert len(syncs) > 100
    fail_syncs(kind, syncs)


# -- damage


def small_queue(*, closed: bool) -> tuple[IndexDriver, bytes | None]:
    """Some entries in segments and, unless it was closed, in journals."""
    driver = IndexDriver(V1)
    for big in (False, True, False):
        driver.publish(5, big=big)
        driver.sync()
        driver.settle(sorted(driver.live)[1::4])
    driver.publish(3)
    driver.sync()
    if not closed:
        return driver, None
    driver.index.drop_transient()
    driver.index.close(driver.next_seq_id)
    return driver, driver.index.terms()


def borders(path: str, content: bytes) -> set[int]:
    """Where records end: a file cut there looks as if the crash had come a moment earlier."""
    file_format = JOURNAL_FORMAT if path.endswith(".jif") else SEGMENT_FORMAT
    number = int(path.rpartition("/")[2].partition(".")[0])
    records = scan_records(content, checksum_seed(file_format, number))
    return {0, HEADER_BYTES} | {record.end for record in records if isinstance(record, Record)}


def recover_damaged(driver: IndexDriver, terms: bytes | None) -> dict[int, bytes]:
    """What is served after damage: nothing but what was published, or an error."""
    driver.recover(terms)
    try:
        found = driver.read_all()
    except StorageError as error:
        driver.report.damaged(str(error))
        return {}
    for seq_id, envelope in found.items():
        assert any(envelope == m.envelope() for m in driver.ever[seq_id]), f"{seq_id} was never published"
    return found


def is_reported(report: RecoveryReport) -> bool:
    return report.corrupt + report.torn > 0


def files_of(driver: IndexDriver) -> dict[str, bytes]:
    return {path: content for path, content in driver.disk.snapshot().items() if path.startswith(DIRECTORY)}


def flip_bits(driver: IndexDriver, terms: bytes | None, step: int) -> None:
    for path, content in files_of(driver).items():
        for offset in range(0, len(content), step):
            damaged = copy.deepcopy(driver)
            damaged.disk.flip_bit(path, offset)
            found = recover_damaged(damaged, terms)
            if terms is None:
                assert is_reported(damaged.report), f"bit flipped at {offset} of {path}"
                # The rest is there.
                assert len(driver.durable.keys() - found.keys()) <= 5, f"bit flipped at {offset} of {path}"
            elif not is_reported(damaged.report):
                expected = {seq_id: message.envelope() for seq_id, message in driver.durable.items()}
                assert found == expected, f"bit flipped at {offset} of {path} hit something settled"


def cut_files(driver: IndexDriver, terms: bytes | None, step: int) -> None:
    for path, content in files_of(driver).items():
        whole = borders(path, content)
        for size in range(0, len(content), step):
            damaged = copy.deepcopy(driver)
            file = damaged.disk.open(path)
            file.truncate(size)
            file.sync()
            recover_damaged(damaged, terms)
            if terms is not None or size not in whole:
                assert is_reported(damaged.report), f"{path} cut to {size} bytes"


def test_the_damaged_queue_has_files_of_both_kinds() -> None:
    driver, _ = small_queue(closed=False)
    names = [path.rpartition(".")[2] for path in files_of(driver)]
    assert {"jif", "idx"} <= set(names)
    assert driver.durable


@pytest.mark.parametrize("closed", [False, True])
def test_some_flipped_bits(closed: bool) -> None:
    flip_bits(*small_queue(closed=closed), step=23)


@pytest.mark.parametrize("closed", [False, True])
def test_some_cuts(closed: bool) -> None:
    cut_files(*small_queue(closed=closed), step=23)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("closed", [False, True])
def test_every_flipped_bit_and_every_cut(closed: bool) -> None:
    """Five seconds."""
    flip_bits(*small_queue(closed=closed), step=1)
    cut_files(*small_queue(closed=closed), step=1)
