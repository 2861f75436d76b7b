"""Membership messages as protobuf and back. See `cluster.wire.convert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cluster.membership.messages import NodeAlarms
from cluster.wire import mesh_pb2 as pb
from node.alarms.registry import Alarm

_BY_NAME = {alarm.value: alarm for alarm in Alarm}


def _alarms_to_wire(m: NodeAlarms) -> pb.NodeAlarms:
    return pb.NodeAlarms(resources=[alarm.value for alarm in m.alarms])


def _alarms_from_wire(w: pb.NodeAlarms) -> NodeAlarms:
    """Raises `ValueError` for a resource that we do not know."""
    unknown = [name for name in w.resources if name not in _BY_NAME]
    if unknown:
        raise ValueError(f"alarms of unknown resources: {', '.join(unknown)}")
    return NodeAlarms(tuple(_BY_NAME[name] for name in w.resources))


TO_WIRE: dict[type[Any], tuple[str, Callable[[Any], Any]]] = {NodeAlarms: ("node_alarms", _alarms_to_wire)}
FROM_WIRE: dict[str, Callable[[Any], NodeAlarms]] = {"node_alarms": _alarms_from_wire}
