"""An admin client that writes down what `warrenctl` asks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import SyncProgress, Table

REBALANCED: list[dict[str, Any]] = [
    {"vhost": "/", "queue": "a", "from": "n1", "to": "n2", "state": "moved", "reason": ""},
    {"vhost": "/", "queue": "b", "from": "n1", "to": "n3", "state": "refused", "reason": "n3 is not up"},
    {"is_finished": True, "moves": 1, "masters": {"n1": 2, "n2": 1}},
]
TABLE = Table(("name", "messages"), (("q", 5),))
VHOSTS = Table(("name",), (("/",), ("a.b",)))


class RecordingClient:
    """Answers every call with a listing, a count or nothing, and remembers what it was asked."""

    def __init__(self, error: AdminError | None = None, document: dict[str, Any] | None = None) -> None:
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.error = error
        self.document = document or {}
        #: By the name of a call, instead of what is answered otherwise.
        self.answers: dict[str, Any] = {}

    def __enter__(self) -> RecordingClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            if self.error is not None:
                raise self.error
            if name in self.answers:
                return self.answers[name]
            if (name, args) == ("list_vhosts", (["name"],)):
                return VHOSTS
            if name.startswith("list_"):
                return TABLE
            if name in ("cluster_status", "status"):
                return self.document
            return {
                "delete_queue": 5,
                "sync_queue": iter([SyncProgress(1, 1, True)]),
                "forget_cluster_node": {
                    "deleted_queues": ["queue 'q' in vhost '/'"],
                    "lossy_queues": {"queue 'r' in vhost '/'": "n2"},
                },
                "join_cluster": {"cluster": ["n1"]},
                "rebalance_queues": iter(REBALANCED),
            }.get(name)

        return answer


class Result(NamedTuple):
    exit_code: int
    out: str
    err: str


Tool = Callable[..., Result]
