"""A simulated cluster: machines, the network between them, and everything that can be done to either.

Each method is a step of a schedule (`chaos.sim.schedule`). A step that makes no sense where it comes does nothing: a
schedule from which steps were taken out is still one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.machine import AMQP_PORT, AdminDoor, Machine
from chaos.sim.network import Address, Link, Network
from chaos.sim.schedule import Personality, node_name
from cluster.composition import Node, compose_node
from node.errors import ConfigError, StorageError
from node.store.disk.simulated import CrashStyle

#: More than any run writes.
DISK_BYTES = 1 << 40
#: Delays above the drawn ones of a link that is slow now and then.
SLOW_CHUNK_FACTOR = 10


class SimulatedCluster:
    """See the module text. All nodes run what `cluster.composition.compose_node` makes."""

    def __init__(self, loop: SimulatedLoop, personality: Personality, seed: int) -> None:
        self.loop = loop
        self.personality = personality
        self._chance = Random(f"{seed} cluster")
        self._delays = Random(f"{seed} delays")
        self.network = Network(loop, self._make_link)
        self.admin_doors: dict[str, AdminDoor] = {}
        self.machines = {
            name: Machine(name, loop, self.network, personality, Random(f"{seed} machine {name}"), self.admin_doors)
            for name in (node_name(number) for number in range(1, personality.nodes + 1))
        }
        #: By name; only those that run.
        self.nodes: dict[str, Node] = {}
        #: Node -> times at which a life of it ended, microseconds.
        self.deaths: dict[str, list[int]] = {name: [] for name in self.machines}
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
        chance = self._delays

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
            self.on_crash(machine.name, error)
            reason = f"crashed: {error!r}"
        self.loop.harness.call_soon(self._ended, machine, process, reason)

    def _ended(self, machine: Machine, process: Process, reason: str) -> None:
        if machine.process is process:
            self.on_event(f"end of {machine.name}, life {process.number}: {reason or 'stopped'}")
            self._end(machine)
            if reason and machine.disk_before is None:
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
        for name in names:
            machine = self.machines[name]
            style = self._chance.choice(list(CrashStyle))
            self.on_event(f"power loss of {name} ({style.value})")
            if machine.process is not None:
                self._end(machine, is_silent=True)
            machine.disk.crash(style, self._chance)

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
        self.deaths[machine.name].append(1 + int(self.loop.now_s * 1e6))
        if is_silent:
            self.network.host_lost(process, machine.name)
        else:
            self.network.process_died(process)
        machine.process_ended()

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
            self.on_event(f"the clock of {name} jumps by {by_ms} ms")
            process.jump_clock(by_ms / 1000)

    # --- links ---

    def cut(self, source: str, target: str) -> None:
        self.network.link(source, target).is_cut = True
        self.on_event(f"cut {source} -> {target}")

    def cut_end(self, source: str, target: str) -> None:
        self.network.link(source, target).is_cut = False
        self.on_event(f"heal {source} -> {target}")
        self.network.changed()

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

    def full_disk(self, name: str) -> None:
        disk = self.machines[name].disk
        disk.capacity_bytes = disk.used_bytes
        self.on_event(f"the disk of {name} is full")

    def full_disk_end(self, name: str) -> None:
        self.machines[name].disk.capacity_bytes = DISK_BYTES

    def fail_sync(self, name: str) -> None:
        """The next sync of anything fails, and the machine needs a new process."""
        disk = self.machines[name].disk
        disk.fail_sync_after = disk.operations
        self.on_event(f"syncs of {name} fail")

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
        """Take every fault away, and start what does not run, or ends later."""
        self._is_healed = True
        for link in self.network.links():
            link.is_cut = link.is_refusing = False
        self._slowness.clear()
        for name, machine in self.machines.items():
            self.wipe_end(name)
            self.slow_disk_end(name)
            self.full_disk_end(name)
            machine.disk.fail_sync_after = None
            self.network.host_back(name)
            if machine.process is not None:
                machine.process.resume()
            self.start(name)
        self.network.changed()

    def check_invariants(self) -> None:
        self.network.check_invariants()
        for node in self.nodes.values():
            node.check_invariants()
