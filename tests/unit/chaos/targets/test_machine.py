"""In which order what a cluster has on this machine is hurt and cleared away."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from chaos.harm import marked, slow_syncs, small_disks
from chaos.harm.journal import Journal, outstanding
from chaos.harm.small_disks import DiskError, SmallDisk
from chaos.plan.actions import Capability
from chaos.targets.machine import Machine
from chaos.targets.proxied_lines import ProxiedLines
from chaos.targets.target import TargetError

Said = list[str]


@pytest.fixture
def said() -> Said:
    return []


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path) as journal:
        yield journal


class FakeDisk:
    """Entered in the journal as a real one; its place can be in use."""

    def __init__(self, place: Path, journal: Journal, said: Said) -> None:
        self.place, self.journal, self.said = place, journal, said
        self.entry = journal.will_do(small_disks.HOW, str(place))
        self.is_used = False

    def fill(self, leave_bytes: int) -> None:
        self.said.append(f"{self.place.name} has {leave_bytes} bytes left")

    def empty(self) -> None:
        self.said.append(f"{self.place.name} has room")

    def close(self) -> None:
        if self.is_used:
            raise DiskError(f"{self.place.name} is busy")
        self.said.append(f"{self.place.name} is unmounted")
        self.journal.undone(self.entry)


class FakeLines:
    """Says which nodes it takes for down."""

    def __init__(self, said: Said) -> None:
        self.said = said
        self.down = frozenset({3})
        self.is_broken = False

    async def set_down(self, nodes: frozenset[int]) -> None:
        self.said.append(f"lines to {sorted(nodes)} are closed")
        if self.is_broken:
            raise TargetError("it is broken")

    async def close(self) -> None:
        self.said.append("no lines")


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch, said: Said) -> list[FakeDisk]:
    made: list[FakeDisk] = []

    def make(place: Path, journal: Journal) -> SmallDisk:
        made.append(FakeDisk(place, journal, said))
        return cast(SmallDisk, made[-1])

    monkeypatch.setattr(small_disks, "SmallDisk", make)
    return made


@pytest.fixture
def machine(tmp_path: Path, journal: Journal, said: Said, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "cluster", journal)

    def names(mark: str) -> str:
        return mark.removeprefix(machine.mark) or "all"

    def signal_marked(number: signal.Signals, *marks: str) -> list[int]:
        said.append(f"{number.name} to {', '.join(map(names, marks))}")
        return [1]

    def kill_all(*marks: str) -> list[int]:
        said.append(f"{', '.join(map(names, marks))} end")
        return []

    monkeypatch.setattr(marked, "signal_marked", signal_marked)
    monkeypatch.setattr(marked, "kill_all", kill_all)
    return machine


async def test_lines_are_closed_while_who_is_killed_stands_still(machine: Machine, said: Said) -> None:
    machine.lines = cast(ProxiedLines, FakeLines(said))
    await machine.kill([1, 2])
    assert said == ["SIGSTOP to /n1, /n2", "lines to [1, 2, 3] are closed", "/n1, /n2 end"]


async def test_who_stands_still_is_killed_though_its_lines_cannot_be_closed(machine: Machine, said: Said) -> None:
    lines = FakeLines(said)
    lines.is_broken = True
    machine.lines = cast(ProxiedLines, lines)
    with pytest.raises(TargetError, match="it is broken"):
        await machine.kill([1])
    assert said[-1] == "/n1 end"


async def test_who_does_not_end_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked, "kill_all", lambda *_: [4711])
    with pytest.raises(TargetError, match="4711"):
        await machine.kill([1])


async def test_a_node_stands_still_until_it_goes_on_or_is_killed(machine: Machine) -> None:
    for end in (machine.resume(1), machine.kill([1])):
        await machine.pause(1)
        assert machine.paused == {1}
        await end
        assert machine.paused == set()


async def test_what_uses_disks_is_entered_behind_them(
    machine: Machine, disks: list[FakeDisk], journal: Journal
) -> None:
    """The last is undone first."""
    await machine.begin([1, 2], {Capability.FILL_DISK})
    assert [entry.how for entry in journal.outstanding] == [marked.HOW, small_disks.HOW, small_disks.HOW]
    assert [disk.place.name for disk in disks] == ["n1", "n2"]
    assert machine.data_path(1) == disks[0].place / "data"


async def test_a_disk_is_filled_and_emptied(machine: Machine, disks: list[FakeDisk], said: Said) -> None:
    await machine.begin([1, 2], {Capability.FILL_DISK})
    await machine.hurt_disk("fill disk", 2, {"leave": 10})
    await machine.hurt_disk("fill disk", 1, {})
    await machine.unhurt_disk("fill disk", 2)
    assert said == ["n2 has 10 bytes left", "n1 has 0 bytes left", "n2 has room"]


@pytest.mark.parametrize(("fault", "lacking"), [("fill disk", "no disk of its own"), ("slow disk", "cannot be slow")])
async def test_what_was_not_prepared_cannot_be_hurt(fault: str, lacking: str, machine: Machine) -> None:
    await machine.begin([1], set())
    for hurt in (machine.hurt_disk(fault, 1, {"latency": 1.0}), machine.unhurt_disk(fault, 1)):
        with pytest.raises(TargetError, match=f"n1.*{lacking}"):
            await hurt
    assert machine.data_path(1) == machine.directory / "n1"
    assert machine.environment(1) == {marked.ENVIRONMENT: f"{machine.mark}/n1"}


async def test_a_node_with_slow_syncs_has_a_latency_of_its_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_syncs, "compile_library", lambda directory: directory / "slow.so")
    await machine.begin([1, 2], {Capability.SLOW_DISK})
    await machine.hurt_disk("slow disk", 2, {"latency": 0.25})
    files = [Path(machine.environment(node)["WARREN_SYNC_LATENCY_FILE"]) for node in (1, 2)]
    read = [int.from_bytes(path.read_bytes(), sys.byteorder) for path in files]
    assert read == [0, 250_000]
    await machine.unhurt_disk("slow disk", 2)
    assert files[1].read_bytes() == bytes(8)


async def test_all_is_cleared_away_in_the_opposite_order(
    machine: Machine, disks: list[FakeDisk], said: Said, tmp_path: Path
) -> None:
    await machine.begin([1, 2], {Capability.FILL_DISK})
    machine.lines = cast(ProxiedLines, FakeLines(said))
    await machine.close()
    assert said == ["all end", "no lines", "n1 is unmounted", "n2 is unmounted"]
    assert outstanding(tmp_path) == []


async def test_what_cannot_be_cleared_away_is_said_and_tried_again(
    machine: Machine, disks: list[FakeDisk], said: Said, tmp_path: Path
) -> None:
    await machine.begin([1, 2], {Capability.FILL_DISK})
    disks[0].is_used = True
    with pytest.raises(TargetError, match="n1 is busy"):
        await machine.close()
    assert "n2 is unmounted" in said
    assert [entry.what for entry in outstanding(tmp_path)] == [str(disks[0].place)]
    disks[0].is_used = False
    await machine.close()
    assert outstanding(tmp_path) == []


async def test_who_does_not_end_stays_in_the_journal(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    await machine.begin([1], set())
    monkeypatch.setattr(marked, "kill_all", lambda *_: [4711])
    with pytest.raises(TargetError, match="4711"):
        await machine.close()
    assert [entry.how for entry in outstanding(tmp_path)] == [marked.HOW]
