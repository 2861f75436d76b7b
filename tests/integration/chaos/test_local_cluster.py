"""`warren cluster` and `warrenctl` on a real cluster of three processes: up, kill, restart, down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.cluster_under_test.local import LocalCluster
from chaos.cluster_under_test.processes import read_mark, running_process
from cluster.directory import read_cluster_directory
from tests.support.live_cluster import first_of_free_ports
from tests.support.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PROGRAMS = Path(sys.executable).parent


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAMS / program, *arguments], capture_output=True, text=True, timeout=120, check=False, env=_environment()
    )


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("WARREN_")}


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "cluster"
    if (tmp_path / "cluster" / "cluster.json").exists():
        LocalCluster.attach(tmp_path / "cluster").kill_all()


@pytest.fixture
def up(directory: Path) -> Path:
    result = run("warren", "cluster", "up", "--dir", str(directory), "--amqp-port", str(first_of_free_ports(3)))
    assert result.returncode == 0, result.stderr
    return directory


def cluster_status(directory: Path, node: str) -> dict[str, list[str]]:
    result = run("warrenctl", "--dir", str(directory), "-n", node, "--formatter", "json", "cluster_status")
    assert result.returncode == 0, result.stderr
    document: dict[str, list[str]] = json.loads(result.stdout)
    return document


def test_a_cluster_lives_through_a_kill(up: Path) -> None:
    assert sorted(cluster_status(up, "n2")["running_nodes"]) == ["n1", "n2", "n3"]
    assert (
        sorted(cluster_status(up, "n2")["versions"])
        == sorted(cluster_status(up, "n2")["listeners"])
        == ["n1", "n2", "n3"]
    )
    assert "already runs" in run("warren", "cluster", "up", "--dir", str(up)).stdout

    assert run("warren", "cluster", "kill", "n1", "--dir", str(up)).returncode == 0
    status = run("warren", "cluster", "status", "--dir", str(up))
    assert status.returncode == 1
    assert "down" in status.stdout
    again = run("warren", "cluster", "kill", "n1", "--dir", str(up))
    assert (again.returncode, again.stderr) == (1, "Error: n1 does not run\n")
    assert run("warrenctl", "--dir", str(up), "-n", "n1", "status").returncode == 69
    eventually(
        lambda: sorted(cluster_status(up, "n2")["running_nodes"]) == ["n2", "n3"], "the others notice that n1 is gone"
    )

    restarted = run("warren", "cluster", "restart", "n1", "--dir", str(up))
    assert restarted.returncode == 0, restarted.stderr
    assert run("warren", "cluster", "status", "--dir", str(up)).returncode == 0

    down = run("warren", "cluster", "down", "--wipe", "--dir", str(up))
    assert down.returncode == 0, down.stderr
    assert not up.exists()


def test_policies_and_users_of_one_node_are_seen_on_another(up: Path) -> None:
    ask = ["--dir", str(up), "-q", "-n"]
    assert run("warrenctl", *ask, "n1", "set_policy", "ha", "^", '{"ha-mode":"all"}', "3").returncode == 0
    assert run("warrenctl", *ask, "n1", "add_user", "ada", "secret").returncode == 0
    policies = run("warrenctl", *ask, "n1", "list_policies").stdout
    assert policies == 'vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n/\tha\t^\tall\t{"ha-mode":"all"}\t3\n'
    assert "ada\t[]" in run("warrenctl", *ask, "n1", "list_users").stdout
    unknown = run("warrenctl", *ask, "n1", "list_queues", "-p", "nowhere")
    assert (unknown.returncode, unknown.stderr) == (65, "Error:\nVirtual host 'nowhere' does not exist\n")
    assert run("warrenctl", *ask, "n1", "delete_user", "nobody").returncode == 67


def test_an_interrupted_start_leaves_no_process(directory: Path) -> None:
    arguments = [
        str(PROGRAMS / "warren"),
        "cluster",
        "up",
        "--dir",
        str(directory),
        "--amqp-port",
        str(first_of_free_ports(3)),
    ]
    starter = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment())
    marks = [directory / f"n{number}.process" for number in (1, 2, 3)]
    eventually(lambda: all(mark.exists() for mark in marks), "every node has begun to start")
    starter.send_signal(signal.SIGINT)
    _, errors = starter.communicate(timeout=30)
    assert starter.returncode == 130, errors
    eventually(
        lambda: not any(running_process(read_mark(mark)) for mark in marks),
        "no node outlives the command that started it",
        10,
    )


def test_a_node_that_cannot_start_is_reported_with_its_log(directory: Path) -> None:
    """The configuration is spoilt by hand after a good start."""
    port = str(first_of_free_ports(3))
    assert run("warren", "cluster", "up", "--dir", str(directory), "--amqp-port", port).returncode == 0
    assert run("warren", "cluster", "down", "--dir", str(directory)).returncode == 0
    with read_cluster_directory(directory).config_path("n2").open("a") as file:
        file.write("heartbeet = 1\n")
    result = run("warren", "cluster", "up", "--dir", str(directory))
    assert result.returncode == 1
    assert "n2 ended while it was starting" in result.stderr
    assert "unknown key `heartbeet`; did you mean `heartbeat`?" in result.stderr
    assert LocalCluster.attach(directory).running_nodes() == []
