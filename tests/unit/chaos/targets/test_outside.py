"""The file that tells of somebody else's cluster: what is read, what is refused, and that no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.plan.actions import Capability
from chaos.targets.management import view_of
from chaos.targets.outside import OF_MANAGEMENT, PAIRS, OutsideError, read_outside
from chaos.targets.target import QueueView

ENVIRONMENT = {"SECRET": "correct horse", "HOST": "10.0.0.1"}
TEXT = """
name = "staging"
[management]
url = "http://${HOST}:15672/"
user = "chaos"
password = "${SECRET}"
[[node]]
name = "rabbit@a"
amqp = "amqp://chaos:${SECRET}@${HOST}:5672/"
kill = "ssh ${HOST} pkill -KILL beam.smp"
start = "ssh ${HOST} systemctl start rabbitmq-server"
pause = "ssh ${HOST} pkill -STOP beam.smp"
resume = "ssh ${HOST} pkill -CONT beam.smp"
[[node]]
name = "rabbit@b"
amqp = "amqp://chaos:x@10.0.0.2:5672/"
kill = "ssh b pkill"
start = "ssh b start"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(TEXT)
    return path


def test_what_the_file_tells(path: Path) -> None:
    cluster = read_outside(path, ENVIRONMENT)
    assert [node.name for node in cluster.nodes] == ["rabbit@a", "rabbit@b"]
    assert cluster.nodes[0].amqp == "amqp://chaos:correct horse@10.0.0.1:5672/"
    assert cluster.management is not None
    assert (cluster.management.url, cluster.management.password) == ("http://10.0.0.1:15672", "correct horse")


def test_commands_are_kept_as_they_were_written_for_the_shell_replaces_variables(path: Path) -> None:
    assert read_outside(path, ENVIRONMENT).nodes[0].commands["kill"] == "ssh ${HOST} pkill -KILL beam.smp"


def test_no_secret_is_shown(path: Path) -> None:
    assert "horse" not in repr(read_outside(path, ENVIRONMENT))


def test_it_can_do_what_every_node_has_both_commands_for(path: Path) -> None:
    cluster = read_outside(path, ENVIRONMENT)
    assert cluster.capabilities == {Capability.KILL, Capability.EXPIRY} | OF_MANAGEMENT
    assert cluster.capabilities | cluster.missing.keys() == set(Capability)
    assert cluster.missing[Capability.PAUSE] == "not every node has the commands pause and resume"
    assert cluster.missing[Capability.NODE_LINES] == "it cannot be done to a cluster that somebody else runs"


def test_without_management_nobody_can_be_asked(path: Path) -> None:
    start, end = TEXT.index("[management]"), TEXT.index("[[node]]")
    path.write_text(TEXT[:start] + TEXT[end:])
    cluster = read_outside(path, ENVIRONMENT)
    assert not cluster.capabilities & OF_MANAGEMENT
    assert cluster.missing[Capability.MASTER] == "the file tells of no [management]"


@pytest.mark.parametrize("capability", sorted(PAIRS))
def test_every_pair_of_commands_makes_something_possible(path: Path, capability: Capability) -> None:
    begin, end = PAIRS[capability]
    path.write_text(f'name = "x"\n[[node]]\nname = "a"\namqp = "amqp://a/"\n{begin} = "true"\n{end} = "true"\n')
    assert read_outside(path, {}).capabilities == {capability, Capability.EXPIRY}


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('name = "staging"', "", "the file: name must be there"),
        ("[[node]]", "[[nodes]]", "the file: nobody knows nodes"),
        ("kill =", "slay =", "node 1: nobody knows slay"),
        ('"rabbit@b"', '"rabbit@a"', "two nodes have one name"),
        ("amqp://chaos:x@10.0.0.2:5672/", "10.0.0.2", "node 2: amqp must be like"),
        ("http://${HOST}", "${HOST}", "management: url must be like"),
        ('password = "${SECRET}"', 'password = "${SECRETS}"', "management: password: the environment has no SECRETS"),
        ("ssh ${HOST} pkill -KILL", "ssh ${HOSTS} pkill -KILL", "node 1: kill: the environment has no HOSTS"),
        ('user = "chaos"', "user = 7", "management: user must be there, and be a text"),
        ("[management]", "[management", "this is no TOML"),
    ],
)
def test_what_nobody_understands_is_refused_with_its_place(path: Path, old: str, new: str, complaint: str) -> None:
    assert old in TEXT
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(OutsideError, match=complaint) as caught:
        read_outside(path, ENVIRONMENT)
    assert str(path) in str(caught.value)
    assert "horse" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="No such file"):
        read_outside(tmp_path / "none.toml", ENVIRONMENT)


NUMBERS = {"rabbit@a": 1, "rabbit@b": 2, "rabbit@c": 3}


@pytest.mark.parametrize(
    ("said", "view"),
    [
        (
            {
                "name": "q", "type": "classic", "node": "rabbit@b", "slave_nodes": ["rabbit@c", "rabbit@a"],
                "synchronised_slave_nodes": ["rabbit@a"], "messages_ready": 5, "messages_unacknowledged": 2,
                "state": "running",
            },
            QueueView("q", 2, (3, 1), (1,), 5, 2),
        ),
        (
            {
                "name": "q", "type": "quorum", "leader": "rabbit@a", "members": ["rabbit@a", "rabbit@b", "rabbit@c"],
                "online": ["rabbit@a", "rabbit@c"], "messages_ready": 0, "messages_unacknowledged": 0,
                "state": "running",
            },
            QueueView("q", 1, (2, 3), (3,), 0, 0),
        ),
        ({"name": "q", "node": "rabbit@a", "state": "down"}, QueueView("q", None, (), (), None, None)),
        ({"name": "q", "node": "rabbit@z"}, QueueView("q", None, (), (), None, None)),
    ],
)  # fmt: skip
def test_what_the_management_interface_says_of_a_queue(said: dict[str, object], view: QueueView) -> None:
    assert view_of(said, NUMBERS) == view
