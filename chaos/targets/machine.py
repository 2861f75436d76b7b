"""What clusters of processes of this machine have in common, whatever broker they run.

A `Machine` is one cluster's share of this machine: its processes, which all have one mark (`chaos.harm.marked`), and
what is prepared around them if it is needed: proxies on lines, disks that can be full, syncs that can be slow. All of
it is in the journal before it is there, and `close` clears it away in the opposite order.

Nodes have numbers here. ``n2`` is the name of everything that belongs to the second.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.harm import marked, slow_syncs, small_disks
from chaos.harm.journal import Journal
from chaos.harm.lines import Line
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets import proxied_lines
from chaos.targets.proxied_lines import ProxiedLines, lines_for
from chaos.targets.target import Target, TargetError

#: What every process can be made to do.
OF_PROCESSES = frozenset({Capability.KILL, Capability.STOP, Capability.PAUSE})
#: More nodes than this on one machine measure the scheduler, not the cluster.
NODES_MAX = 9
#: Not of this machine, whatever is installed.
NEVER: Mapping[Capability, str] = {
    Capability.DISCONNECT: "processes of one machine share its network: cut their lines instead",
    Capability.FORGET: "a node is forgotten when it is wiped, and not otherwise",
    Capability.TAPS: "these nodes do not tell of single messages",
}


def name_of(node: int) -> str:
    """See the top of this module."""
    return f"n{node}"


def missing_here(offered: Collection[Capability]) -> dict[Capability, str]:
    """Why some of these, that a broker would offer, are not to be had on this machine now."""
    reasons: Mapping[Capability, Callable[[], str]] = {
        Capability.CLIENT_LINES: proxied_lines.why_none,
        Capability.NODE_LINES: proxied_lines.why_none,
        Capability.FILL_DISK: small_disks.why_none,
        Capability.SLOW_DISK: slow_syncs.why_none,
    }
    return {each: why for each in offered if each in reasons and (why := reasons[each]())}


def require(target: Target, plan: ClusterPlan, needs: Collection[Capability]) -> None:
    """Raise `TargetError` if it cannot be like that, before anything is begun."""
    missing, capabilities = target.missing, target.capabilities
    if lacking := sorted(set(needs) - capabilities):
        raise TargetError("; ".join(f"{each}: {missing.get(each, 'it is not offered')}" for each in lacking))
    if Capability.KILL not in capabilities:
        raise TargetError(missing[Capability.KILL])
    if not 1 <= plan.nodes <= target.nodes_max:
        raise TargetError(f"a cluster of {plan.nodes} nodes is not possible here: 1 to {target.nodes_max}")


async def together(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """All at once; when one fails the others end, and what it raised is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


