"""What a healed cluster must come to: every node a member, every queue served, and its copies as its policy says."""

from __future__ import annotations

from chaos.sim.cluster import SimulatedCluster


def why_not_converged(cluster: SimulatedCluster) -> str:
    """What is still missing; empty if nothing is."""
    missing = [name for name in cluster.machines if name not in cluster.nodes]
    if missing:
        return f"nodes that do not run: {', '.join(missing)}"
    states = {name: node.runtime.metadata.state for name, node in cluster.nodes.items()}
    if len({node.raft.applied_index for node in cluster.nodes.values()}) > 1:
        return "nodes have applied different parts of the log"
    state = next(iter(states.values()))
    down = [name for name, member in state.members.items() if not member.is_up]
    if down:
        return f"nodes that count as down: {', '.join(down)}"
    for queue_id, record in state.masterships.items():
        if record.is_down:
            return f"queue {queue_id} is down"
        if not record.in_service:
            return f"queue {queue_id} is not in service"
    return ""
