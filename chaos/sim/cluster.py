"""A simulated cluster: machines, the network between them, and everything that can be done to either.

Each method is a step of a schedule (`chaos.sim.schedule`). A step that makes no sense where it comes does nothing: a
schedule from which steps were taken out is still one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from random import Random
from typing import Any

from chaos.sim.disk_faults import DiskFaults
from chaos.sim.happenings import DOWN, EVERYTHING, PAUSED
from chaos.sim.insides import consumed_in_secret
from chaos.sim.loop import Process, SimulatedLoop
from chaos.sim.machine import AMQP_PORT, DATA_DIR, MEMORY_BYTES, USED_MEMORY_BYTES, AdminDoor, Machine
from chaos.sim.network import Address, Link, Network
from chaos.sim.schedule import Personality, node_name
from cluster.composition import Node, compose_node
from cluster.metadata.kinds import FIRST_PROTOCOL, NEWEST_PROTOCOL
from cluster.raft.storage import RaftStorage
from cluster.runtime.identity import RAFT_DIRECTORY
from cluster.runtime.offline_forgetting import carry_out, plan_forgetting
from cluster.transport.admin_port import AdminPort
from node.errors import ConfigError, StorageError, WarrenError
from node.store.disk.simulated import CrashStyle, SimulatedDisk

#: Delays above the drawn ones of a link that is slow now and then.
SLOW_CHUNK_FACTOR = 10
CANNOT_START = "cannot start"
# Whoever looks after the nodes starts one again, and after a failed start not without a pause.
RESTART_PAUSE_S = 1.0
#: Between the loss of machines and what an operator does about it: those that are left have noticed.
OPERATOR_S = 4.0


class SimulatedCluster(DiskFaults):
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
        #: Node -> when it was started (True), or told to stop (False), microseconds.
        self.orders: dict[str, list[tuple[int, bool]]] = {}
        #: Names of auto-delete queues that may stay: only a node that is lost knew that they had a consumer.
        self.consumed_in_secret: dict[str, None] = {}
        #: Hears of rare states that were reached, see `chaos.sim.sometimes`.
        self.note: Callable[[str], None] = lambda _name: None
        self._slowness: dict[tuple[str, str], float] = {}
        #: When a link was slow for the last time.
        self.slow_until_s = float("-inf")
        self._is_healed = False
        #: Processes that stop together with their hosts.
        self._stopping_hosts: dict[str, Process] = {}
        #: Told what happens, in a line.
        self.on_event: Callable[[str], None] = lambda _text: None
        #: The same: a line, and what lane it is of and which spans it begins and ends
        #: (`chaos.sim.happenings`).
        self.on_happening: Callable[[str, str, str, str], None] = lambda _text, _lane, _begins, _ends: None
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
        draw = Random(f"{self._seed} delays {source} {target}").random
        low_s, range_s = low_ms / 1000, (high_ms - low_ms) / 1000
        direction = source, target

        def delay_s() -> float:
            drawn_s = low_s + range_s * draw()
            if draw() < slow:
                drawn_s *= SLOW_CHUNK_FACTOR
            return drawn_s * self._slowness[direction] if direction in self._slowness else drawn_s

        return Link(delay_s)

    def _tell(self, text: str, lane: str = "", *, begins: str = "", ends: str = "") -> None:
        self.on_event(text)
        self.on_happening(text, lane, begins, ends)

    # --- processes ---

    def start(self, name: str) -> None:
        machine = self.machines[name]
        if machine.process is None:
            if machine.is_forgotten:
                machine.begin_anew()
                self._tell(f"{name} begins anew on an empty disk", name)
            self.network.host_back(name)
            machine.is_restarting = False
            if machine.disk.has_lost_writes:
                # It is about to give up what a sync could not write, as if the power had gone.
                self.powers[name].append(self._now_us())
                machine.disk.has_lost_writes = False
            process = machine.start_process()
            self._note_order(name, is_start=True)
            self._tell(f"start {name}, life {process.number}", name, ends=DOWN)
            process.create_task(self._live(machine, process), name=name)

    async def _live(self, machine: Machine, process: Process) -> None:
        reason = ""
        try:
            node = compose_node(machine.config, machine.world())
            _shorten_log(node, self.personality)
            self.nodes[machine.name] = process.subject = node
            await node.run()
            while node.begins_again:
                node = self.nodes[machine.name] = process.subject = compose_node(machine.config, machine.world())
                await node.run()
            if node.failure is not None:
                reason = node.failure.reason
        except (ConfigError, StorageError) as error:
            reason = f"{CANNOT_START}: {error}"
        except Exception as error:  # the process of a real node ends so, too
            if not process.is_alive:
                return  # it was killed in the midst of this
            self.on_crash(machine.name, error)
            reason = f"crashed: {error!r}"
        self.loop.harness.call_soon(self._ended, machine, process, reason)

    def _ended(self, machine: Machine, process: Process, reason: str) -> None:
        if machine.process is process:
            self._tell(
                f"end of {machine.name}, life {process.number}: {reason or 'stopped'}", machine.name, begins=DOWN
            )
            is_suspect = machine.is_disk_suspect
            is_sent_away = machine.is_joining and "delete its data directory" in reason
            if is_sent_away and not machine.is_let_in:
                machine.is_forgotten = True  # whoever was let in is right to be there: an empty disk would hide that
            self._end(machine, is_silent=self._stopping_hosts.pop(machine.name, None) is process)
            machine.disk.lose_handles()
            is_refused = machine.is_joining and not is_sent_away
            is_expected = is_suspect or machine.disk_before is not None or machine.is_forgotten or is_refused
            if reason and machine.is_downgraded and "upgrade this node" in reason:
                self._install(machine, NEWEST_PROTOCOL)
                machine.is_restarting = True
            elif reason and not is_expected:
                self.on_failure(machine.name, reason)
            if self._is_healed and reason.startswith(CANNOT_START):
                self.loop.harness.call_later(RESTART_PAUSE_S, self.start, machine.name)
            elif self._is_healed or machine.is_restarting:
                self.start(machine.name)

    def kill(self, name: str) -> None:
        """SIGKILL: the machine goes on, and with it what the kernel has of the process's writes."""
        machine = self.machines[name]
        if machine.process is not None:
            self._tell(f"kill {name}", name, begins=DOWN)
            self._end(machine)
            machine.disk.lose_handles()

    def power(self, *names: str) -> None:
        """Take the power away from all of these in the same moment."""
        chance = Random(f"{self._seed} power {self.loop.now_s} {names}")
        for name in names:
            machine = self.machines[name]
            style = chance.choice(list(CrashStyle))
            self._tell(f"power loss of {name} ({style.value})", name, begins=DOWN)
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
            self._tell(f"{name} ends in an operation of its disk ({end})", name, begins=DOWN)
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

    def stop(self, name: str, is_with_host: int = 0) -> None:
        """SIGTERM. ``is_with_host``: its address goes with it, as that of a container does; nobody is refused then."""
        node, process = self.nodes.get(name), self.machines[name].process
        if node is not None and process is not None:
            self._note_order(name, is_start=False)
            self._tell(f"stop {name}", name)
            if is_with_host:
                self._stopping_hosts[name] = process
            process.call_soon(node.stop)

    # --- releases ---

    def upgrade(self, name: str) -> None:
        """An orderly stop, and a start with the new release."""
        self.note("a node was upgraded")
        self._change_release(self.machines[name], NEWEST_PROTOCOL)

    def downgrade(self, name: str) -> None:
        """The same with the release before, if that is still possible as far as its operator knows."""
        node = self.nodes.get(name)
        if node is None or node.runtime.metadata.state.protocol == FIRST_PROTOCOL:
            self.note("an upgrade was taken back")
            self._change_release(self.machines[name], FIRST_PROTOCOL)

    def _change_release(self, machine: Machine, spoken: int) -> None:
        if machine.speaks_protocol != spoken:
            self._install(machine, spoken)
            machine.is_restarting = machine.process is not None
            self.stop(machine.name)

    def _install(self, machine: Machine, spoken: int) -> None:
        self.on_event(f"{machine.name} gets a release of protocol {spoken}")
        machine.speaks_protocol, machine.is_downgraded = spoken, spoken < NEWEST_PROTOCOL

    def _upgrade_who_is_too_old(self) -> None:
        """An operator who is told by `cluster_status` that a node is away looks into its log."""
        needed = max((node.runtime.metadata.state.protocol for node in self.nodes.values()), default=FIRST_PROTOCOL)
        for machine in self.machines.values():
            if machine.speaks_protocol < needed:
                self._change_release(machine, NEWEST_PROTOCOL)

    def upgrade_newcomers(self) -> None:
        """The same for a node that asks to join when the protocol is just rising: the cluster raises it without asking
        who is no member yet, and the newcomer is told that it is too old."""
        for node in self.nodes.values():
            state = node.runtime.metadata.state
            for name, machine in self.machines.items():
                if machine.speaks_protocol < state.protocol and name not in state.members:
                    self._change_release(machine, NEWEST_PROTOCOL)

    def stop_leader(self, is_with_host: int = 0) -> None:
        """SIGTERM for the node that leads the metadata group."""
        for name, node in list(self.nodes.items()):
            if node.raft.core.is_leader:
                self.stop(name, is_with_host)

    def _end(self, machine: Machine, *, is_silent: bool = False) -> None:
        process = machine.process
        assert process is not None, "it runs"
        process.kill()
        if (node := self.nodes.pop(machine.name, None)) is not None:
            self.consumed_in_secret.update(dict.fromkeys(consumed_in_secret(node)))
        self.deaths[machine.name].append(self._now_us())
        if is_silent:
            self.network.host_lost(process, machine.name)
        else:
            self.network.process_died(process)
        machine.process_ended()

    def _note_order(self, name: str, *, is_start: bool) -> None:
        self.orders.setdefault(name, []).append((self._now_us(), is_start))

    def _now_us(self) -> int:
        return 1 + int(self.loop.now_s * 1e6)

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        process = self.machines[name].process
        if process is not None:
            self._tell(f"pause {name}", name, begins=PAUSED)
            process.pause()

    def pause_end(self, name: str) -> None:
        process = self.machines[name].process
        if process is not None:
            self._tell(f"resume {name}", name, ends=PAUSED)
            process.resume()

    def clock_jump(self, name: str, by_ms: int) -> None:
        process = self.machines[name].process
        if process is not None:
            self._tell(f"the wall clock of {name} jumps by {by_ms} ms", name)
            process.jump_clock(by_ms / 1000)

    def memory_alarm(self, name: str) -> None:
        """The node takes nearly all the memory there is."""
        self.machines[name].probe.used_bytes = MEMORY_BYTES * 9 // 10
        self._tell(f"{name} is short of memory", name, begins="short of memory")

    def memory_alarm_end(self, name: str) -> None:
        self.machines[name].probe.used_bytes = USED_MEMORY_BYTES
        self._tell(f"{name} has memory again", name, ends="short of memory")

    # --- links ---

    def cut(self, source: str, target: str) -> None:
        self.network.link(source, target).is_cut = True
        self._tell(f"cut {source} -> {target}", begins=f"cut {source} -> {target}")

    def cut_end(self, source: str, target: str) -> None:
        self.network.link(source, target).is_cut = False
        self._tell(f"heal {source} -> {target}", ends=f"cut {source} -> {target}")
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
        self._tell(f"refuse {source} -> {target}", begins=f"refuse {source} -> {target}")

    def refuse_end(self, source: str, target: str) -> None:
        self.network.link(source, target).is_refusing = False
        self._tell(f"accept {source} -> {target}", ends=f"refuse {source} -> {target}")

    def reset(self, one: str, other: str, told: str, kept_percent: int) -> None:
        whom = {"one": (one,), "other": (other,)}.get(told, (one, other))
        broken = self.network.reset(one, other, lambda count: count * kept_percent // 100, told=whom)
        self._tell(f"reset {broken} connections of {one} and {other}, told: {' '.join(whom)}")

    def slow_link(self, source: str, target: str, factor: int) -> None:
        self._slowness[source, target] = factor
        self._tell(f"slow {source} -> {target}, {factor} times", begins=f"slow {source} -> {target}")

    def slow_link_end(self, source: str, target: str) -> None:
        if self._slowness.pop((source, target), None) is not None:
            self.slow_until_s = self.loop.now_s
        self._tell(f"quick {source} -> {target}", ends=f"slow {source} -> {target}")

    @property
    def has_slow_links(self) -> bool:
        """Some link is slow now."""
        return bool(self._slowness)

    # --- disks ---

    def wipe(self, name: str) -> None:
        """Its node begins again on an empty disk; nothing if no other machine had one that remembers.

        Nor while it joins, as the disk before could not be judged then: until its node votes the cluster lets the empty
        one in in its place, and the disk before is refused for ever; from then on it is the other way round, and from
        outside nobody can say which. Tests of whole clusters do both (`tests/unit/chaos/sim/test_wipe.py`).
        """
        machine = self.machines[name]
        if machine.disk_before is not None or machine.is_joining:
            return
        if any(
            other.disk_before is None and not other.is_joining
            for other in self.machines.values()
            if other is not machine
        ):
            self.kill(name)
            self._tell(f"wipe the disk of {name}", name, begins="wiped disk")
            machine.wipe_disk()
            self.start(name)

    def wipe_end(self, name: str) -> None:
        """The operator has found the disk again."""
        machine = self.machines[name]
        if machine.disk_before is not None:
            self.kill(name)
            self._tell(f"restore the disk of {name}", name, ends="wiped disk")
            machine.restore_disk()
            self.start(name)
        elif machine.is_joining:
            self.start(name)  # it may have been refused, and have ended

    def forgotten(self, name: str) -> None:
        """The cluster has decided to go on without this node, so its disk need not be found again: an operator gives it
        an empty one when it is started again, as the node itself would say.

        One that runs, and has been on its way in since it was forgotten before, may be let in with what it has; if not,
        it says so (`_ended`).
        """
        machine = self.machines[name]
        self._tell(f"{name} is no member any more", name, ends="wiped disk")
        if machine.disk_before is not None:
            machine.disk_before = None
        elif machine.process is None or not machine.is_joining:
            machine.is_forgotten = True
        machine.is_joining, machine.is_let_in = True, False

    def joined(self, name: str) -> None:
        """It is a member again, as a new node."""
        self.machines[name].is_joining = False

    # --- members ---

    def add_machine(self, name: str) -> None:
        """A new one, whose node knows nobody."""
        self.machines[name] = Machine(name, self.loop, self.network, self.personality, self._seed, self.admin_doors)
        self.deaths[name], self.powers[name] = [], []

    def come(self, name: str) -> None:
        """A new machine starts, with a cluster of its own until it is told to join this one, and let in."""
        self.add_machine(name)
        self.machines[name].is_alone = self.machines[name].is_joining = True
        self.start(name)

    def is_alone(self, name: str) -> bool:
        """What this node says is of a cluster of its own."""
        return self.machines[name].is_alone

    def let_in(self, name: str) -> None:
        """The cluster has decided that this node may join."""
        self.machines[name].is_alone, self.machines[name].is_let_in = False, True

    def operate(self, at: str, request: Callable[[AdminPort], Coroutine[Any, Any, Any]]) -> asyncio.Task[None] | None:
        """Have an operator ask a node for something, once, whatever comes of it."""
        node, process = self.nodes.get(at), self.machines[at].process
        if node is None or process is None:
            return None

        async def ask() -> None:
            try:
                await request(node.admin)
            except WarrenError as error:
                self.on_event(f"{at} refuses: {error}")

        return process.create_task(ask())

    def forget(self, at: str, name: str) -> None:
        """`warrenctl forget_cluster_node`."""
        self.operate(at, lambda admin: admin.forget_cluster_node(name))

    def join(self, name: str, existing: str) -> None:
        """`warrenctl join_cluster`, for a node that is alone."""
        address = str(self.machines[existing].config.cluster_advertised_address)
        self.operate(name, lambda admin: admin.join_cluster(address))

    def rebalance(self, at: str) -> None:
        """`warrenctl rebalance_queues`."""

        async def rebalance(admin: AdminPort) -> None:
            async for report in admin.rebalance_queues("", "", is_dry_run=False):
                self.on_event(f"rebalancing: {report}")

        self.operate(at, rebalance)

    def forget_offline(self, at: str, *names: str) -> None:
        """`warrenctl forget_cluster_node --offline` on a node that is down. Raises `ConfigError` if it is refused."""
        machine = self.machines[at]
        if machine.process is None:
            plan = plan_forgetting(machine.disk, DATA_DIR, names)
            self.on_event(f"{at} forgets {', '.join(names)} offline: {', '.join(plan.remaining)} are left")
            carry_out(machine.disk, DATA_DIR, plan, Random(f"{self._seed} forgetting {at} {self.loop.now_s}"))

    def lose_for_good(self, count: int) -> None:
        """So many machines are lost with their disks, and the operator has the others go on without them: the one that
        has most of the log is told, as none but it may know of everything that was committed.

        Nothing if the others could decide something without it: that could not be told from here.
        """
        disks = {name: machine.disk for name, machine in self.machines.items()}
        ends = {name: reach for name, disk in disks.items() if (reach := _end_of_log(disk)) is not None}
        survivor = max(ends, key=lambda name: ends[name], default="")
        others = [name for name in self.machines if name != survivor]
        if len(ends) < len(disks) or 2 * (len(others) - count) > len(disks):
            return
        lost = Random(f"{self._seed} lost {self.loop.now_s}").sample(others, count)
        for name in (survivor, *lost):
            self.kill(name)
        for name in lost:
            self._tell(f"{name} is lost with its disk", name)
            self.machines[name].is_forgotten = self.machines[name].is_joining = True
        self.loop.harness.call_later(OPERATOR_S, self._go_on_without, survivor, lost)

    def _go_on_without(self, survivor: str, lost: list[str]) -> None:
        self.kill(survivor)
        self.forget_offline(survivor, *lost)
        self.start(survivor)

    # --- ends ---

    def heal(self) -> None:
        """Take every fault away, start what does not run, or ends later, and restart whose disks refused something."""
        self._is_healed = True
        self._tell("everything is healed", ends=EVERYTHING)
        for link in self.network.links():
            link.is_cut = link.is_refusing = False
        for source, target in list(self._slowness):
            self.slow_link_end(source, target)
        self._upgrade_who_is_too_old()
        for name, machine in self.machines.items():
            self.wipe_end(name)
            machine.mend_disk()
            self.memory_alarm_end(name)
            self.network.host_back(name)
            if machine.process is not None:
                machine.process.resume()
                if machine.has_refused:
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


def _end_of_log(disk: SimulatedDisk) -> tuple[int, int] | None:
    """Term and index of the last entry; ``None`` if there is none."""
    restored = RaftStorage.read(disk, f"{DATA_DIR}/{RAFT_DIRECTORY}")
    if restored is None:
        return None
    last = restored.entries[-1] if restored.entries else restored.snapshot
    return (last.term, last.index) if last.index else None


def _shorten_log(node: Node, personality: Personality) -> None:
    """Snapshots of the metadata after few entries, so that a run meets what otherwise takes thousands."""
    kept = personality.log_entries_kept
    if kept:
        core = node.raft.core
        node.raft._snapshots._entries_max = 2 * kept
        core.compact = partial(core.compact, retained_entries=kept)  # type: ignore[method-assign]
