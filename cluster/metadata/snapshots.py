"""Reading a snapshot of the metadata, in pieces: the state that it is of, made beside the one that readers see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cluster.metadata.codec import decode_in_pieces
from cluster.metadata.mastership import as_in_version_1
from cluster.metadata.masterships import RecordTables
from cluster.metadata.records import MemberRecord, PolicyRecord
from node.pieces import Pieces
from node.topology.content import TopologyContent


class Restored(NamedTuple):
    """What a snapshot says. Small tables are plain data still."""

    applied_index: int
    #: What `ClusterProtocol.snapshot` had given.
    protocol: Mapping[str, Any]
    rules_version: int
    is_founded: bool
    topology: TopologyContent
    masterships: RecordTables
    users: Mapping[str, Any]
    members: Sequence[MemberRecord]
    admissions: list[Any]
    policies: Sequence[PolicyRecord]
    requests: list[Any]


def read_snapshot(data: bytes, check: Callable[[Mapping[str, Any]], int]) -> Pieces[Restored]:
    """``check`` gives the format of what was decoded, or raises. Raises `CodecError` for bytes that are none."""
    content = yield from decode_in_pieces(data)
    version = check(content)
    topology = yield from TopologyContent.read(content.pop("topology"))
    upgrade = as_in_version_1 if version == 1 else None
    masterships = yield from RecordTables.read(
        content.pop("masterships"), content.pop("mirror_since"), content.get("left", ()), upgrade
    )
    return Restored(
        applied_index=content["applied_index"],
        protocol={name: content[name] for name in ("protocol", "announced") if name in content},
        rules_version=content["rules_version"] if version > 1 else 1,
        is_founded=content.get("is_founded", bool(topology.vhosts)),
        topology=topology,
        masterships=masterships,
        users=content["users"],
        members=content["members"],
        admissions=content.get("admissions", [[], []]),
        policies=content["policies"],
        requests=content["requests"],
    )
