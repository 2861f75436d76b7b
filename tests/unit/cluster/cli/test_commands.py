"""`warrenctl` as scripts see it: output, errors and exit codes, against a recording admin client."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.directory import ClusterDirectory, NodeEntry
from cluster.transport.admin_client import AdminError
from cluster.transport.admin_port import ExitCode, SyncProgress
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from tests.support.recording_client import RecordingClient, Tool


def test_list_queues(tool: Tool, client: RecordingClient) -> None:
    result = tool("list_queues")
    banner = "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n"
    assert result == (0, banner + "name\tmessages\nq\t5\n", "")
    assert client.calls[0][:2] == ("list_queues", ("/", ("name", "messages"), client.calls[0][1][2]))


@pytest.mark.parametrize(
    ("options", "out"),
    [
        (["-q"], "name\tmessages\nq\t5\n"),
        (["-s"], "q\t5\n"),
        (["--no-table-headers", "-q"], "q\t5\n"),
        (["--formatter", "json"], '[\n{"name":"q","messages":5}\n]\n'),
        (["--formatter=csv"], "name,messages\nq,5\n"),
        (["-t", "5"], "Timeout: 5.0 seconds ...\nListing queues for vhost / ...\nname\tmessages\nq\t5\n"),
    ],
)
def test_common_options_work_before_and_behind_the_command(tool: Tool, options: list[str], out: str) -> None:
    assert tool("list_queues", *options).out == out
    assert tool(*options, "list_queues").out == out


@pytest.mark.parametrize(
    ("arguments", "banner"),
    [
        (["set_policy", "ha", "^", '{"ha-mode":"all"}'],
         'Setting policy "ha" for pattern "^" to "{"ha-mode":"all"}" with priority "0" for vhost "/" ...'),
        (["clear_policy", "-p", "v", "ha"], 'Clearing policy "ha" on vhost "v" ...'),
        (["sync_queue", "q"], "Synchronising queue 'q' in vhost '/' ..."),
        (["cancel_sync_queue", "q"], "Stopping synchronising queue 'q' in vhost '/' ..."),
        (["purge_queue", "q"], "Purging queue 'q' in vhost '/' ..."),
        (["add_vhost", "v"], 'Adding vhost "v" ...'),
        (["delete_vhost", "v"], 'Deleting vhost "v" ...'),
        (["delete_user", "u"], 'Deleting user "u" ...'),
        (["change_password", "u", "p"], 'Changing password for user "u" ...'),
        (["set_user_tags", "u", "administrator", "x"], 'Setting tags for user "u" to [administrator, x] ...'),
        (["clear_permissions", "u"], 'Clearing permissions for user "u" in vhost "/" ...'),
        (["set_permissions", "u", ".*", ".*", ".*"], 'Setting permissions for user "u" in vhost "/" ...'),
        (["set_vm_memory_high_watermark", "0.40"], "Setting memory threshold on 127.0.0.1:25672 to 0.4 ..."),
        (["set_vm_memory_high_watermark", "absolute", "2kB"],
         "Setting memory threshold on 127.0.0.1:25672 to 2000 bytes ..."),
        (["set_disk_free_limit", "1GiB"], "Setting disk free limit on 127.0.0.1:25672 to 1073741824 bytes ..."),
        (["set_disk_free_limit", "mem_relative", "1.5"],
         "Setting disk free limit on 127.0.0.1:25672 to 1.5 times the total RAM ..."),
    ],
)  # fmt: skip
def test_an_action_prints_its_banner_and_nothing_else(tool: Tool, arguments: list[str], banner: str) -> None:
    assert tool(*arguments) == (0, banner + "\n", "")
    assert tool("-q", *arguments) == (0, "", "")
    assert tool("--formatter", "json", *arguments).out == '{"result":"ok","node":"127.0.0.1:25672"}\n'


@pytest.mark.parametrize(
    ("command", "banner"),
    [
        ("list_policies", 'Listing policies for vhost "/" ...'),
        ("list_consumers", "Timeout: 60.0 seconds ...\nListing consumers in vhost / ..."),
        ("list_connections", "Listing connections ..."),
        ("list_channels", "Listing channels ..."),
        ("list_exchanges", "Listing exchanges for vhost / ..."),
        ("list_bindings", "Listing bindings for vhost /..."),
        ("list_vhosts", "Listing vhosts ..."),
        ("list_users", "Listing users ..."),
        ("list_permissions", 'Listing permissions for vhost "/" ...'),
    ],
)
def test_other_listings(tool: Tool, command: str, banner: str) -> None:
    assert tool(command) == (0, f"{banner}\nname\tmessages\nq\t5\n", "")


def test_set_policy_sends_what_was_written(tool: Tool, client: RecordingClient) -> None:
    tool("set_policy", "-p", "v", "--priority", "7", "--apply-to", "queues", "ha", "^q", '{"ha-mode":"all"}')
    policy = client.calls[0][1][0]
    assert (policy.vhost, policy.name, policy.pattern, policy.priority) == ("v", "ha", "^q", 7)
    assert (policy.definition, policy.apply_to) == ({"ha-mode": "all"}, "queues")


def test_the_priority_may_stand_last(tool: Tool, client: RecordingClient) -> None:
    tool("set_policy", "ha", "^q", '{"ha-mode":"all"}', "7")
    assert client.calls[0][1][0].priority == 7
    assert tool("set_policy", "--priority", "1", "ha", "^q", "{}", "7").exit_code == 64


@pytest.mark.parametrize(
    ("arguments", "call", "limit"),
    [
        (["set_vm_memory_high_watermark", "0"], "set_memory_watermark", MemoryWatermark(0.0)),
        (["set_vm_memory_high_watermark", "absolute", "5"], "set_memory_watermark", MemoryWatermark(absolute_bytes=5)),
        (["set_disk_free_limit", "5MB"], "set_disk_free_limit", DiskFreeLimit(5_000_000)),
        (["set_disk_free_limit", "mem_relative", "0.5"], "set_disk_free_limit", DiskFreeLimit(relative=0.5)),
    ],
)  # fmt: skip
def test_limits_arrive_as_they_were_written(
    tool: Tool, client: RecordingClient, arguments: list[str], call: str, limit: object
) -> None:
    tool(*arguments)
    assert client.calls == [(call, (limit,), {})]


def test_delete_queue_tells_how_many_messages_went(tool: Tool, client: RecordingClient) -> None:
    result = tool("delete_queue", "q", "--if-empty", "-u")
    assert result.out == (
        "Deleting queue 'q' on vhost '/' if queue is empty and unused ...\n"
        "Queue was successfully deleted with 5 ready messages\n"
    )
    assert client.calls[0][2] == {"if_empty": True, "if_unused": True}


@pytest.mark.parametrize(("arrived", "is_told"), [(1, True), (2, False)])
def test_sync_queue_tells_that_it_was_cancelled(
    tool: Tool, client: RecordingClient, arrived: int, *, is_told: bool
) -> None:
    client.answers["sync_queue"] = iter([SyncProgress(0, 2, False), SyncProgress(arrived, 2, True)])
    result = tool("sync_queue", "q")
    assert result.exit_code == 0
    assert ("was cancelled" in result.out) == is_told


def test_force_promote_tells_what_it_costs(tool: Tool, client: RecordingClient) -> None:
    result = tool("force_promote", "-p", "v", "q", "n2", "-n", "127.0.0.1:1")
    assert result == (
        0,
        "Promoting n2 to master of queue 'q' in vhost 'v' whatever it lacks ...\n"
        "n2 is the master now; what it lacked is lost\n",
        "",
    )
    assert client.calls == [("force_promote", ("v", "q", "n2"), {"may_be_empty": False})]
    tool("force_promote", "--empty", "q", "n2")
    assert client.calls[-1] == ("force_promote", ("/", "q", "n2"), {"may_be_empty": True})
    assert tool("-q", "force_promote", "q", "n2") == (0, "", "")
    assert tool("--formatter", "json", "force_promote", "q", "n2").out == '{"result":"ok","node":"127.0.0.1:25672"}\n'


def test_forget_cluster_node_names_what_went_with_the_node(tool: Tool, client: RecordingClient) -> None:
    assert tool("forget_cluster_node", "n3").out == (
        "Removing node n3 from the cluster\nqueue 'q' in vhost '/' is deleted: nobody else had anything of it\n"
        "queue 'r' in vhost '/' is served by n2 with what it has, which may lack messages\n"
    )
    tool("forget_cluster_node", "--confirm", "n3")
    assert client.calls == [("forget_cluster_node", ("n3",), {"is_confirmed": each}) for each in (False, True)]


def test_rebalance_queues_tells_of_every_move_and_why_one_was_refused(tool: Tool, client: RecordingClient) -> None:
    assert tool("rebalance_queues", "--vhost", "a.b", "--pattern", "^q") == (
        75,
        "Moving masters ...\nqueue 'a' in vhost '/': n1 -> n2 moved\n"
        "queue 'b' in vhost '/': n1 -> n3 refused (n3 is not up)\n1 moved; masters n1: 2, n2: 1\n",
        "Error:\n1 queues could not be moved: ask again\n",
    )
    assert client.calls[1:] == [
        ("rebalance_queues", (r"^a\.b$", "^q"), {"is_dry_run": False, "timeout_s": None}),
    ]


def test_a_virtual_host_that_there_is_not_has_no_queues_to_move(tool: Tool, client: RecordingClient) -> None:
    assert tool("rebalance_queues", "--vhost", "a-b", "-q") == (65, "", "Error:\nVirtual host 'a-b' does not exist\n")
    assert [name for name, *_ in client.calls] == ["list_vhosts"]


def test_join_cluster_waits_until_the_node_is_of_the_cluster(tool: Tool, client: RecordingClient) -> None:
    client.document = {"is_serving": True, "members": {"n1": "h:1", "n4": "h:4"}}
    assert tool("-n", "h:4", "join_cluster", "h:1") == (0, "Clustering node h:4 with h:1\n", "")
    assert client.calls[0] == ("join_cluster", ("h:1",), {})


@pytest.mark.parametrize(
    ("is_there", "said"), [(True, "goes on trying: see its log"), (False, "does not answer: if it has ended, its log")]
)
def test_join_cluster_does_not_say_of_a_node_that_has_ended_that_it_goes_on(
    tool: Tool, client: RecordingClient, monkeypatch: pytest.MonkeyPatch, *, is_there: bool, said: str
) -> None:
    """Another node of its name was faster, say."""

    def status() -> dict[str, bool]:
        if not is_there:
            raise AdminError(ExitCode.UNAVAILABLE, "nobody listens at h:4")
        return {"is_serving": False}

    monkeypatch.setattr(client, "status", status, raising=False)
    code, _, error = tool("-n", "h:4", "-t", "0", "join_cluster", "h:1")
    assert code == 75
    assert said in error


def test_what_gives_data_up_must_be_meant(tool: Tool, client: RecordingClient, tmp_path: Path) -> None:
    assert tool("reset").exit_code == 64
    assert tool("forget_cluster_node", "--offline", "--data-dir", str(tmp_path), "n3").exit_code == 64
    assert tool("forget_cluster_node", "--dry-run", "n3").exit_code == 64
    assert tool("forget_cluster_node", "n2", "n3").exit_code == 64
    assert client.calls == []
    assert tool("reset", "--confirm").exit_code == 0
    assert client.calls == [("reset", (), {})]


def test_forgetting_offline_needs_the_directory_of_a_node(tool: Tool, tmp_path: Path) -> None:
    code, _, error = tool("forget_cluster_node", "--offline", "--dry-run", "n3")
    assert (code, "give its --data-dir" in error) == (78, True)
    code, _, error = tool("forget_cluster_node", "--offline", "--dry-run", "--data-dir", str(tmp_path), "n3")
    assert (code, "holds nothing of a cluster" in error) == (78, True)


def test_forgetting_offline_says_that_it_may_not_use_a_directory(tool: Tool, tmp_path: Path) -> None:
    """Not in a traceback: that of a node belongs to the user that it runs as."""
    (tmp_path / "lock").mkdir()
    for directory in (tmp_path, tmp_path / ("n" * 300)):
        code, _, error = tool("forget_cluster_node", "--offline", "--dry-run", "--data-dir", str(directory), "n3")
        assert (code, f"{directory} cannot be used: " in error) == (78, True)


def test_add_user_reminds_of_permissions(tool: Tool, client: RecordingClient) -> None:
    assert tool("add_user", "u", "p").out == (
        'Adding user "u" ...\n'
        "Done. Don't forget to grant the user permissions to some virtual hosts! "
        "See 'warrenctl help set_permissions' to learn more.\n"
    )
    assert client.calls == [("add_user", ("u", "p"), {})]


def test_a_refusal_of_the_node_ends_with_its_code(tool: Tool, client: RecordingClient) -> None:
    client.error = AdminError(65, "Virtual host 'x' does not exist")
    assert tool("list_queues", "-p", "x", "-q") == (65, "", "Error:\nVirtual host 'x' does not exist\n")
    assert tool("list_queues", "-p", "x", "--formatter", "json") == (
        65,
        "",
        '{"result":"error","node":"127.0.0.1:25672","error":"data","message":"Virtual host \'x\' does not exist"}\n',
    )


def test_a_node_that_cannot_be_reached_comes_with_advice(tool: Tool, client: RecordingClient) -> None:
    client.error = AdminError(69, "connection refused")
    result = tool("status")
    assert result.exit_code == 69
    assert result.err.startswith(
        "Error: unable to perform an operation on node '127.0.0.1:25672': connection refused\n"
    )
    assert "warren cluster status" in result.err


def test_who_has_no_cluster_is_told_how_to_get_one(tool: Tool, client: RecordingClient, tmp_path: Path) -> None:
    client.error = AdminError(69, "connection refused")
    hint = (
        f"No node was named, and there is no .warren in {tmp_path} or above, so 127.0.0.1:25672 was tried. Start a "
        "cluster with\n`warren cluster up`, or name a node: --dir DIR, or -n HOST:PORT.\n"
    )
    result = tool("status")
    assert (result.exit_code, hint in result.err) == (69, True), result.err
    assert "cookie was found" not in result.err
    assert "No node was named" not in tool("-n", "127.0.0.1:25672", "status").err
    assert "`warren cluster up`" in tool("-n", "n2", "status").err


def test_who_named_no_node_is_told_which_was_asked_and_which_others_there_are(
    tool: Tool, client: RecordingClient, tmp_path: Path
) -> None:
    (tmp_path / "cookie").write_text("the secret of a cluster\n")
    nodes = tuple(
        NodeEntry(name, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}") for name, port in (("n1", 1), ("n2", 3))
    )
    ClusterDirectory(tmp_path, nodes).write()
    client.error = AdminError(69, "connection refused")
    result = tool("--dir", str(tmp_path), "status")
    hint = "No node was named, so n1 was asked, the first of its cluster directory. Others, by -n: n2.\n"
    assert (result.exit_code, hint in result.err) == (69, True), result.err
    assert "No node was named" not in tool("--dir", str(tmp_path), "-n", "n1", "status").err


def test_a_missing_cookie_is_told_from_a_wrong_one(
    tool: Tool, client: RecordingClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.error = AdminError(69, "no cookie was given, and the node asks for its cluster's")
    monkeypatch.setenv("HOME", str(tmp_path))
    missing = (
        "No cookie was found: WARREN_COOKIE and WARREN_COOKIE_FILE are not set, no cluster directory was found "
        f"(--dir,\nWARREN_CLUSTER_DIR, .warren in {tmp_path} or above), and there is no ~/.warren.cookie.\n"
    )
    result = tool("-n", "127.0.0.1:1", "status")
    assert (result.exit_code, missing in result.err) == (69, True), result.err
    monkeypatch.setenv("WARREN_COOKIE", "guess")
    assert "No cookie was found" not in tool("-n", "127.0.0.1:1", "status").err
    monkeypatch.setenv("WARREN_COOKIE", "")
    assert "No cookie was found: WARREN_COOKIE is empty.\n" in tool("-n", "127.0.0.1:1", "status").err


def test_a_wrong_cookie_is_warrenctls_own_and_it_is_said_whence_it_is(
    tool: Tool, client: RecordingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.error = AdminError(69, "wrong cookie: the one given is not the node's")
    monkeypatch.setenv("WARREN_COOKIE", "guess")
    result = tool("-n", "127.0.0.1:1", "status")
    assert result.exit_code == 69
    assert (
        "warrenctl and the node at 127.0.0.1:1 have different cookies. warrenctl has its own from WARREN_COOKIE; give "
        "it the node's:\n"
    ) in result.err
    assert "guess" not in result.err


def test_a_name_without_a_directory_is_a_configuration_error(tool: Tool) -> None:
    result = tool("-n", "n2", "status", "-q")
    assert result.exit_code == 78
    assert "name one with --dir" in result.err


def test_await_startup_gives_up_as_a_temporary_failure(tool: Tool, client: RecordingClient) -> None:
    client.error = AdminError(69, "connection refused")
    assert tool("await_startup", "-t", "0", "-q") == (
        75,
        "",
        "Error:\n127.0.0.1:25672 did not start within 0 seconds: connection refused\n",
    )


def test_await_startup_waits_for_a_node_that_serves_clients(tool: Tool, client: RecordingClient) -> None:
    client.document = {"running_nodes": ["n1"], "is_serving": False}
    result = tool("await_startup", "-t", "0", "-q")
    assert (result.exit_code, result.out) == (75, "")
    assert "did not start within 0 seconds: it runs, but serves no clients" in result.err
    client.document["is_serving"] = True
    assert tool("await_startup", "-t", "0", "-q") == (0, "", "")


def test_cluster_status(tool: Tool, client: RecordingClient) -> None:
    client.document = {
        "cluster_name": "rabbits",
        "disk_nodes": ["n1", "n2"],
        "running_nodes": ["n1"],
        "versions": {"n1": "Warren 0.1.0 on Python 3.11"},
        "maintenance_status": {"n1": "not under maintenance"},
        "alarms": [{"resource": "memory", "node": "n1"}],
        "partitions": {"n1": ["n2", "n3"]},
        "listeners": {"n1": [{"interface": "::", "port": 5672, "protocol": "amqp", "purpose": "AMQP 0-9-1"}]},
    }
    assert tool("cluster_status").out == (
        "Cluster status of node 127.0.0.1:25672 ...\n"
        "Basics\n\nCluster name: rabbits\n\n"
        "Disk Nodes\n\nn1\nn2\n\n"
        "Running Nodes\n\nn1\n\n"
        "Versions\n\nn1: Warren 0.1.0 on Python 3.11\n\n"
        "Maintenance status\n\nNode: n1, status: not under maintenance\n\n"
        "Alarms\n\nMemory alarm on node n1\n\n"
        "Network Partitions\n\nNode n1 cannot communicate with n2, n3\n\n"
        "Listeners\n\nNode: n1, interface: ::, port: 5672, protocol: amqp, purpose: AMQP 0-9-1\n\n"
    )


def test_nothing_is_said_as_none(tool: Tool, client: RecordingClient) -> None:
    client.document = {"alarms": [], "partitions": {}}
    assert tool("cluster_status", "-q").out == "Alarms\n\n(none)\n\nNetwork Partitions\n\n(none)\n\n"


def test_status(tool: Tool, client: RecordingClient) -> None:
    client.document = {"pid": 12, "uptime": 3, "node_name": "n1", "totals": {"queue_count": 2}, "log_files": ["/l"]}
    assert tool("status", "-q").out == (
        "Runtime\n\nOS PID: 12\nUptime (seconds): 3\nNode name: n1\n\nLog file(s)\n\n/l\n\nTotals\n\nQueue count: 2\n\n"
    )


def test_status_shows_memory_disk_and_alarms(tool: Tool, client: RecordingClient) -> None:
    client.document = {
        "memory": {"Total memory used (bytes)": 70},
        "vm_memory_calculation_strategy": "rss",
        "vm_memory_high_watermark_setting": {"relative": 0.4},
        "vm_memory_high_watermark_limit": 400,
        "disk_free": None,
        "disk_free_limit": 50,
        "alarms": [{"resource": "memory", "node": "n1"}, {"resource": "disk", "node": "n2"}],
    }
    memory = "Memory\n\nTotal memory used (bytes): 70\nCalculation strategy: rss\nMemory high watermark setting: "
    assert tool("status", "-q").out == (
        "Free Disk Space\n\nLow free disk space watermark (bytes): 50\nFree disk space (bytes): unknown\n\n"
        "Alarms\n\nMemory alarm on node n1\nFree disk space alarm on node n2\n\n"
        f"{memory}0.4 of available memory, computed to: 400 bytes\n\n"
    )
    client.document["vm_memory_high_watermark_setting"] = {"absolute": 400}
    assert f"{memory}400 bytes, computed to: 400 bytes\n" in tool("status", "-q").out
    assert '"disk_free_limit":50' in tool("status", "--formatter", "json").out


def test_help_shows_the_forms_of_a_limit(tool: Tool) -> None:
    memory, disk = tool("help", "set_vm_memory_high_watermark").out, tool("help", "set_disk_free_limit").out
    for example in ("set_vm_memory_high_watermark 0.4\n", "set_vm_memory_high_watermark absolute 512MiB\n"):
        assert f"warrenctl {example}" in memory
    for example in ("set_disk_free_limit 2GB\n", "set_disk_free_limit mem_relative 1.5\n"):
        assert f"warrenctl {example}" in disk
    assert tool("set_vm_memory_high_watermark", "--help").out == memory
    (line,) = [line for line in tool("help").out.splitlines() if "set_vm_memory" in line]
    assert line.endswith("Set the memory limit of a node until it stops: a fraction of its memory, or absolute bytes.")


def test_help(tool: Tool) -> None:
    assert "Usage\n\nwarrenctl [--node <node>] [--quiet] purge_queue" in tool("help", "purge_queue").out
    assert "list_queues" in tool("help").out
    assert "list_queues" in tool("--help").out
    assert tool("help", "purge_queu").exit_code == 64


def test_list_flow_shows_chains_and_their_slowest_hops(tool: Tool, client: RecordingClient) -> None:
    result = tool("list_flow")
    assert (result.exit_code, result.err) == (0, "")
    assert result.out.startswith("Listing what slows publishers down ...\n")
    assert client.calls == [("list_flow", (("chain", "slowest_hop", "balance", "blocked_ms"),), {})]
    assert tool("list_flow", "queue", "state").exit_code == 0
    assert tool("list_flow", "nonsense").exit_code == 64


def test_an_option_with_a_choice_lists_it(tool: Tool) -> None:
    said = tool("set_policy", "--help").out
    assert "--formatter           How results are written: table, pretty_table, json, csv." in said
    assert "--apply-to            What the policy is for: queues, exchanges, all (the default)." in said


def test_no_summary_of_a_command_is_cut_short(tool: Tool) -> None:
    assert [line for line in tool("help").out.splitlines() if line.endswith("...")] == []
