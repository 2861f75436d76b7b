"""What `warrenctl` answers to mistakes: exit codes and texts of rabbitmqctl, and nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.live_cluster import LiveCluster, run_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.set_policy("kept", r"^ha\.", ha_mode="all")
        with running.channel("n1") as channel:
            channel.queue_declare("ha.queue", durable=True)
            channel.queue_declare("plain", durable=True)
        yield running


@pytest.mark.parametrize(
    ("arguments", "exit_code", "text"),
    [
        (["set_policy", "bad", "^", '{"ha-mode":'], 65, "JSON decoding error. Reason:"),
        (["set_policy", "bad", "^", '["all"]'], 65, "JSON decoding error. Reason:"),
        (["set_policy", "bad", "(", '{"ha-mode":"all"}'], 70, "Validation failed"),
        (["set_policy", "bad", "^", '{"ha-mode":"some"}'], 70, '<<"some">> is not a valid ha-mode value'),
        (["set_policy", "bad", "^", '{"ha-mode":"exactly"}'], 70, "Validation failed"),
        (["set_policy", "bad", "^", '{"no-such-key":1}'], 70, "no-such-key"),
        (["set_policy", "bad", "^", '{"ha-mode":"all"}', "--priority", "high"], 64, "Error (argument validation)"),
        (["set_policy", "bad", "^"], 64, "Error (argument validation): not enough arguments."),
        (["set_policy", "-p", "nowhere", "bad", "^", '{"ha-mode":"all"}'], 65, "Virtual host 'nowhere' does not exist"),
        (["clear_policy", "nothing"], 70, "Parameter does not exist"),
        (["sync_queue", "missing"], 65, "not_found"),
        (["cancel_sync_queue", "missing"], 65, "not_found"),
        (["sync_queue", "plain"], 70, "not_mirrored"),
        (["force_promote", "missing", "n1"], 65, "not_found"),
        (["force_promote", "-p", "nowhere", "ha.queue", "n1"], 65, "Virtual host 'nowhere' does not exist"),
        (["force_promote", "ha.queue"], 64, "Error (argument validation): not enough arguments."),
        (["delete_queue", "missing"], 65, "not_found"),
        (["purge_queue", "missing"], 65, "not_found"),
        (["list_queues", "no_such_column"], 64, "no_such_column"),
        (["list_queues", "-p", "nowhere"], 65, "Virtual host 'nowhere' does not exist"),
        (["change_password", "nobody", "secret"], 67, 'User "nobody" does not exist'),
        (["list_queue"], 64, "Did you mean 'list_queues'?"),
        (["--node", "n9", "list_queues"], 78, "there is no node `n9`"),
        (["--node", "127.0.0.1:1", "list_queues"], 69, "unable to perform an operation on node '127.0.0.1:1'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake(cluster: LiveCluster, arguments: list[str], exit_code: int, text: str) -> None:
    policies = cluster.warrenctl("-q", "list_policies")
    queues = cluster.warrenctl("-q", "list_queues", "name", "policy", "pid", "slave_pids")
    assert policies[0] == queues[0] == 0
    assert '/\tkept\t^ha\\.\tqueues\t{"ha-mode":"all"}\t0' in policies[1]

    code, _, errors = cluster.warrenctl(*arguments)
    assert (code, text in errors) == (exit_code, True), errors
    assert errors.lstrip().startswith(("Error", "Command"))
    assert "Traceback" not in errors

    assert cluster.warrenctl("-q", "list_policies") == policies
    assert cluster.warrenctl("-q", "list_queues", "name", "policy", "pid", "slave_pids") == queues


def test_a_dead_node_is_told_from_a_mistake(cluster: LiveCluster) -> None:
    cluster.kill_and_notice("n3")
    code, _, errors = cluster.warrenctl("--node", "n3", "list_queues")
    assert code == 69
    assert "Error: unable to perform an operation on node 'n3'" in errors
    code, output, _ = cluster.warrenctl("--node", "n2", "-s", "list_queues", "name")
    assert (code, output.split()) == (0, ["ha.queue", "plain"])
