"""What a healed cluster must come to: every node a member with the whole log, and every queue served.

Whether the copies are as the policy says, synchronised and equal is not looked at yet.
"""

from __future__ import annotations

from chaos.sim.cluster import SimulatedCluster


def why_not_converged(cluster: SimulatedCluster) -> str:
    """What is still missing; empty if nothing is."""
    missing = [name for name in cluster.machines if name not in cluster.nodes]
    if missing:
        return f"nodes that do not run: {', '.join(missing)}"
    if len({node.raft.applied_index for node in cluster.nodes.values()}) > 1:
        return "nodes have applied different parts of the log"
    state = next(iter(cluster.nodes.values())).runtime.metadata.state
    down = [name for name, member in state.members.items() if not member.is_up]
    if down:
        return f"nodes that count as down: {', '.join(down)}"
    for queue_id, record in state.masterships.items():
        if record.is_down:
            return f"queue {queue_id} is down"
        if not record.in_service:
            return f"queue {queue_id} is not in service"
    return ""
