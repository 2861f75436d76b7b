"""A cluster of real processes for tests that block: start, kill, ask, and wait for conditions."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import aio_pika
import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection

from chaos.cluster_under_test.local import HOST, LocalCluster
from chaos.cluster_under_test.ports import choose_free_ports, is_port_free
from chaos.cluster_under_test.process_ids import node_of_pid, nodes_of_pids
from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_client import AdminClient, AdminError
from node.config import parse_address
from tests.support.waiting import DEFAULT_TIMEOUT_S, eventually

#: A node of this age notices a frozen peer soon, so that tests do not have to wait for it.
FAST_DETECTION = ("cluster.silence_timeout_ms=2000", "raft.election_timeout_ms=500", "raft.heartbeat_ms=50")


class QueueView(NamedTuple):
    """One row of ``list_queues``."""

    master: str | None
    mirrors: tuple[str, ...]
    synchronised: tuple[str, ...]
    ready: int | None
    unacked: int | None
    consumers: int | None
    state: str | None
    #: Mirrors that hear of what is published now, synchronised or not.
    streaming: tuple[str, ...]
    lossy_promotions: int

    @property
    def is_synchronised(self) -> bool:
        """There are mirrors, and all of them are synchronised."""
        return bool(self.mirrors) and set(self.mirrors) == set(self.synchronised)


class LiveCluster:
    """A `LocalCluster` for code that blocks. Use `run_cluster`."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local

    # --- life and death ---

    @property
    def nodes(self) -> Sequence[str]:
        return self.local.nodes

    def kill(self, *nodes: str) -> None:
        """All of them at once, as when the power fails: none lives long enough to see another one die."""

        async def kill_together() -> None:
            for node in nodes:
                await self.local.pause(node)
            await asyncio.gather(*(self.local.kill(node) for node in nodes))

        asyncio.run(kill_together())

    def kill_and_notice(self, node: str) -> None:
        """Kill a node, and wait until the others have declared it down."""
        self.kill(node)
        self.wait_running(*self.local.running_nodes())

    def start_one(self, node: str) -> None:
        """Start a node again on its data, and wait only until it answers operators: alone it serves nobody."""
        asyncio.run(self.local.restart(node))
        eventually(lambda: self._answers(node), f"{node} answers")

    def start_and_wait_for_end(self, node: str) -> int:
        """Start a node that will not stay, and give its exit code."""
        asyncio.run(self.local.restart(node))
        return self.local.wait_for_end(node)

    def restart(self, *nodes: str) -> None:
        """Start nodes again on their data, and wait until all that run see each other."""

        async def restart_together() -> None:
            await asyncio.gather(*(self.local.restart(node) for node in nodes))
            await self.local.wait_ready()

        asyncio.run(restart_together())

    def all_up(self) -> None:
        """Start whatever an earlier test has left down."""
        down = [node for node in self.nodes if not self.local.is_running(node)]
        if down:
            self.restart(*down)
        self.wait_running(*self.nodes)

    def wait_running(self, *nodes: str) -> None:
        """Until every node of ``nodes`` counts exactly these as running."""

        def agreed() -> bool:
            return all(self._running_seen_by(node) == set(nodes) for node in nodes)

        eventually(agreed, f"all of {nodes} see exactly these running")

    def _answers(self, node: str) -> bool:
        try:
            with self.admin(node) as client:
                return bool(client.status())
        except AdminError:
            return False

    def _running_seen_by(self, node: str) -> set[str]:
        try:
            with self.admin(node) as client:
                return set(client.cluster_status()["running_nodes"])
        except AdminError:
            return set()

    # --- operators ---

    def admin(self, node: str = "") -> AdminClient:
        """The admin service of a node; of any that runs, if none is named."""
        chosen = node or self.local.running_nodes()[0]
        return AdminClient(self.local.admin_address(chosen), self.local.cookie, timeout_s=10)

    def set_policy(self, name: str, pattern: str, **definition: object) -> None:
        """``ha_mode="all"`` stands for ``ha-mode``."""
        plain = {key.replace("_", "-"): value for key, value in definition.items()}
        with self.admin() as client:
            client.set_policy(PolicyRecord("/", name, pattern, plain, 0, "queues"))

    def clear_policy(self, name: str) -> None:
        with self.admin() as client:
            client.clear_policy("/", name)

    def queue(self, name: str, node: str = "") -> QueueView | None:
        """What ``list_queues`` on ``node`` says, ``None`` if there is no such queue or no answer at the moment."""
        columns = (
            *("name", "pid", "slave_pids", "synchronised_slave_pids"),
            *("messages_ready", "messages_unacknowledged", "consumers", "state"),
            *("streaming_mirror_pids", "lossy_promotions"),
        )
        try:
            with self.admin(node) as client:
                rows = client.list_queues("/", columns).as_dicts()
        except AdminError:
            return None
        for row in rows:
            if row["name"] == name:
                return QueueView(
                    node_of_pid(row["pid"]),
                    nodes_of_pids(row["slave_pids"]),
                    nodes_of_pids(row["synchronised_slave_pids"]),
                    row["messages_ready"],
                    row["messages_unacknowledged"],
                    row["consumers"],
                    row["state"],
                    nodes_of_pids(row["streaming_mirror_pids"]),
                    row["lossy_promotions"],
                )
        return None

    def wait_queue(self, name: str, condition: Callable[[QueueView], object], what: str, node: str = "") -> QueueView:
        """The first view of a queue that fulfils ``condition``."""
        views: list[QueueView | None] = [None]

        def look() -> QueueView | None:
            views[0] = view = self.queue(name, node)
            return view if view is not None and condition(view) else None

        try:
            found = eventually(look, f"queue {name}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}; seen: {views[0]}") from None
        assert found is not None
        return found

    def wait_synchronised(self, name: str, mirror_count: int) -> QueueView:
        return self.wait_queue(
            name,
            lambda view: len(view.mirrors) == mirror_count and view.is_synchronised,
            f"{mirror_count} synchronised mirrors",
        )

    def warrenctl(self, *arguments: str) -> tuple[int, str, str]:
        """Run the real program on this cluster: exit code, standard output, standard error."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("WARREN_")}
        program = Path(sys.executable).parent / "warrenctl"
        command = [str(program), "--dir", str(self.local.directory.path), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
        return result.returncode, result.stdout, result.stderr

    # --- clients ---

    def url(self, node: str) -> str:
        """As clients like it, with the vhost written out."""
        return self.local.amqp_url(node) + "%2F"

    def connect(self, node: str, **parameters: Any) -> BlockingConnection:
        address = parse_address(self.local.directory.node(node).amqp_address)
        defaults: dict[str, Any] = {"blocked_connection_timeout": 30, "socket_timeout": 30}
        return BlockingConnection(pika.ConnectionParameters(address.host, address.port, **(defaults | parameters)))

    @contextmanager
    def channel(self, node: str, *, confirm: bool = False) -> Iterator[BlockingChannel]:
        """A channel of a connection of its own; both are closed behind it, also if their node is gone."""
        connection = self.connect(node)
        try:
            channel = connection.channel()
            if confirm:
                channel.confirm_delivery()
            yield channel
        finally:
            with suppress(pika.exceptions.AMQPError):
                connection.close()


@contextmanager
def run_cluster(path: Path, *settings: str, node_count: int = 3, checkout: Path | None = None) -> Iterator[LiveCluster]:
    """Nodes ``n1``, ``n2`` ... on free ports in ``path``; nothing of them is left afterwards.

    ``checkout``: they run the code that is there.
    """
    local = LocalCluster.create(path, node_count, settings=[*FAST_DETECTION, *settings])
    if checkout is not None:
        local.checkouts = dict.fromkeys(local.nodes, checkout)

    async def start() -> None:
        await local.start()
        await local.wait_ready()

    try:
        asyncio.run(start())
        yield LiveCluster(local)
    finally:
        local.kill_all()
        asyncio.run(local.close())


def first_of_free_ports(count: int) -> int:
    """First of ``count`` free ports in a row."""
    for port in choose_free_ports(HOST, 100):
        if all(is_port_free(HOST, port + offset) for offset in range(count)):
            return port
    raise AssertionError(f"no {count} free ports in a row")


# --- what tests do with queues ---

#: Messages on their way at once; the server batches what arrives together.
WINDOW = 500
#: What a `SteadyPublisher` has on its way at once.
IN_FLIGHT = 20
PERSISTENT = pika.BasicProperties(delivery_mode=2)  # type: ignore[no-untyped-call]


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Bodies that tell themselves apart and sort in the order of publishing."""
    return [b"%08d" % number for number in range(first, first + count)]


