"""Reading a snapshot of the metadata, in pieces: the state that it is of, made beside the one that readers see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cluster.metadata.codec import decode_in_pieces
from cluster.metadata.mastership import as_in_version_1
from cluster.metadata.masterships import RecordTables
from cluster.metadata.records import MemberRecord, PolicyRecord
from node.pieces import Pieces
from node.topology.content import TopologyContent

#: Format of `MetadataState.snapshot`; those of version 1 can be read.
SNAPSHOT_VERSION = 2


class Restored(NamedTuple):
    """What a snapshot says. Small tables are plain data still."""

    applied_index: int
    rules_version: int
    is_founded: bool
    topology: TopologyContent
    masterships: RecordTables
    users: Mapping[str, Any]
    members: Sequence[MemberRecord]
    admissions: list[Any]
    policies: Sequence[PolicyRecord]
    requests: list[Any]


def read_snapshot(data: bytes) -> Pieces[Restored]:
    """Raises `CodecError` for bytes that are none."""
    content = yield from decode_in_pieces(data)
    version = content["version"]
    assert version in (1, SNAPSHOT_VERSION), f"snapshot version {version} is not supported by this release"
    topology = yield from TopologyContent.read(content.pop("topology"))
    upgrade = as_in_version_1 if version < SNAPSHOT_VERSION else None
    masterships = yield from RecordTables.read(content.pop("masterships"), content.pop("mirror_since"), upgrade)
    return Restored(
        applied_index=content["applied_index"],
        rules_version=content["rules_version"] if version >= SNAPSHOT_VERSION else 1,
        is_founded=content.get("is_founded", bool(topology.vhosts)),
        topology=topology,
        masterships=masterships,
        users=content["users"],
        members=content["members"],
        admissions=content.get("admissions", [[], []]),
        policies=content["policies"],
        requests=content["requests"],
    )


def sorted_values(table: Mapping[Any, Any]) -> list[Any]:
    """In the order of the keys, which is the same on every node."""
    return [value for _, value in sorted(table.items())]
