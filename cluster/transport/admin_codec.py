"""Admin requests and answers as protobuf, and the metadata keys and channel options that go with them."""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from typing import Any

from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, Table, WrongCookie
from cluster.transport.admin_proof import caller_proof, node_proof
from cluster.transport.turns import ROWS_PER_TURN
from cluster.wire import admin_pb2 as pb
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.config_keys import DISK_TO_MEMORY_FACTOR_MAX
from node.pieces import Pieces, make_each

#: What the node has challenged the caller with, and the caller's answer (`cluster.transport.admin_proof`).
CHALLENGE_METADATA_KEY = "warren-challenge-bin"
PROOF_METADATA_KEY = "warren-proof-bin"
#: Of the service: what a proof is made for begins with it.
METHOD_PREFIX = "/warren.admin.Admin/"
#: Exit code of a refused request, decimal, in the trailing metadata.
EXIT_CODE_METADATA_KEY = "warren-exit-code"
#: A listing of a million queues fits; a runaway answer does not.
MAX_ANSWER_BYTES = 256 * 1024 * 1024
#: Of every channel to an admin service.
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    # A laboratory talks to many short-lived nodes on one address: no shared connection, short backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)

#: Objects and arrays within each other in the definition of a policy; what a setting can use has two.
DEFINITION_DEPTH_MAX = 10
_TOO_DEEP = "it is nested too deeply; a setting is a text, a number or a list of texts"

OLDER_RELEASE = "is a node of an older release, which sends the cookie in the clear: use its own warrenctl"


def answer_challenge(cookie: bytes, nonce: bytes, said: pb.ChallengeReply, method: str) -> list[tuple[str, bytes]]:
    """Metadata for one request. Raises `WrongCookie` if it is not the node's, `AdminRefused` if we have none."""
    if not hmac.compare_digest(said.proof, node_proof(cookie, nonce, said.nonce)):
        if not cookie:
            raise AdminRefused(ExitCode.UNAVAILABLE, "no cookie was given, and the node asks for its cluster's")
        raise WrongCookie
    return [
        (CHALLENGE_METADATA_KEY, said.nonce),
        (PROOF_METADATA_KEY, caller_proof(cookie, nonce, said.nonce, method)),
    ]


def table_to_wire(table: Table) -> Pieces[pb.Table]:
    encode = json.JSONEncoder(separators=(",", ":")).encode
    wire = pb.Table(columns=table.columns)
    for number, row in enumerate(table.rows, 1):
        wire.rows.add(cells=[encode(cell) for cell in row])
        if number % ROWS_PER_TURN == 0:
            yield
    return wire


def table_from_wire(table: pb.Table) -> Pieces[Table]:
    decode = json.JSONDecoder().decode
    rows = yield from make_each(lambda row: tuple(map(decode, row.cells)), table.rows, ROWS_PER_TURN)
    return Table(columns=tuple(table.columns), rows=tuple(rows))


def definition_from_json(text: str) -> dict[str, Any]:
    """The definition of a policy. Raises `ValueError` if it is no JSON object, or nested as no setting can be."""
    try:
        definition = json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if not isinstance(definition, dict):
        raise ValueError('write an object, for instance {"ha-mode":"all"}')
    if _is_deeper(definition, DEFINITION_DEPTH_MAX):
        raise ValueError(_TOO_DEEP)
    return definition


def _is_deeper(value: Any, levels: int) -> bool:
    """There are more than so many objects or arrays within each other."""
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def policy_to_wire(policy: PolicyRecord) -> pb.Policy:
    return pb.Policy(
        vhost=policy.vhost,
        name=policy.name,
        pattern=policy.pattern,
        definition=json.dumps(dict(policy.definition)),
        priority=policy.priority,
        apply_to=policy.apply_to,
    )


def policy_from_wire(policy: pb.Policy) -> PolicyRecord:
    """Raises `ValueError` if the definition is none, see `definition_from_json`."""
    return PolicyRecord(
        vhost=policy.vhost,
        name=policy.name,
        pattern=policy.pattern,
        definition=definition_from_json(policy.definition),
        priority=policy.priority,
        apply_to=policy.apply_to or "all",
    )


def listing_to_wire(vhost: str, columns: Sequence[str], selection: QueueSelection | None = None) -> pb.Listing:
    selection = selection or QueueSelection()
    return pb.Listing(
        vhost=vhost,
        columns=columns,
        online=selection.online,
        offline=selection.offline,
        local=selection.local,
    )


def selection_from_wire(listing: pb.Listing) -> QueueSelection:
    return QueueSelection(online=listing.online, offline=listing.offline, local=listing.local)


def watermark_to_wire(watermark: MemoryWatermark) -> pb.ResourceLimit:
    if watermark.absolute_bytes is not None:
        return pb.ResourceLimit(absolute_bytes=watermark.absolute_bytes)
    return pb.ResourceLimit(relative=watermark.relative)


def watermark_from_wire(limit: pb.ResourceLimit) -> MemoryWatermark:
    """Raises `ValueError`."""
    if limit.WhichOneof("limit") == "absolute_bytes":
        return MemoryWatermark(absolute_bytes=limit.absolute_bytes)
    if not 0 <= limit.relative <= 1:
        raise ValueError(f"a memory watermark is a fraction from 0 to 1, not {limit.relative:g}")
    return MemoryWatermark(limit.relative)


def disk_limit_to_wire(limit: DiskFreeLimit) -> pb.ResourceLimit:
    if limit.relative is not None:
        return pb.ResourceLimit(relative=limit.relative)
    return pb.ResourceLimit(absolute_bytes=limit.absolute_bytes)


def disk_limit_from_wire(limit: pb.ResourceLimit) -> DiskFreeLimit:
    """Raises `ValueError`."""
    if limit.WhichOneof("limit") == "absolute_bytes":
        return DiskFreeLimit(limit.absolute_bytes)
    if not 0 <= limit.relative <= DISK_TO_MEMORY_FACTOR_MAX:
        raise ValueError(f"a disk limit is 0 to {DISK_TO_MEMORY_FACTOR_MAX:g} times the memory, not {limit.relative:g}")
    return DiskFreeLimit(relative=limit.relative)


def progress_to_wire(progress: SyncProgress) -> pb.SyncProgress:
    return pb.SyncProgress(
        synchronised_messages=progress.synchronised_messages,
        total_messages=progress.total_messages,
        is_finished=progress.is_finished,
    )


def progress_from_wire(progress: pb.SyncProgress) -> SyncProgress:
    return SyncProgress(progress.synchronised_messages, progress.total_messages, progress.is_finished)