def publish_confirmed(cluster: LiveCluster, node: str, queue: str, bodies: Sequence[bytes]) -> None:
    """Publish persistent messages to the default exchange; returns when every one is confirmed, fails on a nack."""

    async def publish() -> None:
        async with await aio_pika.connect(cluster.url(node)) as connection:
            channel = await connection.channel()
            for start in range(0, len(bodies), WINDOW):
                messages = (persistent(body) for body in bodies[start : start + WINDOW])
                await asyncio.gather(
                    *(channel.default_exchange.publish(message, queue, mandatory=True) for message in messages)
                )

    asyncio.run(publish())


def persistent(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


class SteadyPublisher:
    """Publishes numbered persistent messages one after the other, in a thread, until told to stop.

    ``confirmed`` and ``failed`` grow as the answers come: a lost connection fails what was on its way.
    """

    def __init__(self, cluster: LiveCluster, node: str, queue: str) -> None:
        self.confirmed: list[bytes] = []
        self.failed: list[bytes] = []
        self._url = cluster.url(node)
        self._queue = queue
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SteadyPublisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Publish nothing more, wait for the answers to what was published."""
        self._stop.set()
        self._thread.join(DEFAULT_TIMEOUT_S)
        assert not self._thread.is_alive(), f"confirms are missing; {len(self.confirmed)} came"
        if self._error is not None:
            raise self._error

    def wait_confirms(self, more: int) -> None:
        """Until ``more`` confirms have come from now on."""
        wanted = len(self.confirmed) + more
        eventually(lambda: len(self.confirmed) >= wanted or self._error, f"{more} more confirms")
        assert self._error is None, self._error

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:
            self._error = error

    async def _publish(self) -> None:
        number = 0
        async with await aio_pika.connect(self._url) as connection:
            exchange = (await connection.channel()).default_exchange
            while not self._stop.is_set():
                bodies = numbered(IN_FLIGHT, number)
                number += IN_FLIGHT
                results = await asyncio.gather(
                    *(exchange.publish(persistent(body), self._queue) for body in bodies), return_exceptions=True
                )
                for body, result in zip(bodies, results, strict=True):
                    (self.failed if isinstance(result, BaseException) else self.confirmed).append(body)
