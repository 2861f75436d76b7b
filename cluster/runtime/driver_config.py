"""How a node takes part in the metadata group: what `cluster.runtime.raft_driver.RaftDriver` is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DriverConfig:
    #: A proposal that was not applied is proposed again after this long, and at once under a new leader.
    retry_interval_ms: int = 500
    #: How long `RaftDriver.propose` tries by default.
    proposal_timeout_ms: int = 30_000
    #: Together with an election timeout it is longer than an election usually takes (two of them), so that an election
    #: is no reason to pause: see `cluster.runtime.standing`.
    quorum_grace_ms: int = 3000
    #: Clients are not served while this node pauses (`cluster.partition_handling`).
    pauses_clients: bool = True
    #: A sync of the log that takes so long hangs: `cluster.runtime.sync_watch`. A busy disk takes a second or two.
    hanging_sync_ms: int = 10_000
    #: A link that says nothing is cut after this.
    silence_timeout_ms: int = 5000
    #: Applied entries per snapshot: replaying them takes well under a second.
    snapshot_entries: int = 10_000
    #: Log file that calls for a snapshot however few its entries.
    snapshot_log_bytes: int = 64 * 1024 * 1024
