"""What policy and configuration say of the mirroring of one queue."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.mirroring.sync import SYNC_BATCH_MESSAGES

#: In flight to one mirror and not applied there: some hundred ms of full speed on a local network, and small
#: enough that every queue of a node may have it at once during a burst.
WINDOW_BYTES = 32 * 1024 * 1024
#: A mirror that owes an answer this long is reported: longer than any pause that an fsync or a collection explains.
MIRROR_STALL_MS = 30_000
#: A mirror that cannot be spoken to for this long is reported: nothing else than its link explains that. Whoever is
#: silent towards everybody counts as down by then (`cluster.silence_timeout_ms`, of which this has the value).
MIRROR_UNREACHABLE_MS = 5_000


@dataclass(frozen=True, slots=True)
class MirroringSettings:
    """Policy and configuration of one queue, as far as mirroring cares."""

    #: False for a non-durable queue: its persistent messages need only be applied.
    is_durable: bool = True
    #: The queue refuses what comes while it is full: a high-water mark of an origin may cover what was refused.
    refuses_publishes: bool = False
    #: ``ha-sync-mode = automatic``: fill every mirror without being asked.
    sync_automatically: bool = False
    sync_batch_messages: int = SYNC_BATCH_MESSAGES
    #: ``mirroring_sync_max_throughput`` in bytes per second, 0 = no limit.
    sync_throughput_bytes: int = 0
    stall_ms: int = MIRROR_STALL_MS
    unreachable_ms: int = MIRROR_UNREACHABLE_MS
    window_bytes: int = WINDOW_BYTES
