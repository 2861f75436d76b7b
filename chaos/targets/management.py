"""`chaos.targets.target.Operator` over the HTTP interface of RabbitMQ's management plugin.

It answers for the whole cluster, whichever node it is asked at, and counts messages every five seconds only: what it
says of lengths may be so old.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp

from chaos.targets.outside import Management
from chaos.targets.target import NotNow, QueueView, TargetError

REQUEST_TIMEOUT_S = 5.0
_TEMPORARY = frozenset({502, 503, 504})


def view_of(said: Mapping[str, Any], numbers: Mapping[str, int]) -> QueueView:
    """An entry of ``/api/queues``; ``numbers`` of the nodes by their names. Others are left out."""
    if said.get("type") == "quorum":
        master, online = said.get("leader"), set(said.get("online") or ())
        mirrors = [name for name in said.get("members") or () if name != master]
        synchronised = [name for name in mirrors if name in online]
    else:
        master = said.get("node")
        mirrors, synchronised = said.get("slave_nodes") or [], said.get("synchronised_slave_nodes") or []
    is_down = said.get("state") in ("down", "crashed", "stopped")
    return QueueView(
        queue=said["name"],
        master=None if is_down else numbers.get(str(master)),
        mirrors=tuple(numbers[name] for name in mirrors if name in numbers),
        synchronised=tuple(numbers[name] for name in synchronised if name in numbers),
        ready=said.get("messages_ready"),
        unacked=said.get("messages_unacknowledged"),
    )


class ManagementOperator:
    """Of the cluster. Use it on one loop."""

    def __init__(self, management: Management, numbers: Mapping[str, int]) -> None:
        """``numbers`` of the nodes by their names."""
        self._management = management
        self._numbers = numbers
        self._vhost = quote(management.vhost, safe="")
        self._session: aiohttp.ClientSession | None = None

    async def queues(self) -> list[QueueView]:
        return [view_of(each, self._numbers) for each in await self._ask("GET", f"queues/{self._vhost}")]

    async def running(self) -> list[int]:
        nodes = await self._ask("GET", "nodes")
        names = [each["name"] for each in nodes if each.get("running")]
        return sorted(self._numbers[name] for name in names if name in self._numbers)

    async def set_policy(self, name: str, pattern: str, definition: Mapping[str, Any]) -> None:
        body = {"pattern": pattern, "definition": dict(definition), "apply-to": "queues"}
        await self._ask("PUT", f"policies/{self._vhost}/{quote(name, safe='')}", body)

    async def clear_policy(self, name: str) -> None:
        await self._ask("DELETE", f"policies/{self._vhost}/{quote(name, safe='')}")

    async def sync(self, queue: str) -> None:
        await self._act(queue, "sync")

    async def cancel_sync(self, queue: str) -> None:
        await self._act(queue, "cancel_sync")

    async def purge(self, queue: str) -> None:
        await self._ask("DELETE", f"queues/{self._vhost}/{quote(queue, safe='')}/contents")

    async def _act(self, queue: str, action: str) -> None:
        await self._ask("POST", f"queues/{self._vhost}/{quote(queue, safe='')}/actions", {"action": action})

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer. Raises `NotNow`, `TargetError`; no text of them has the password."""
        if self._session is None:
            login = aiohttp.encode_basic_auth(self._management.user, self._management.password)
            timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
            self._session = aiohttp.ClientSession(headers={"Authorization": login}, timeout=timeout)
        url = f"{self._management.url}/api/{path}"
        try:
            async with self._session.request(method, url, json=body) as answer:
                text = await answer.text()
                if answer.status in _TEMPORARY:
                    raise NotNow(f"{url} says {answer.status}: {text[:200]}")
                if answer.status >= 400:
                    raise TargetError(f"{url} refused {method}: {answer.status} {text[:200]}")
                return await answer.json(content_type=None) if text.strip() else None
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise NotNow(f"{url} does not answer: {type(error).__name__}") from None
        except ValueError as error:
            raise TargetError(f"{url} does not answer in JSON: {error}") from None
