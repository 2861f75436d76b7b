"""What a healed cluster must come to.

- Every node runs, is a member that counts as up, serves clients, and has no alarm.
- All have applied the same log, and hold the same metadata (once at the end, byte for byte).
- Every queue has its master in service, on the node that the record names, and exactly the mirrors that its policy
  asks for (the release before does not replace one that left an ``exactly`` queue); nothing of it is sealed or out of
  service anywhere, and no node has a part in it but by the record.
- Every mirror follows; where the policy says so it is synchronised.
- No disk has anything of a vhost that does not exist.
- All synchronised copies have the same messages at the same positions (digests, and once at the end the very bytes),
  and none would give a position twice. A mirror's horizon lies above everything that its master may have delivered.
- A master serves every consumer that a channel anywhere has of its queue, and no other.
- A queue has every message once, and keeps its limit. Queues of connections that are gone are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from chaos.sim.cluster import SimulatedCluster
from chaos.sim.insides import contents, is_sealed, roles, route_to, served_consumers
from chaos.sim.machine import DATA_DIR
from chaos.sim.stage import queue_number
from cluster.composition import Node
from cluster.metadata.mastership import REPLACING_MIRRORS, is_settled, placement_of
from cluster.metadata.records import MastershipRecord
from cluster.metadata.state import MetadataState
from cluster.policy.placement import Suggestion, suggest_nodes
from cluster.runtime.queue_role import MasterRole, MirrorRole
from node.ids import MSG_ID_BYTES, NodeName
from node.queues.vhost_store import VHOSTS_NAME, vhost_directory
from node.topology.records import QueueRecord


def why_not_converged(cluster: SimulatedCluster, is_of_workload: Callable[[str], bool] = lambda _name: True) -> str:
    """What is still missing; empty if nothing is. ``is_of_workload``: whether a queue of this name may be left."""
    return next(_missing(cluster, is_of_workload), "")


def _missing(cluster: SimulatedCluster, is_of_workload: Callable[[str], bool]) -> Iterator[str]:
    missing = [name for name in cluster.machines if name not in cluster.nodes]
    if missing:
        yield f"nodes that do not run: {', '.join(missing)}"
    nodes = list(cluster.nodes.values())
    for name, node in cluster.nodes.items():
        if node.runtime.alarms.listing():
            yield f"{name} knows of an alarm: {node.runtime.alarms.listing()}"
        if not node.clients.is_serving:
            yield f"{name} does not serve clients"
    if len({node.raft.applied_index for node in nodes}) > 1:
        yield "nodes have applied different parts of the log"
    state = nodes[0].runtime.metadata.state
    lowest = min(machine.speaks_protocol for machine in cluster.machines.values())
    if state.protocol != lowest:
        yield f"the protocol is {state.protocol}, and every node speaks {lowest}"
    down = [name for name, member in state.members.items() if not member.is_up]
    if down:
        yield f"nodes that count as down: {', '.join(down)}"
    directories = {vhost_directory(DATA_DIR, vhost) for vhost in state.topology.vhosts()}
    for name, machine in cluster.machines.items():
        if {
            f"{DATA_DIR}/{VHOSTS_NAME}/{each}" for each in machine.disk.list(f"{DATA_DIR}/{VHOSTS_NAME}")
        } - directories:
            yield f"{name} has files of vhosts that do not exist"
    for queue in state.topology.all_queues():
        if not is_of_workload(queue.name):
            yield f"{queue.queue_name} should be gone"
        for reason in _missing_of_queue(cluster, state, queue):
            yield f"{queue.queue_name} (id {queue.queue_id}): {reason}"


def policy_of(state: MetadataState, queue: QueueRecord) -> dict[str, Any]:
    """The definition that counts for the replicas of a queue."""
    policy = state.policy_of_queue(queue)
    return {} if policy is None or queue.exclusive_owner is not None else dict(policy.definition)


def _is_unfilled(definition: dict[str, Any], record: MastershipRecord) -> bool:
    """Its policy has mirrors filled, and some are not."""
    return definition.get("ha-sync-mode") == "automatic" and record.synchronised != record.mirrors


def _is_short_as_it_was(
    state: MetadataState, definition: dict[str, Any], record: MastershipRecord, wanted: Suggestion
) -> bool:
    """The release before replaces no mirror that left by itself, and takes it back only if another has not fewer."""
    has_gone = record.master == wanted.master and set(record.mirrors) < set(wanted.mirrors)
    return definition.get("ha-mode") == "exactly" and has_gone and state.rules_version < REPLACING_MIRRORS


def unfilled_queues(cluster: SimulatedCluster) -> list[QueueRecord]:
    """Those in service with mirrors that their policies want to be filled."""
    state = next(iter(cluster.nodes.values())).runtime.metadata.state
    return [
        queue
        for queue in state.topology.all_queues()
        if (record := state.masterships[queue.queue_id]).in_service and _is_unfilled(policy_of(state, queue), record)
    ]


def filled_mirrors(cluster: SimulatedCluster) -> int:
    """How many there are of all queues, by the node that knows most."""
    states = [node.runtime.metadata.state for node in cluster.nodes.values()]
    return max((sum(len(each.synchronised) for each in state.masterships.values()) for state in states), default=0)


def _missing_of_queue(cluster: SimulatedCluster, state: MetadataState, queue: QueueRecord) -> Iterator[str]:
    record = state.masterships[queue.queue_id]
    if record.is_down:
        yield "it is down"
    if not record.in_service or not is_settled(record):
        yield "it is not in service, or waits for a copy"
    definition = policy_of(state, queue)
    wanted = suggest_nodes(definition, placement_of(record), state.running_nodes())
    if (record.master, sorted(record.mirrors)) != (wanted.master, sorted(wanted.mirrors)) and not (
        _is_short_as_it_was(state, definition, record, wanted)
    ):
        yield f"it is on {record.master} {record.mirrors}, and its policy wants {wanted.master} {wanted.mirrors}"
    if record.following != record.mirrors:
        yield f"of its mirrors {record.mirrors} only {record.following} follow"
    if _is_unfilled(definition, record):
        yield f"of its mirrors {record.mirrors} only {record.synchronised} are synchronised"
    for name, node in cluster.nodes.items():
        if node.runtime.queues.is_failed(queue.queue_id):
            yield f"its copy on {name} is out of service"
        reason = _wrong_role(NodeName(name), node, record)
        if reason:
            yield f"{name} {reason}"
    master = roles(cluster.nodes[record.master], queue.queue_id)
    assert isinstance(master, MasterRole), "looked at above"
    yield from _differing_consumers(cluster, master)
    options = master.process.options
    # Under reject-publish what was accepted stays, also if more comes back than there is room for.
    may_exceed = options.max_length is None or options.rejects_overflow
    if not may_exceed and master.process.ready > (options.max_length or 0):
        yield f"{master.process.ready} messages are ready, and it is limited to {options.max_length}"
    ids = [envelope[:MSG_ID_BYTES] for _, envelope in contents(master)]
    if len(set(ids)) < len(ids):
        yield f"of {len(ids)} messages {len(ids) - len(set(ids))} are there twice"
    for mirror in record.synchronised:
        copy = roles(cluster.nodes[mirror], queue.queue_id)
        assert isinstance(copy, MirrorRole), "looked at above"
        reason = _difference(master, copy)
        if reason:
            yield f"the copies on {record.master} and {mirror} differ: {reason}"


def _wrong_role(name: NodeName, node: Node, record: MastershipRecord) -> str:
    """What the node is to the queue against what the record says."""
    role = roles(node, record.queue_id)
    is_named = name == record.master or name in record.mirrors
    if role is None:
        return "has no part in it" if is_named else ""
    if not is_named:
        return "has a part in it that the record does not give"
    if role.record != record:
        return "follows another record"
    if (name == record.master) != isinstance(role, MasterRole):
        return "has the wrong part"
    if isinstance(role, MasterRole) and role.mirrored.is_fenced:
        return "is fenced"
    return "has sealed it" if is_sealed(role) else ""


def _differing_consumers(cluster: SimulatedCluster, master: MasterRole) -> Iterator[str]:
    """Consumers that have nobody who serves them, or nobody whom they serve."""
    routes = [route_to(node, master.record.queue_id) for node in cluster.nodes.values()]
    present = {key for route in routes if route is not None for key in route.consumers}
    served = served_consumers(master)
    if present - served:
        yield f"its master does not serve {sorted(present - served)}"
    if served - present:
        yield f"its master serves {sorted(served - present)}, whose channels do not have them"


def _difference(master: MasterRole, mirror: MirrorRole) -> str:
    ours, theirs = master.local, mirror.local
    if ours.next_seq_id > theirs.next_seq_id:
        return f"the next position is {ours.next_seq_id} here and {theirs.next_seq_id} there"
    if ours.digests() != theirs.digests():
        return f"{ours.live_counts()} messages here and {theirs.live_counts()} there"
    if master.mirrored._delivered_end > mirror.replica._heard_horizon:
        return f"the master may have delivered {master.mirrored._delivered_end}, the mirror does not know"
    return ""


def ready_in(cluster: SimulatedCluster, queue_name: str) -> int:
    """How many messages wait for consumers in a queue, which may not be there."""
    state = next(iter(cluster.nodes.values())).runtime.metadata.state
    for queue in state.topology.all_queues():
        if queue.name == queue_name:
            master = roles(cluster.nodes[state.masterships[queue.queue_id].master], queue.queue_id)
            return master.process.ready if isinstance(master, MasterRole) else 0
    return 0


def different_metadata(cluster: SimulatedCluster) -> str:
    """Whether nodes that have applied the same log hold different metadata; empty if none do."""
    states = [node.runtime.metadata.state for node in cluster.nodes.values()]
    held: dict[int, set[bytes]] = {}
    for state in states:
        held.setdefault(state.applied_index, set()).add(state.snapshot())
    is_different = any(len(snapshots) > 1 for snapshots in held.values())
    return "nodes have applied the same log and hold different metadata" if is_different else ""


def different_bytes(cluster: SimulatedCluster) -> str:
    """What differs in any byte, the metadata of nodes or the messages of synchronised copies; empty if nothing does.
    Reads everything, so it is asked when nothing else is missing."""
    reason = different_metadata(cluster)
    if reason:
        return reason
    state = next(iter(cluster.nodes.values())).runtime.metadata.state
    for queue in state.topology.all_queues():
        record = state.masterships[queue.queue_id]
        copies = {}
        for name in (record.master, *record.synchronised):
            role = roles(cluster.nodes[name], queue.queue_id)
            if role is not None:
                copies[name] = contents(role)
        different = [name for name in record.synchronised if copies.get(name) != copies.get(record.master)]
        if different:
            return f"{queue.queue_name}: {', '.join(different)} differ in bytes from {record.master}"
    return ""


def masters(cluster: SimulatedCluster) -> dict[int, tuple[str, int]]:
    """Master and epoch of every queue that has come to stay: a master that its policy does not list (``ha-mode =
    nodes``) waits only until a listed mirror is synchronised, and what takes messages out may synchronise it. What is
    there for a while only may stay or go, if nobody was told whether it was ever consumed."""
    state = next(iter(cluster.nodes.values())).runtime.metadata.state
    staying: dict[int, tuple[str, int]] = {}
    for queue in state.topology.all_queues():
        record, policy = state.masterships[queue.queue_id], policy_of(state, queue)
        has_arrived = policy.get("ha-mode") != "nodes" or record.master in policy["ha-params"]
        if has_arrived and queue_number(queue.name) is not None:
            staying[int(queue.queue_id)] = (record.master, record.epoch)
    return staying