class Machine:
    """One cluster's share of it."""

    def __init__(self, directory: Path, journal: Journal) -> None:
        self.directory = directory
        self.mark = marked.new_mark()
        #: Nodes that stand still.
        self.paused: set[int] = set()
        self.lines: ProxiedLines | None = None
        self._journal = journal
        self._entry: int | None = None
        self._disks: dict[int, small_disks.SmallDisk] = {}
        self._syncs: dict[int, slow_syncs.SlowSyncs] = {}

    # --- preparing ---

    async def begin(self, nodes: Sequence[int], needs: Collection[Capability]) -> None:
        """Whatever is needed, but proxies. Raises `TargetError`."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            if Capability.FILL_DISK in needs:
                for node in nodes:
                    place = self.directory / name_of(node)
                    self._disks[node] = await asyncio.to_thread(small_disks.SmallDisk, place, self._journal)
            if Capability.SLOW_DISK in needs:
                library = await asyncio.to_thread(slow_syncs.compile_library, self.directory)
                for node in nodes:
                    file = self.directory / f"{name_of(node)}.latency"
                    self._syncs[node] = slow_syncs.SlowSyncs(library, file)
        except (small_disks.DiskError, slow_syncs.SlowSyncsError) as error:
            raise TargetError(str(error)) from error
        # The last in the journal is undone first: no disk can go before those who use it.
        what = f"processes of a cluster in {self.directory}"
        self._entry = self._journal.will_do(marked.HOW, what, mark=self.mark)

    async def open_lines(
        self,
        nodes: Sequence[int],
        needs: Collection[Capability],
        upstream: Callable[[Line], str],
        taken_ports: Collection[int],
    ) -> None:
        """Proxies to ``upstream(line)`` on the lines that need one, if any does. Raises `TargetError`.

        ``taken_ports`` are of nodes, which may not listen yet.
        """
        if upstreams := {line: upstream(line) for line in lines_for(nodes, needs)}:
            log = self.directory / "toxiproxy.log"
            environment = marked.marked_environment(f"{self.mark}/toxiproxy")
            self.lines = await ProxiedLines.open(upstreams, log, environment, taken_ports)

    def environment(self, node: int) -> dict[str, str]:
        """What the processes of a node have in theirs, beyond ours."""
        syncs = self._syncs[node].environment if node in self._syncs else {}
        return {marked.ENVIRONMENT: self._mark_of(node), **syncs}

    def data_path(self, node: int) -> Path:
        """Where a node is to have its data: on its own disk, if it has one."""
        place = self.directory / name_of(node)
        return place / "data" if node in self._disks else place

    def _mark_of(self, node: int) -> str:
        return f"{self.mark}/{name_of(node)}"

    # --- processes ---

    async def kill(self, nodes: Sequence[int]) -> None:
        """All processes of these nodes, at once. Raises `TargetError`."""
        marks = [self._mark_of(node) for node in nodes]
        await asyncio.to_thread(marked.signal_marked, signal.SIGSTOP, *marks)
        # Their lines are closed while they stand still: they do not see it, and nobody sees lines to a dead node open.
        try:
            if self.lines is not None:
                await self.lines.set_down(self.lines.down.union(nodes))
        finally:
            left = await asyncio.to_thread(marked.kill_all, *marks)
        if left:
            raise TargetError(f"processes {', '.join(map(str, left))} were killed, and do not end")
        self.paused.difference_update(nodes)

    async def pause(self, node: int) -> None:
        """SIGSTOP. Raises `TargetError` if nothing of it runs."""
        self.paused.add(node)
        if not await asyncio.to_thread(marked.signal_marked, signal.SIGSTOP, self._mark_of(node)):
            self.paused.discard(node)
            raise TargetError(f"{name_of(node)} does not run, and cannot stand still")

    async def resume(self, node: int) -> None:
        """SIGCONT."""
        await asyncio.to_thread(marked.signal_marked, signal.SIGCONT, self._mark_of(node))
        self.paused.discard(node)

    async def note_down(self, nodes: Collection[int]) -> None:
        """Exactly these do not run: their lines refuse connections."""
        if self.lines is not None:
            await self.lines.set_down(nodes)

    # --- disks ---

    async def hurt_disk(self, name: str, node: int, arguments: Mapping[str, Any]) -> None:
        """Fill it, or slow it down. Raises `TargetError`."""
        if name == "fill disk":
            try:
                await asyncio.to_thread(self._disk_of(node).fill, arguments.get("leave", 0))
            except small_disks.DiskError as error:
                raise TargetError(str(error)) from error
        elif name == "slow disk":
            self._syncs_of(node).set(arguments["latency"])
        else:
            raise TargetError(f"nobody here knows how to do {name!r}")

    async def unhurt_disk(self, name: str, node: int) -> None:
        """End that. Raises `TargetError`."""
        if name == "fill disk":
            await asyncio.to_thread(self._disk_of(node).empty)
        elif name == "slow disk":
            self._syncs_of(node).set(0.0)
        else:
            raise TargetError(f"nobody here knows how to end {name!r}")

    def _disk_of(self, node: int) -> small_disks.SmallDisk:
        if node not in self._disks:
            raise TargetError(f'{name_of(node)} has no disk of its own: the cluster was begun without "fill disk"')
        return self._disks[node]

    def _syncs_of(self, node: int) -> slow_syncs.SlowSyncs:
        if node not in self._syncs:
            raise TargetError(f'syncs of {name_of(node)} cannot be slow: the cluster was begun without "slow disk"')
        return self._syncs[node]

    # --- the end ---

    async def close(self) -> None:
        """Everything that is left. May be called twice. Raises `TargetError`, having cleared away what it could."""
        problems: list[str] = []
        if left := await asyncio.to_thread(marked.kill_all, self.mark):
            problems.append(f"processes {', '.join(map(str, left))} were killed, and do not end")
        elif self._entry is not None:
            self._journal.undone(self._entry)
        self.paused.clear()
        if self.lines is not None:
            # Its process is gone, and is to be reaped.
            await self.lines.close()
            self.lines = None
        for disk in self._disks.values():
            try:
                await asyncio.to_thread(disk.close)
            except small_disks.DiskError as error:
                problems.append(str(error))
        if problems:
            raise TargetError("; ".join(problems))
