"""What a local cluster writes down, and how it recognises its processes. (Starting them: tests/integration.)"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from chaos.cli import main
from chaos.cluster_under_test.local import LocalCluster, render_config
from chaos.cluster_under_test.processes import (
    ProcessMark,
    log_tail,
    mark_from_json,
    read_mark,
    running_process,
    send_signal,
    write_mark,
)
from cluster.directory import ClusterDirectory, NodeEntry
from node.config import build_config, parse_settings
from node.errors import ConfigError

NODES = (NodeEntry("n1", "127.0.0.1:5672", "127.0.0.1:7001"), NodeEntry("n2", "127.0.0.1:5673", "127.0.0.1:7002"))


def own_mark() -> ProcessMark:
    return ProcessMark(os.getpid(), psutil.Process().create_time())


def test_a_rendered_configuration_is_a_configuration(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path / "a#b", NODES)
    text = render_config(directory, NODES[1], ["heartbeat = 5", "durability=flush", "default_pass = a#b"])
    config = build_config(parse_settings(text, "n2.conf"), lambda path: f"secret in {path}")
    assert config.node_name == "n2"
    assert config.data_dir == tmp_path / "a#b" / "n2"
    assert str(config.amqp_listener) == "127.0.0.1:5673"
    assert str(config.cluster_advertised_address) == "127.0.0.1:7002"
    assert [member.name for member in config.members] == ["n1", "n2"]
    assert config.cluster_cookie == f"secret in {tmp_path / 'a#b' / 'cookie'}"
    assert (config.heartbeat_s, config.durability) == (5, "flush")
    assert config.default_pass == "a#b"


def test_the_last_of_the_settings_is_the_one_in_the_configuration(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path, NODES)
    text = render_config(directory, NODES[1], ["heartbeat=5", "data_dir = /elsewhere", "heartbeat = 7"])
    config = build_config(parse_settings(text, "n2.conf"), lambda path: f"secret in {path}")
    assert (config.heartbeat_s, config.data_dir) == (7, Path("/elsewhere"))


def test_one_node_can_be_configured_otherwise(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path, NODES)
    directory.cookie_path.write_text("secretsecretsecret")
    cluster = LocalCluster(directory)
    config = cluster.configure_node("n2", ["cluster.advertised_address = 127.0.0.1:1", "data_dir = /small/disk"])
    assert (str(config.cluster_advertised_address), config.data_dir) == ("127.0.0.1:1", Path("/small/disk"))
    written = parse_settings(directory.config_path("n2").read_text(), "n2.conf")
    assert build_config(written, lambda _: "secretsecretsecret") == config
    with pytest.raises(ConfigError, match="hart_beat"):
        cluster.configure_node("n2", ["hart_beat = 5"])
    assert parse_settings(directory.config_path("n2").read_text(), "n2.conf") == written, "it can still be started"


def test_a_mark_survives_its_file(tmp_path: Path) -> None:
    write_mark(tmp_path / "n1.process", own_mark())
    assert read_mark(tmp_path / "n1.process") == own_mark()
    assert read_mark(tmp_path / "n2.process") is None


@pytest.mark.parametrize("text", ["", "12", "[]", '{"pid": 1}', '{"pid": "x", "started_at_s": 1}'])
def test_a_torn_mark_is_no_mark(text: str) -> None:
    assert mark_from_json(text) is None


def test_a_process_is_known_by_its_start_too() -> None:
    """A pid that the kernel has given to somebody else since is not ours to signal."""
    mine = own_mark()
    found = running_process(mine)
    assert found is not None
    assert found.pid == os.getpid()
    namesake = ProcessMark(mine.pid, mine.started_at_s - 60)
    assert running_process(namesake) is None
    assert not send_signal(namesake, signal.SIGKILL)


def test_no_mark_is_no_process() -> None:
    assert running_process(None) is None
    assert not send_signal(None, signal.SIGTERM)


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    assert log_tail(log) == "(no log: No such file or directory)"
    log.write_text("")
    assert log_tail(log) == "(the log is empty)"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert log_tail(log, 2) == "line 9998\nline 9999"


def test_help_needs_no_cluster() -> None:
    result = CliRunner().invoke(main, ["cluster", "up", "--help"])
    assert result.exit_code == 0
    assert "--amqp-port" in result.output


@pytest.mark.parametrize("command", [["status"], ["down"], ["kill", "n1"], ["restart", "n1"]])
def test_commands_on_nothing_say_how_to_start(tmp_path: Path, command: list[str]) -> None:
    result = CliRunner().invoke(main, ["cluster", *command, "--dir", str(tmp_path / "none")])
    assert result.exit_code == 1
    assert "start one with `warren cluster up --dir" in result.output


def test_a_restart_that_comes_to_nothing_says_what_the_node_waits_for_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cookie").write_text("secret of the cluster")
    ClusterDirectory(tmp_path, NODES).write()

    async def nothing(*_: object) -> None:
        pass

    async def no_answer(*_: object) -> bool:
        return False

    async def hindrance(*_: object) -> str:
        return "it reaches no majority of the members (it lacks n1)"

    monkeypatch.setattr(LocalCluster, "restart", nothing)
    monkeypatch.setattr(LocalCluster, "is_running", lambda *_: True)
    monkeypatch.setattr(LocalCluster, "pid", lambda *_: 4711)
    monkeypatch.setattr("chaos.cluster_under_test.local.answers_amqp", no_answer)
    monkeypatch.setattr("chaos.cluster_under_test.local.hindrance_of", hindrance)
    monkeypatch.setattr("chaos.cli_cluster.START_TIMEOUT_S", 0.0)
    result = CliRunner().invoke(main, ["cluster", "restart", "n2", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "n2 was started (process 4711); it is waited for until it serves clients, 0 s at most.",
        "n2 does not serve clients yet: it reaches no majority of the members (it lacks n1)",
        "Error: n2 did not answer AMQP clients in time: it reaches no majority of the members (it lacks n1)",
        f"n2 is left running (process 4711) and goes on trying; its log is {tmp_path}/n2.log. "
        "`warren cluster kill n2` ends it.",
    ]


def test_an_unknown_node_is_answered_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "cookie").write_text("secret of the cluster")
    ClusterDirectory(tmp_path, NODES).write()
    result = CliRunner().invoke(main, ["cluster", "kill", "n9", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "there is no node `n9`" in result.output
    assert "n1, n2" in result.output


def test_a_bad_configuration_ends_a_node_at_once(tmp_path: Path) -> None:
    config = tmp_path / "n1.conf"
    config.write_text("heartbeet = 1\n")
    result = CliRunner().invoke(main, ["node", "--config", str(config)])
    assert result.exit_code == 78
    assert "n1.conf, line 1: unknown key `heartbeet`; did you mean `heartbeat`?" in result.output
