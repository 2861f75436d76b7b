"""A group of Raft nodes under virtual time, with a network and disks that misbehave from a seed.

A harness of the pure core (`cluster.raft.core`): it carries out what the core asks for. The core promises to be safe
however messages come, so here they come worse than the connections of the simulator (`chaos.sim.network`) ever would.

Messages may be lost, delayed (and so reordered) and repeated; links may be cut in one direction, or hold what is sent,
or be slow (both keep its order); a disk write takes time and is lost if its node crashes before. After every event the
network checks Raft's safety properties; a violation is an `AssertionError` that names the term or index.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable
from functools import partial
from random import Random

from cluster.raft.core import ProposalRefusedError, RaftConfig, RaftCore, RestoredState, founding_state
from cluster.raft.messages import (
    Entry,
    EntryKind,
    Message,
    Ready,
    Snapshot,
    VoteRequest,
    VoteResponse,
)
from node.ids import NodeName

TICK_MS = 10


class SimulatedNode:
    """One node: its core while it runs, and what its disk holds."""

    def __init__(self, name: NodeName, state: RestoredState) -> None:
        self.name = name
        self.core: RaftCore | None = None
        self.disk_snapshot = state.snapshot
        self.disk_entries = list(state.entries)
        self.disk_hard_state = state.hard_state
        self.writes: list[Ready] = []
        self.is_writing = False
        self.life = 0
        self.applied_index = 0
        self.digest = 0
        self.applied: list[bytes] = []
        #: Overrides the network's `disk_delay_max_ms` for this node.
        self.disk_delay_max_ms: int | None = None

    def write(self, ready: Ready) -> None:
        """The disk carries out one `Ready`."""
        if ready.snapshot is not None:
            self.disk_snapshot = ready.snapshot
            self.disk_entries = []
        if ready.entries_to_append:
            first = ready.entries_to_append[0].index
            self.disk_entries = [entry for entry in self.disk_entries if entry.index < first]
            self.disk_entries.extend(ready.entries_to_append)
        if ready.hard_state is not None:
            self.disk_hard_state = ready.hard_state


class RaftNetwork:
    """See the module's docstring. All times in virtual milliseconds."""

    def __init__(self, names: list[str], seed: int = 0, founders: list[str] | None = None) -> None:
        self.rng = Random(seed)
        self.now_ms = 0
        self.loss = 0.0
        self.duplication = 0.0
        self.delay_max_ms = 5
        self.disk_delay_max_ms = 3
        self.compact_every: int | None = None
        self.retained_entries = 5
        self.cut: set[tuple[str, str]] = set()
        #: Messages that wait on links which hold them.
        self._held: dict[tuple[str, str], list[Message]] = {}
        #: Links that take exactly so long.
        self.slow_ms: dict[tuple[str, str], int] = {}
        self.sent: list[Message] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._event_number = 0
        self.leader_of_term: dict[int, str] = {}
        self.vote_in_term: dict[tuple[str, int], str] = {}
        self.content: dict[tuple[int, int], tuple[EntryKind, bytes, int]] = {}
        self.decided: dict[int, Entry] = {}
        self.digest_at: dict[int, int] = {0: 0}
        #: When the first node applied it.
        self.decided_ms: dict[int, int] = {}
        #: When a leader put a command into its log for the first time.
        self.appended_ms: dict[bytes, int] = {}
        founding = [NodeName(name) for name in (founders if founders is not None else names)]
        self.nodes = {
            name: SimulatedNode(NodeName(name), founding_state(founding if name in founding else [])) for name in names
        }
        for name in names:
            self.start(name)

    # ------------------------------------------------------------------ faults

    def start(self, name: str) -> None:
        node = self.nodes[name]
        assert node.core is None, f"{name} runs already"
        node.life += 1
        state = RestoredState(node.disk_snapshot, tuple(node.disk_entries), node.disk_hard_state)
        node.core = RaftCore(RaftConfig(node.name), state, Random(self.rng.random()), self.now_ms)
        self._restore(node, node.disk_snapshot)
        self._schedule(self.rng.randint(0, TICK_MS), partial(self._tick, node, node.life))
        self._drain(node)

    def crash(self, name: str) -> None:
        """Kill the process: what was not yet durable is lost, except perhaps a prefix of it."""
        node = self.nodes[name]
        survivors = self.rng.randint(0, len(node.writes))
        for ready in node.writes[:survivors]:
            node.write(ready)
        node.core = None
        node.writes.clear()
        node.is_writing = False

    def partition(self, *groups: list[str]) -> None:
        """Cut every link between different groups."""
        self.cut = {(a, b) for g in groups for h in groups if g is not h for a in g for b in h}

    def hold(self, source: str, target: str) -> None:
        """What is sent there waits from now on, however long."""
        self._held.setdefault((source, target), [])

    def let_go(self, source: str, target: str) -> None:
        """All that was held comes at once."""
        for message in self._held.pop((source, target), []):
            self._deliver(message)

    def heal(self) -> None:
        self.cut = set()
        self.loss = self.duplication = 0.0
        self.delay_max_ms = 5
        for name, node in self.nodes.items():
            if node.core is None:
                self.start(name)

    # ------------------------------------------------------------------ driving

    def core(self, name: str) -> RaftCore:
        core = self.nodes[name].core
        assert core is not None, f"{name} is down"
        return core

    def call(self, name: str, act: Callable[[RaftCore], None]) -> None:
        """Do something with a node's core and carry out what follows."""
        act(self.core(name))
        self._drain(self.nodes[name])

    def propose(self, name: str, *payloads: bytes) -> bool:
        """True if the node took the proposal (it may still be lost)."""
        if self.nodes[name].core is None:
            return False
        try:
            self.call(name, lambda core: core.propose(self.now_ms, payloads))
        except ProposalRefusedError:
            return False
        return True

    def run(self, duration_ms: int) -> None:
        end = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end:
            self.now_ms, _, act = heapq.heappop(self._events)
            act()
        self.now_ms = end

    def run_until(self, condition: Callable[[], bool], limit_ms: int = 20_000) -> None:
        end = self.now_ms + limit_ms
        while not condition():
            assert self.now_ms < end, f"not reached within {limit_ms} ms of virtual time: {self.describe()}"
            self.run(1)

    def leader(self) -> str | None:
        """The leader of the highest term that believes to be one."""
        leaders = [(n.core.term, name) for name, n in self.nodes.items() if n.core is not None and n.core.is_leader]
        return max(leaders)[1] if leaders else None

    def elect(self) -> str:
        """Run until there is a leader that everybody who is up and connected can follow."""
        self.run_until(lambda: (name := self.leader()) is not None and self.core(name).log.commit >= self._start(name))
        name = self.leader()
        assert name is not None
        return name

    def _start(self, name: str) -> int:
        log = self.core(name).log
        return log.first_index_of_term(log.last_index)

    def describe(self) -> str:
        """One line for the message of a failure."""
        texts = []
        for name, node in self.nodes.items():
            core = node.core
            state = "down" if core is None else f"{core.role.value} term {core.term} log {core.log.last_index}"
            texts.append(f"{name}: {state}")
        return ", ".join(texts)

    def applied(self, name: str) -> list[bytes]:
        """Commands applied by a node since its start (a restored snapshot brings none)."""
        return self.nodes[name].applied

    # ------------------------------------------------------------------ inside

    def _schedule(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._event_number += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._event_number, act))

    def _tick(self, node: SimulatedNode, life: int) -> None:
        if node.core is None or node.life != life:
            return
        node.core.tick(self.now_ms)
        self._drain(node)
        self._check_currency(node)
        self._check_configuration(node)
        self._schedule(TICK_MS, partial(self._tick, node, life))

    def _drain(self, node: SimulatedNode) -> None:
        while node.core is not None and node.core.has_work:
            node.core.check_invariants()
            self._check_leadership(node)
            ready = node.core.take_ready()
            self._check_ready(node, ready)
            self._send_all(ready.messages_now)
            node.writes.append(ready)
            self._start_write(node)
            if ready.snapshot is not None:
                self._restore(node, ready.snapshot)
            for entry in ready.committed:
                self._apply(node, entry)
            node.core.check_invariants()

    def _start_write(self, node: SimulatedNode) -> None:
        if node.is_writing or not node.writes:
            return
        node.is_writing = True
        slowest_ms = self.disk_delay_max_ms if node.disk_delay_max_ms is None else node.disk_delay_max_ms
        delay = self.rng.randint(0, slowest_ms) if node.writes[0].needs_sync else 0
        self._schedule(delay, partial(self._finish_write, node, node.life))

    def _finish_write(self, node: SimulatedNode, life: int) -> None:
        if node.core is None or node.life != life:
            return
        ready = node.writes.pop(0)
        node.is_writing = False
        node.write(ready)
        self._send_all(ready.messages_after_append)
        node.core.appended(ready)
        self._start_write(node)
        self._drain(node)

    def _send_all(self, messages: tuple[Message, ...]) -> None:
        for message in messages:
            self.sent.append(message)
            self._check_vote(message)
            copies = 2 if self.duplication and self.rng.random() < self.duplication else 1
            for _ in range(copies):
                if self.loss and self.rng.random() < self.loss:
                    continue
                delay_ms = self.slow_ms.get((message.sender, message.receiver))
                if delay_ms is None:
                    delay_ms = self.rng.randint(0, self.delay_max_ms)
                self._schedule(delay_ms, partial(self._deliver, message))
        del self.sent[:-2000]

    def _deliver(self, message: Message) -> None:
        node = self.nodes.get(message.receiver)
        link = (message.sender, message.receiver)
        if node is None or node.core is None or link in self.cut:
            return
        if link in self._held:
            self._held[link].append(message)
            return
        node.core.step(self.now_ms, message)
        self._drain(node)

    def _restore(self, node: SimulatedNode, snapshot: Snapshot) -> None:
        node.applied_index = snapshot.index
        node.digest = int.from_bytes(snapshot.data, "big")
        assert self.digest_at[snapshot.index] == node.digest, f"snapshot at {snapshot.index} holds another state"

    def _apply(self, node: SimulatedNode, entry: Entry) -> None:
        assert node.core is not None
        assert entry.index == node.applied_index + 1, "every entry is applied once, in order"
        assert self.decided.setdefault(entry.index, entry) == entry, f"two entries decided at {entry.index}"
        node.applied_index = entry.index
        self.decided_ms.setdefault(entry.index, self.now_ms)
        node.digest = zlib.crc32(entry.payload, node.digest)
        assert self.digest_at.setdefault(entry.index, node.digest) == node.digest, "states differ"
        if entry.kind is EntryKind.COMMAND:
            node.applied.append(entry.payload)
        if self.compact_every and entry.index % self.compact_every == 0:
            data = node.digest.to_bytes(4, "big")
            # Applying the rest of a batch comes later; only up to here is in the snapshot.
            node.disk_snapshot = node.core.snapshot_of(entry.index, data)
            node.core.compact(node.disk_snapshot, self.retained_entries)

    # ------------------------------------------------------------------ safety properties

    def _check_vote(self, message: Message) -> None:
        if isinstance(message, VoteResponse) and message.granted:
            voter, candidate = message.sender, message.receiver
        elif isinstance(message, VoteRequest):
            voter = candidate = message.sender
        else:
            return
        vote = self.vote_in_term.setdefault((voter, message.term), candidate)
        assert vote == candidate, f"{voter} voted for {vote} and {candidate} in term {message.term}"

    def _check_leadership(self, node: SimulatedNode) -> None:
        core = node.core
        assert core is not None
        if not core.is_leader or self.leader_of_term.get(core.term) == node.name:
            return
        other = self.leader_of_term.setdefault(core.term, node.name)
        assert other == node.name, f"{other} and {node.name} both lead term {core.term}"
        for index, entry in self.decided.items():
            if index > core.log.base_index and entry.term < core.term:
                assert core.log.matches(index, entry.term), f"leader {node.name} lacks decided entry {index}"

    def _check_configuration(self, node: SimulatedNode) -> None:
        """It follows from an entry that changed the voters, whether the node has that entry or a snapshot."""
        assert node.core is not None
        made_by = (node.core.log.configuration_index, node.core.log.configuration_term)
        if made_by in self.content:  # else it is of the founding, or yet to be written
            kind, _, _ = self.content[made_by]
            assert kind in (EntryKind.ADD_VOTER, EntryKind.REMOVE_VOTER), f"{node.name} takes {kind.name} for a change"

    def _check_currency(self, node: SimulatedNode) -> None:
        """Whoever is current as of a time has applied what anybody had applied by then."""
        assert node.core is not None
        as_of_ms = node.core.currency.as_of_ms(node.applied_index)
        assert as_of_ms <= self.now_ms, "nobody knows the future"
        decided_ms = self.decided_ms.get(node.applied_index + 1)
        assert decided_ms is None or decided_ms >= as_of_ms, (
            f"{node.name} claims to be current as of {as_of_ms} and lacks what was decided at {decided_ms}"
        )

    def _check_ready(self, node: SimulatedNode, ready: Ready) -> None:
        core = node.core
        assert core is not None
        for entry in ready.entries_to_append:
            if core.is_leader and entry.kind is EntryKind.COMMAND:
                self.appended_ms.setdefault(entry.payload, self.now_ms)
            previous = core.log.term_at(entry.index - 1)
            if previous is None:
                continue
            content = (entry.kind, entry.payload, previous)
            known = self.content.setdefault((entry.index, entry.term), content)
            assert known == content, f"logs differ below ({entry.index}, {entry.term})"
