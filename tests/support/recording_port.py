"""A daemon that only writes down what operators and other nodes ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

from cluster.transport.admin_port import SyncProgress, Table
from node.ids import QueueId

LISTED = Table(("name", "messages", "arguments"), (("q", 3, {"x-max-length": 5}), ("r", None, {})))


class RecordingPort:
    """An `AdminPort` that remembers what it was asked, and refuses when told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refusal: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def record(*arguments: Any, **keywords: Any) -> Any:
            self.calls.append((name, *arguments, *(sorted(keywords.items()))))
            if self.refusal is not None:
                raise self.refusal
            if name.startswith("list_"):
                return LISTED
            return {
                "purge_queue": 7,
                "delete_queue": 9,
                "status": {"pid": 1},
                "cluster_status": {"n": [1]},
                "forget_cluster_node": {"deleted_queues": []},
                "held_copies": {QueueId(7): 12, QueueId(9): 0},
            }.get(name)

        return record

    async def sync_queue(self, vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        self.calls.append(("sync_queue", vhost, name))
        yield SyncProgress(1, 2, False)
        if self.refusal is not None:
            raise self.refusal
        yield SyncProgress(2, 2, True)
