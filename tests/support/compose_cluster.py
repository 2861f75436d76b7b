"""The cluster of ``deploy/docker-compose.yml`` for tests: a project of its own, on free ports, gone at the end.

Compose only starts and removes it. Everything that happens to a container in between goes through the ``docker``
package, and everything that is asked of a node goes through its published ports.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import docker
import pytest
from docker.models.containers import Container

from chaos.cluster_under_test.ports import choose_free_ports
from chaos.cluster_under_test.process_ids import node_of_pid, nodes_of_pids
from chaos.targets.compose import compose_command, engine
from cluster.metadata.records import PolicyRecord
from cluster.transport.admin_client import AdminClient, AdminError
from cluster.transport.admin_port import ExitCode
from tests.support.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
HOST = "127.0.0.1"
NODES = ("n1", "n2", "n3")
#: A start takes some seconds; on a loaded machine several health checks may pass before one succeeds.
READY_TIMEOUT_S = 90.0
#: Of a promotion or a synchronisation of some thousand messages, which take a second or two.
CHANGE_TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0
REQUEST_TIMEOUT_S = 5.0
#: Each question goes to a container.
_POLL_INTERVAL_S = 0.1

#: A node that starts, or has no quorum yet, answers so; asking again helps.
_ASK_AGAIN = (ExitCode.UNAVAILABLE, ExitCode.TEMPORARY)

_Value = TypeVar("_Value")
#: What `sample_of_row` reads.
SAMPLE_COLUMNS = (
    "name",
    "pid",
    "slave_pids",
    "synchronised_slave_pids",
    "messages_ready",
    "messages_unacknowledged",
)


@dataclass(frozen=True, slots=True)
class QueueSample:
    """What one node said about one queue at one moment."""

    queue: str
    #: Node of the master; None while there is none.
    master: str | None
    #: Nodes of the mirrors, oldest first, and those of them that hold everything the master holds.
    mirrors: tuple[str, ...]
    synchronised: tuple[str, ...]
    messages_ready: int
    messages_unacked: int


def sample_of_row(row: Mapping[str, Any]) -> QueueSample:
    """One row of ``list_queues`` as a sample."""
    return QueueSample(
        queue=row["name"],
        master=node_of_pid(row["pid"]),
        mirrors=nodes_of_pids(row["slave_pids"]),
        synchronised=nodes_of_pids(row["synchronised_slave_pids"]),
        messages_ready=int(row["messages_ready"] or 0),
        messages_unacked=int(row["messages_unacknowledged"] or 0),
    )


def eventually_answered(question: Callable[[], _Value], what: str, timeout_s: float = CHANGE_TIMEOUT_S) -> _Value:
    """`eventually`; a node that is not there yet gives no answer."""
    return eventually(question, what, timeout_s, poll_interval_s=_POLL_INTERVAL_S, may_ask_again=_may_ask_again)


def _may_ask_again(error: Exception) -> bool:
    return isinstance(error, AdminError) and error.exit_code in _ASK_AGAIN


@contextmanager
def docker_engine() -> Iterator[docker.DockerClient]:
    """A client of the engine. Without an engine the test is skipped, but in CI that is a failure."""
    client = engine()
    if isinstance(client, str):
        if os.environ.get("CI"):
            pytest.fail(client)
        pytest.skip(client)
    try:
        yield client
    finally:
        client.close()


class ComposeCluster:
    """Three nodes in containers."""

    def __init__(self, engine: docker.DockerClient, image: str) -> None:
        self._engine = engine
        self._project = f"warren-test-{secrets.token_hex(4)}"
        command = compose_command()
        assert command is not None, "there is a Docker engine, but neither `docker compose` nor docker-compose"
        self._compose = [*command, "-p", self._project, "-f", str(DEPLOY / "docker-compose.yml")]
        ports = choose_free_ports(HOST, 2 * len(NODES))
        self._amqp_ports = dict(zip(NODES, ports[: len(NODES)], strict=True))
        self._admin_ports = dict(zip(NODES, ports[len(NODES) :], strict=True))
        self._environment = _environment(image, self._amqp_ports, self._admin_ports)
        self._cookie = (DEPLOY / "cookie").read_text().strip()

    # --- life ---

    def compose(self, *arguments: str) -> str:
        """Run a command of compose; its output."""
        result = subprocess.run(
            [*self._compose, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert result.returncode == 0, f"compose {' '.join(arguments)}:\n{result.stdout}"
        return result.stdout

    def remove(self) -> None:
        """Containers, network and volumes; also what is left of a start that failed."""
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    def container(self, node: str) -> Container:
        """The node's container as it is now."""
        labels = [f"com.docker.compose.project={self._project}", f"com.docker.compose.service={node}"]
        (container,) = self._engine.containers.list(all=True, filters={"label": labels})
        return container

    def wait_ready(self) -> None:
        """Until every container is healthy and every node counts all three among the running ones."""
        for node in NODES:
            eventually_answered(lambda node=node: self._is_healthy(node), f"{node} is healthy", READY_TIMEOUT_S)  # type: ignore[misc]
        for node in NODES:
            eventually_answered(
                lambda node=node: sorted(self.running_nodes(node)) == list(NODES),  # type: ignore[misc]
                f"{node} sees all three running",
                READY_TIMEOUT_S,
            )

    def _is_healthy(self, node: str) -> bool:
        state = self.container(node).attrs["State"]
        assert state["Running"], f"{node} ended with {state['ExitCode']}:\n{self.compose('logs', '--no-color', node)}"
        return bool(state["Health"]["Status"] == "healthy")

    # --- questions ---

    def amqp_url(self, node: str) -> str:
        return f"amqp://guest:guest@{HOST}:{self._amqp_ports[node]}/"

    def running_nodes(self, asked: str) -> list[str]:
        with self._admin(asked) as admin:
            running: list[str] = admin.cluster_status()["running_nodes"]
            return running

    def queue(self, asked: str, name: str) -> QueueSample:
        """What the node asked says about a queue."""
        with self._admin(asked) as admin:
            rows = admin.list_queues("/", SAMPLE_COLUMNS).as_dicts()
        (row,) = (row for row in rows if row["name"] == name)
        return sample_of_row(row)

    def set_policy(self, asked: str, definition: Mapping[str, object]) -> None:
        """Make ``definition`` the one policy of all queues."""
        with self._admin(asked) as admin:
            admin.set_policy(PolicyRecord("/", "ha-all", "^", dict(definition), priority=0, apply_to="queues"))

    def start_count(self, node: str) -> int:
        """How often the node started with the disk it has: it counts that on this disk."""
        result = self.container(node).exec_run(["cat", "/var/lib/warren/data/incarnation"])
        assert result.exit_code == 0, result.output
        assert isinstance(result.output, bytes), "it was not asked for as a stream"
        return int(result.output)

    def _admin(self, node: str) -> AdminClient:
        return AdminClient(f"{HOST}:{self._admin_ports[node]}", self._cookie, timeout_s=REQUEST_TIMEOUT_S)


def _environment(image: str, amqp_ports: Mapping[str, int], admin_ports: Mapping[str, int]) -> dict[str, str]:
    """Ours, without what would name another cluster."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("WARREN_", "COMPOSE_"))}
    environment["WARREN_IMAGE"] = image
    for node in NODES:
        environment[f"WARREN_{node.upper()}_AMQP_PORT"] = str(amqp_ports[node])
        environment[f"WARREN_{node.upper()}_ADMIN_PORT"] = str(admin_ports[node])
    return environment


@contextmanager
def compose_cluster(engine: docker.DockerClient) -> Iterator[ComposeCluster]:
    """A running cluster of the image that WARREN_IMAGE names; everything of it is removed at the end."""
    image = os.environ.get("WARREN_IMAGE", "warren:latest")
    try:
        engine.images.get(image)
    except docker.errors.ImageNotFound:
        pytest.fail(f"there is no image {image}; `make containers` builds it and runs this test")
    cluster = ComposeCluster(engine, image)
    try:
        cluster.compose("up", "--detach")
        cluster.wait_ready()
        yield cluster
        print(cluster.compose("logs", "--no-color", "--tail", "100"))
    finally:
        cluster.remove()
