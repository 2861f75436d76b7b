"""What can be done to the disks of a simulated cluster: steps of a schedule, as in `chaos.sim.cluster`.

Every fault has an end, which the heal brings about, too (`chaos.sim.machine.Machine.mend_disk`).
"""

from __future__ import annotations

from chaos.sim.machine import DISK_BYTES, Machine
from node.store.disk.simulated import SimulatedDisk


class DiskFaults:
    """The part of `chaos.sim.cluster.SimulatedCluster` that is about disks."""

    machines: dict[str, Machine]

    def _tell(self, text: str, lane: str = "", *, begins: str = "", ends: str = "") -> None:
        raise NotImplementedError

    def slow_disk(self, name: str, factor: int) -> None:
        self.machines[name].disk_slowness = factor
        self._tell(f"the disk of {name} is {factor} times slower", name, begins="slow disk")

    def slow_disk_end(self, name: str) -> None:
        self.machines[name].disk_slowness = 1.0
        self._tell(f"the disk of {name} is quick again", name, ends="slow disk")

    def full_disk(self, name: str, left_bytes: int = 0) -> None:
        """But for so much: what is small may still find room when what is large does not."""
        self._spoil(name).capacity_bytes = self.machines[name].disk.used_bytes + left_bytes
        self._tell(f"the disk of {name} has {left_bytes} bytes left", name, begins="full disk")

    def full_disk_end(self, name: str) -> None:
        self.machines[name].disk.capacity_bytes = DISK_BYTES
        self._tell(f"the disk of {name} has room again", name, ends="full disk")

    def fail_sync(self, name: str, place: str | None = None) -> None:
        """The next sync of anything fails, and the machine needs a new process. With a ``place``: of files with this in
        their paths, and only that one."""
        disk = self._spoil(name)
        if place is None:
            disk.fail_sync_after = disk.operations
        else:
            disk.fail_syncs, disk.fails_one_sync = place, True
        self.machines[name].has_refused = True
        self._tell(f"syncs of {name} fail" if place is None else f"a sync of {name} in {place} fails", name)

    def fail_sync_end(self, name: str) -> None:
        disk = self.machines[name].disk
        disk.fail_sync_after = disk.fail_syncs = None
        disk.fails_one_sync = False
        self._tell(f"syncs of {name} succeed again", name)

    def fail_writes(self, name: str, place: str) -> None:
        """Files with this in their paths cannot be written."""
        self._spoil(name).fail_writes = place
        self.machines[name].has_refused = True
        self._tell(f"the disk of {name} fails to write {place}", name, begins="failing disk")

    def fail_writes_end(self, name: str) -> None:
        self.machines[name].disk.fail_writes = None
        self._tell(f"the disk of {name} takes writes again", name, ends="failing disk")

    def full_kind(self, name: str, place: str) -> None:
        """There is no more room in files with this in their paths, and enough in all others."""
        self._spoil(name).full_for = place
        self._tell(f"the disk of {name} has no room for {place}", name, begins="full disk")

    def full_kind_end(self, name: str) -> None:
        self.machines[name].disk.full_for = None
        self._tell(f"the disk of {name} has room for everything again", name, ends="full disk")

    def fail_reads(self, name: str, place: str) -> None:
        """Files with this in their paths cannot be read."""
        self._spoil(name).fail_reads = place
        self.machines[name].has_refused = True
        self._tell(f"the disk of {name} fails to read {place}", name, begins="failing reads")

    def fail_reads_end(self, name: str) -> None:
        self.machines[name].disk.fail_reads = None
        self._tell(f"the disk of {name} can be read again", name, ends="failing reads")

    def short_of_files(self, name: str, left: int = 0) -> None:
        """The node may open so many files more than it has, and its next lives as many."""
        disk = self._spoil(name)
        disk.open_limit = len(disk.descriptors) + left
        self._tell(f"{name} may have {disk.open_limit} files open, {left} more", name, begins="short of files")

    def short_of_files_end(self, name: str) -> None:
        self.machines[name].disk.open_limit = None
        self._tell(f"{name} may open files again", name, ends="short of files")

    def hang_disk(self, name: str) -> None:
        """No sync returns, nor does what it should make durable become so."""
        self._spoil(name)
        self.machines[name].hang_disk()
        self._tell(f"the disk of {name} hangs", name, begins="hanging disk")

    def hang_disk_end(self, name: str) -> None:
        self.machines[name].move_disk()
        self._tell(f"the disk of {name} moves again", name, ends="hanging disk")

    def _spoil(self, name: str) -> SimulatedDisk:
        machine = self.machines[name]
        machine.is_disk_suspect = True
        return machine.disk
