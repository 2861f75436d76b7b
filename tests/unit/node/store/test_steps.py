"""Work in steps: all at once, and a file that is read in several."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from node.errors import StorageError
from node.store import steps
from node.store.disk.simulated import SimulatedDisk
from node.store.steps import Steps, read_in_steps, run_through


def work(job: Callable[[], None], seen: list[str]) -> Steps[str]:
    yield None
    seen.append("first")
    try:
        yield job
    except StorageError as error:
        seen.append(str(error))
        yield None
    seen.append("last")
    return "done"


def test_jobs_are_carried_out_in_between() -> None:
    seen: list[str] = []
    assert run_through(work(lambda: seen.append("job"), seen)) == "done"
    assert seen == ["first", "job", "last"]


def test_the_error_of_a_job_is_thrown_into_the_steps() -> None:
    def fail() -> None:
        raise StorageError("the disk refused")

    seen: list[str] = []
    assert run_through(work(fail, seen)) == "done"
    assert seen == ["first", "the disk refused", "last"]

    def careless() -> Steps[None]:
        yield fail

    with pytest.raises(StorageError, match="the disk refused"):
        run_through(careless())


@pytest.mark.parametrize(("size", "reads"), [(0, 1), (9, 1), (10, 1), (11, 2), (30, 3), (35, 4)])
def test_a_large_file_is_read_a_piece_at_a_time(monkeypatch: pytest.MonkeyPatch, size: int, reads: int) -> None:
    monkeypatch.setattr(steps, "READ_BYTES_MAX", 10)
    disk = SimulatedDisk()
    disk.mkdir("/d")
    content = bytes(range(size))
    disk.create("/d/f").append(content)
    assert run_through(read_in_steps(disk, "/d/f")) == content
    assert disk.reads == reads
    pieces = read_in_steps(disk, "/d/f")
    assert len(list(pieces)) == (reads if reads > 1 else 0), "the loop turns after each"
