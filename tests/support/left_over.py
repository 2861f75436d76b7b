"""What clusters of this machine have left behind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

from chaos.cluster_under_test.ports import is_port_free
from chaos.harm import marked
from chaos.harm.journal import outstanding


def mounts_in(directory: Path) -> list[str]:
    mounted = [each.mountpoint for each in psutil.disk_partitions(all=True)]
    return [place for place in mounted if Path(place).is_relative_to(directory)]


def listening(mark: str) -> list[int]:
    """Ports on which somebody who has the mark listens."""
    found = []
    for process in marked.processes_of(mark):
        # Some end by themselves: what a broker had asked of the system.
        with suppress(psutil.NoSuchProcess):
            found += process.net_connections("tcp")
    return sorted({each.laddr.port for each in found if each.status == psutil.CONN_LISTEN})


def mark_of(run_directory: Path) -> str:
    """That of the processes of the one cluster of a run."""
    [mark] = [entry.told["mark"] for entry in outstanding(run_directory) if entry.how == marked.HOW]
    return str(mark)


def assert_nothing_left(run_directory: Path, mark: str, ports: list[int]) -> None:
    assert marked.processes_of(mark) == []
    assert [port for port in ports if not is_port_free("127.0.0.1", port)] == []
    assert mounts_in(run_directory) == []
    assert outstanding(run_directory) == []
