"""A simulated cluster: machines, the network between them, and everything that can be done to either.

Each method is a step of a schedule (`chaos.sim.schedule`). A step that makes no sense where it comes does nothing: a
schedule from which steps were taken out is still one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.machine import AMQP_PORT, DISK_BYTES, MEMORY_BYTES, USED_MEMORY_BYTES, AdminDoor, Machine
from chaos.sim.network import Address, Link, Network
from chaos.sim.schedule import Personality, node_name
from cluster.composition import Node, compose_node
from node.errors import ConfigError, StorageError
from node.store.disk.simulated import CrashStyle, SimulatedDisk

#: Delays above the drawn ones of a link that is slow now and then.
SLOW_CHUNK_FACTOR = 10


class SimulatedCluster:
    """See the module text. All nodes run what `cluster.composition.compose_node` makes."""

    def __init__(self, loop: SimulatedLoop, personality: Personality, seed: int) -> None:
        self.loop = loop
        self.personality = personality
        self._seed = seed
        self.network = Network(loop, self._make_link)
        self.admin_doors: dict[str, AdminDoor] = {}
        self.machines = {
            name: Machine(name, loop, self.network, personality, seed, self.admin_doors)
            for name in (node_name(number) for number in range(1, personality.nodes + 1))
        }
        #: By name; only those that run.
        self.nodes: dict[str, Node] = {}
        #: Node -> times at which a life of it ended, microseconds.
        self.deaths: dict[str, list[int]] = {name: [] for name in self.machines}
        #: Node -> times at which it lost what was not synced.
        self.powers: dict[str, list[int]] = {name: [] for name in self.machines}
        #: Hears of rare states that were reached, see `chaos.sim.sometimes`.
        self.note: Callable[[str], None] = lambda _name: None
        self._slowness: dict[tuple[str, str], float] = {}
        self._is_healed = False
        #: Told what happens, in a line.
        self.on_event: Callable[[str], None] = lambda _text: None
        #: Told what a node has died of, which no fault explains.
        self.on_crash: Callable[[str, Exception], None] = lambda _node, _error: None
        #: Told why a node has ended by itself.
        self.on_failure: Callable[[str, str], None] = lambda _node, _reason: None

    @property
    def addresses(self) -> list[Address]:
        """Where clients connect."""
        return [(name, AMQP_PORT) for name in self.machines]

    def _make_link(self, source: str, target: str) -> Link:
        low_ms, high_ms = self.personality.link_delay_ms
        slow = self.personality.slow_chunks_percent / 100
        chance = Random(f"{self._seed} delays {source} {target}")

        def delay_s() -> float:
            delay_ms = chance.uniform(low_ms, high_ms) * self._slowness.get((source, target), 1.0)
            return delay_ms * (SLOW_CHUNK_FACTOR if chance.random() < slow else 1) / 1000

        return Link(delay_s)

    # --- processes ---

    def start(self, name: str) -> None:
        machine = self.machines[name]
        if machine.process is None:
            self.network.host_back(name)
            process = machine.start_process()
            self.on_event(f"start {name}, life {process.number}")
            process.create_task(self._live(machine, process), name=name)

    async def _live(self, machine: Machine, process: Process) -> None:
        reason = ""
        try:
            node = compose_node(machine.config, machine.world())
            _shorten_log(node, self.personality)
            self.nodes[machine.name] = node
            await node.run()
            while node.begins_again:
                node = self.nodes[machine.name] = compose_node(machine.config, machine.world())
                await node.run()
            if node.failure is not None:
                reason = node.failure.reason
        except (ConfigError, StorageError) as error:
            reason = f"cannot start: {error}"
        except Exception as error:  # the process of a real node ends so, too
            if not process.is_alive:
                return  # it was killed in the midst of this
            self.on_crash(machine.name, error)
            reason = f"crashed: {error!r}"
        self.loop.harness.call_soon(self._ended, machine, process, reason)

    def _ended(self, machine: Machine, process: Process, reason: str) -> None:
        if machine.process is process:
            self.on_event(f"end of {machine.name}, life {process.number}: {reason or 'stopped'}")
            is_suspect = machine.is_disk_suspect
            self._end(machine)
            if reason and not is_suspect and machine.disk_before is None:
                self.on_failure(machine.name, reason)
            if self._is_healed:
                self.start(machine.name)

    def kill(self, name: str) -> None:
        """SIGKILL: the machine goes on, and with it what the kernel has of the process's writes."""
        machine = self.machines[name]
        if machine.process is not None:
            self.on_event(f"kill {name}")
            self._end(machine)
            machine.disk.lose_handles()

    def power(self, *names: str) -> None:
        """Take the power away from all of these in the same moment."""
        chance = Random(f"{self._seed} power {self.loop.now_s} {names}")
        for name in names:
            machine = self.machines[name]
            style = chance.choice(list(CrashStyle))
            self.on_event(f"power loss of {name} ({style.value})")
            if machine.process is not None:
                self._end(machine, is_silent=True)
            self._lose_unsynced(machine, style, chance)

    def power_everywhere(self, _name: str) -> None:
        """Whoever fell into an ambush, all lose their power."""
        self.power(*self.machines)

    def _lose_unsynced(self, machine: Machine, style: CrashStyle, chance: Random) -> None:
        self.powers[machine.name].append(self._now_us())
        self.note("a node lost what it had not synced")
        machine.disk.crash(style, chance)

    def crash(self, name: str, operations: int, end: str) -> None:
        """End in the so-manieth operation of the disk from now, in the midst of a turn. ``end``: "kill", or the style
        of a loss of power."""
        machine, chance = self.machines[name], Random(f"{self._seed} crash {self.loop.now_s} {name}")
        if machine.process is None:
            return

        def end_it() -> None:
            self.on_event(f"{name} ends in an operation of its disk ({end})")
            self.note("a node ended in the midst of an operation")
            self._end(machine, is_silent=end != "kill")
            # What it was writing is on its way until its turn is over.
            self.loop.harness.call_soon(lose)

        def lose() -> None:
            if end == "kill":
                machine.disk.lose_handles()
            else:
                self._lose_unsynced(machine, CrashStyle(end), chance)

        machine.crash_in(operations, end_it)

    def stop(self, name: str) -> None:
        """SIGTERM."""
        node, process = self.nodes.get(name), self.machines[name].process
        if node is not None and process is not None:
            self.on_event(f"stop {name}")
            process.call_soon(node.stop)

    def _end(self, machine: Machine, *, is_silent: bool = False) -> None:
        process = machine.process
        assert process is not None, "it runs"
        process.kill()
        self.nodes.pop(machine.name, None)
        self.deaths[machine.name].append(self._now_us())
        if is_silent:
            self.network.host_lost(process, machine.name)
        else:
            self.network.process_died(process)
        machine.process_ended()

    def _now_us(self) -> int:
        return 1 + int(self.loop.now_s * 1e6)

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        process = self.machines[name].process
        if process is not None:
            self.on_event(f"pause {name}")
            process.pause()

    def pause_end(self, name: str) -> None:
        process = self.machines[name].process
        if process is not None:
            self.on_event(f"resume {name}")
            process.resume()

    def clock_jump(self, name: str, by_ms: int) -> None:
        process = self.machines[name].process
        if process is not None:
            self.on_event(f"the wall clock of {name} jumps by {by_ms} ms")
            process.jump_clock(by_ms / 1000)

    def memory_alarm(self, name: str) -> None:
        """The node takes nearly all the memory there is."""
        self.machines[name].probe.used_bytes = MEMORY_BYTES * 9 // 10
        self.on_event(f"{name} is short of memory")

    def memory_alarm_end(self, name: str) -> None:
        self.machines[name].probe.used_bytes = USED_MEMORY_BYTES

    # --- links ---

    def cut(self, source: str, target: str) -> None:
        self.network.link(source, target).is_cut = True
        self.on_event(f"cut {source} -> {target}")

    def cut_end(self, source: str, target: str) -> None:
        self.network.link(source, target).is_cut = False
        self.on_event(f"heal {source} -> {target}")
        self.network.changed()

    def isolate(self, name: str) -> None:
        """From all other nodes; its clients reach it."""
        for other in self.machines:
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def isolate_end(self, name: str) -> None:
        for other in self.machines:
            if other != name:
                self.cut_end(name, other)
                self.cut_end(other, name)

    def refuse(self, source: str, target: str) -> None:
        self.network.link(source, target).is_refusing = True
        self.on_event(f"refuse {source} -> {target}")

    def refuse_end(self, source: str, target: str) -> None:
        self.network.link(source, target).is_refusing = False

    def reset(self, one: str, other: str, told: str, kept_percent: int) -> None:
        whom = {"one": (one,), "other": (other,)}.get(told, (one, other))
        broken = self.network.reset(one, other, lambda count: count * kept_percent // 100, told=whom)
        self.on_event(f"reset {broken} connections of {one} and {other}, told: {' '.join(whom)}")

    def slow_link(self, source: str, target: str, factor: int) -> None:
        self._slowness[source, target] = factor

    def slow_link_end(self, source: str, target: str) -> None:
        self._slowness.pop((source, target), None)

    # --- disks ---

    def slow_disk(self, name: str, factor: int) -> None:
        self.machines[name].disk_slowness = factor

    def slow_disk_end(self, name: str) -> None:
        self.machines[name].disk_slowness = 1.0

    def full_disk(self, name: str, left_bytes: int = 0) -> None:
        """But for so much: what is small may still find room when what is large does not."""
        self._spoil(name).capacity_bytes = self.machines[name].disk.used_bytes + left_bytes
        self.on_event(f"the disk of {name} has {left_bytes} bytes left")

    def full_disk_end(self, name: str) -> None:
        self.machines[name].disk.capacity_bytes = DISK_BYTES

    def fail_sync(self, name: str) -> None:
        """The next sync of anything fails, and the machine needs a new process."""
        disk = self._spoil(name)
        disk.fail_sync_after = disk.operations
        self.on_event(f"syncs of {name} fail")

    def fail_writes(self, name: str, place: str) -> None:
        """Files with this in their paths cannot be written."""
        self._spoil(name).fail_writes = place
        self.machines[name].has_refused_writes = True
        self.on_event(f"the disk of {name} fails to write {place}")

    def fail_writes_end(self, name: str) -> None:
        self.machines[name].disk.fail_writes = None

    def _spoil(self, name: str) -> SimulatedDisk:
        machine = self.machines[name]
        machine.is_disk_suspect = True
        return machine.disk

    def wipe(self, name: str) -> None:
        """Its node begins again on an empty disk; nothing if no other machine had one that remembers."""
        machine = self.machines[name]
        if machine.disk_before is None and any(
            other.disk_before is None for other in self.machines.values() if other is not machine
        ):
            self.kill(name)
            self.on_event(f"wipe the disk of {name}")
            machine.wipe_disk()
            self.start(name)

    def wipe_end(self, name: str) -> None:
        """The operator has found the disk again."""
        machine = self.machines[name]
        if machine.disk_before is not None:
            self.kill(name)
            self.on_event(f"restore the disk of {name}")
            machine.restore_disk()
            self.start(name)

    # --- ends ---

    def heal(self) -> None:
        """Take every fault away, start what does not run, or ends later, and restart whose disks refused to write."""
        self._is_healed = True
        for link in self.network.links():
            link.is_cut = link.is_refusing = False
        self._slowness.clear()
        for name, machine in self.machines.items():
            self.wipe_end(name)
            machine.mend_disk()
            self.memory_alarm_end(name)
            self.network.host_back(name)
            if machine.process is not None:
                machine.process.resume()
                if machine.has_refused_writes:
                    # What an operator does who has mended a disk: copies that failed are opened again by a restart.
                    self.stop(name)
            self.start(name)
        self.network.changed()

    def is_something_wrong(self) -> bool:
        """Some node is down or stands still, some link is cut, some disk is bad."""
        machines = self.machines.values()
        return any(
            machine.process is None or machine.process.is_paused or machine.is_disk_bad for machine in machines
        ) or any(link.is_cut or link.is_refusing for link in self.network.links())


def _shorten_log(node: Node, personality: Personality) -> None:
    """Snapshots of the metadata after few entries, so that a run meets what otherwise takes thousands."""
    kept = personality.log_entries_kept
    if kept:
        core = node.raft.core
        node.raft._snapshots._entries_max = 2 * kept
        core.compact = partial(core.compact, retained_entries=kept)  # type: ignore[method-assign]
