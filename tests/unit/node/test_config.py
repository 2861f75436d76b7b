"""What an operator may write in a configuration file, and what the node says when it cannot be used."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from node.config import (
    KEYS,
    Address,
    Member,
    NodeConfig,
    build_config,
    load_config,
    parse_address,
    parse_settings,
    reference_table,
)
from node.errors import ConfigError
from node.ids import NodeName

COOKIE = "correct horse battery"
THREE_NODES = f"""
node_name = n2
cluster_formation.classic_config.nodes.1 = n1@10.0.0.1:25672
cluster_formation.classic_config.nodes.2 = n2@10.0.0.2:25672
cluster_formation.classic_config.nodes.3 = n3@10.0.0.3:25672
cluster.cookie = {COOKIE}
"""


def config_of(text: str) -> NodeConfig:
    return build_config(parse_settings(text, "node.conf"))


def complaint_about(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config_of(text)
    return str(caught.value)


def test_an_empty_file_is_a_node_alone_on_loopback() -> None:
    config = config_of("")
    assert config.node_name == "n1"
    assert config.amqp_listener == Address("127.0.0.1", 5672)
    assert config.members == (Member(NodeName("n1"), Address("127.0.0.1", 25672)),)
    assert not config.is_clustered
    assert (config.frame_max_bytes, config.channel_max, config.heartbeat_s) == (131072, 2047, 60)
    assert config.durability == "fsync"
    assert config.cluster_partition_handling == "pause_minority"
    assert config.loopback_users == {"guest"}
    assert config.log_file is None


def test_comments_blank_lines_and_spaces_do_not_matter() -> None:
    config = config_of("# a node\n\n  node_name=n7   # its name\n\theartbeat = 10\n")
    assert config.node_name == "n7"
    assert config.heartbeat_s == 10


def test_a_hash_in_a_value_is_written_with_a_backslash() -> None:
    assert config_of(r"default_pass = s\#cret # comment").default_pass == "s#cret"


def test_a_key_that_is_given_twice_is_a_mistake() -> None:
    assert complaint_about("heartbeat = 10\n\nheartbeat = 20") == (
        "node.conf, line 3: `heartbeat` is set already in line 1; keep one of the two"
    )
    assert complaint_about("loopback_users.ada = true\nloopback_users.ada = true").startswith(
        "node.conf, line 2: `loopback_users.ada` is set already in line 1"
    )
    # However the second is written; the secret is not repeated.
    assert "hush" not in complaint_about("default_pass = hush\n default_pass=hush # again")
    assert config_of("loopback_users.ada = true\nloopback_users.bob = true").loopback_users == {"ada", "bob", "guest"}


def test_on_the_command_line_the_last_setting_of_a_key_wins() -> None:
    assert load_config(None, ["heartbeat=10", "heartbeat=20"]).heartbeat_s == 20


def test_three_members_and_own_address() -> None:
    config = config_of(THREE_NODES)
    assert [member.name for member in config.members] == ["n1", "n2", "n3"]
    assert config.cluster_advertised_address == Address("10.0.0.2", 25672)
    assert config.is_clustered


def test_ten_members_are_ordered_by_number_not_by_text() -> None:
    lines = [f"cluster_formation.classic_config.nodes.{i} = n{i}@h{i}:1" for i in (10, 2, 1)]
    config = config_of("\n".join([*lines, f"cluster.cookie = {COOKIE}"]))
    assert [member.name for member in config.members] == ["n1", "n2", "n10"]


def test_a_wildcard_listener_is_not_advertised() -> None:
    config = config_of(THREE_NODES + "listeners.tcp.default = 5672")
    assert config.amqp_listener == Address("0.0.0.0", 5672)
    assert config.amqp_advertised_address == Address("10.0.0.2", 5672)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("localhost:1", Address("localhost", 1)), ("[::1]:5672", Address("::1", 5672))],
)
def test_an_address_prints_as_it_was_written(text: str, expected: Address) -> None:
    assert parse_address(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    ("key", "text", "size_bytes"),
    [
        ("queue_index_embed_msgs_below", "4kb", 4096),
        ("queue_index_embed_msgs_below", "4KB", 4096),
        ("queue_index_embed_msgs_below", "0", 0),
        ("msg_store_file_size_limit", "16mb", 16 * 1024 * 1024),
        ("queue_index_embed_msgs_below", "48kb", 48 * 1024),
        ("max_message_size", "512 MiB", 512 * 1024 * 1024),
        ("mirroring_sync_max_throughput", "10MB", 10_000_000),
        ("mirroring_sync_max_throughput", "10MiB", 10 * 1024 * 1024),
        ("mirroring_sync_max_throughput", "1k", 1024),
    ],
)
def test_sizes_take_units(key: str, text: str, size_bytes: int) -> None:
    assert getattr(config_of(f"{key} = {text}"), f"{key}_bytes") == size_bytes


def test_memory_and_disk_limits() -> None:
    config = config_of("")
    assert (config.memory_watermark_relative, config.memory_watermark_absolute_bytes) == (0.4, None)
    assert (config.disk_free_limit_absolute_bytes, config.disk_free_limit_relative) == (50_000_000, None)
    assert (config.memory_paging_ratio, config.total_memory_override_bytes) == (0.5, None)
    config = config_of("vm_memory_high_watermark.absolute = 256MiB\ndisk_free_limit.relative = 1.5")
    assert (config.memory_watermark_relative, config.memory_watermark_absolute_bytes) == (None, 256 * 1024**2)
    assert (config.disk_free_limit_absolute_bytes, config.disk_free_limit_relative) == (None, 1.5)
    config = config_of("vm_memory_high_watermark.relative = 0\ndisk_free_limit.absolute = 1GB")
    assert (config.memory_watermark_relative, config.disk_free_limit_absolute_bytes) == (0.0, 10**9)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "vm_memory_high_watermark.relative = 40%",
            "node.conf, line 1: bad value `40%` for `vm_memory_high_watermark.relative`: "
            "write a number from 0 to 1, for instance 0.4",
        ),
        (
            "vm_memory_high_watermark.absolute = 2 elephants",
            "node.conf, line 1: bad value `2 elephants` for `vm_memory_high_watermark.absolute`: "
            "write a number of bytes, with a unit if you like: 1073741824, 1GiB, 500MB",
        ),
        (
            "vm_memory_high_watermark.relative = 0.5\nvm_memory_high_watermark.absolute = 2GB",
            "node.conf, line 2: both `vm_memory_high_watermark.relative` and `vm_memory_high_watermark.absolute` "
            "are set; keep one",
        ),
        (
            "disk_free_limit.relative = 1.0\ndisk_free_limit.absolute = 2GB",
            "node.conf, line 2: both `disk_free_limit.relative` and `disk_free_limit.absolute` are set; keep one",
        ),
        (
            "total_memory_available_override_value = 0",
            "node.conf, line 1: bad value `0` for `total_memory_available_override_value`: "
            "no machine is without memory",
        ),
    ],
)
def test_limits_that_make_no_sense(text: str, message: str) -> None:
    assert complaint_about(text) == message


def test_segments_have_a_power_of_two_of_entries() -> None:
    assert config_of("queue_index_segment_entry_count = 1024").queue_index_segment_entries == 1024
    assert complaint_about("classic_queue_index_v2_segment_entry_count = 1000") == (
        "node.conf, line 1: bad value `1000` for `classic_queue_index_v2_segment_entry_count`: "
        "write a power of two from 8 to 65536, for instance 4096"
    )


def test_loopback_users() -> None:
    assert config_of("loopback_users.guest = false").loopback_users == frozenset()
    assert config_of("loopback_users = none").loopback_users == frozenset()
    assert config_of("loopback_users.ops = true").loopback_users == {"guest", "ops"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nheartbeet = 3", "node.conf, line 2: unknown key `heartbeet`; did you mean `heartbeat`?"),
        ("zzz = 3", "node.conf, line 1: unknown key `zzz`; see the table of keys in README.md"),
        ("heartbeat", "node.conf, line 1: write `key = value`, for instance `node_name = n1`; found `heartbeat`"),
        (
            "heartbeat = soon",
            "node.conf, line 1: bad value `soon` for `heartbeat`: write a whole number from 0 to 65535",
        ),
        (
            "listeners.tcp.default = 99999",
            "node.conf, line 1: bad value `99999` for `listeners.tcp.default`: a port is a number from 1 to 65535",
        ),
        ("durability = yes", "node.conf, line 1: bad value `yes` for `durability`: write fsync or flush"),
        (
            "max_message_size = 1gb",
            "node.conf, line 1: bad value `1gb` for `max_message_size`: "
            "that is 1073741824 bytes; it must be from 1 to 536870912",
        ),
        (
            "max_message_size = 3 parsec",
            "node.conf, line 1: bad value `3 parsec` for `max_message_size`: "
            "write a number of bytes, with a unit if you like: 4096, 4kb, 16mb",
        ),
        (
            "cluster.listener = ::1:5",
            "node.conf, line 1: bad value `::1:5` for `cluster.listener`: "
            "put an IPv6 address in brackets, for instance [::1]:5672",
        ),
        (
            f"default_vhost = {'v' * 256}",
            f"node.conf, line 1: bad value `{'v' * 256}` for `default_vhost`: a name has at most 255 bytes",
        ),
        ("cluster.cookie = short", "node.conf, line 1: the secret is too short; use 16 characters or more"),
        (
            "data_dir = ~nosuchuser/x",
            "node.conf, line 1: bad value `~nosuchuser/x` for `data_dir`: "
            "the home directory of ~nosuchuser is not known; write the whole path",
        ),
        (
            "log.file = a\0b",
            "node.conf, line 1: bad value `a\0b` for `log.file`: a path has no NUL character in it",
        ),
    ],
)
def test_a_complaint_names_the_line_the_key_and_what_to_write(text: str, message: str) -> None:
    assert complaint_about(text) == message


def test_a_bad_secret_is_not_repeated() -> None:
    assert "hunter2" not in complaint_about("cluster.cookie = hunter2")
    assert "hunter2" not in repr(config_of("default_pass = hunter2"))


@pytest.mark.parametrize("line", ["cluster.cookie hunter2", "cluster.cookie: hunter2", "cluster.cookie hunter2=="])
def test_of_a_line_that_is_no_setting_the_key_is_shown_and_not_the_secret(line: str) -> None:
    remedy = "write `key = value`, for instance `node_name = n1`; found `cluster.cookie`"
    assert complaint_about(line) == f"node.conf, line 1: {remedy}"
    with pytest.raises(ConfigError) as caught:
        load_config(None, [line])
    assert str(caught.value) == f"--set cluster.cookie: {remedy}"


def test_of_a_line_without_a_key_only_its_place_is_shown() -> None:
    assert complaint_about("hunter2") == "node.conf, line 1: write `key = value`, for instance `node_name = n1`"
    with pytest.raises(ConfigError) as caught:
        load_config(None, ["hunter2"])
    assert str(caught.value) == "--set: write `key = value`, for instance `node_name = n1`"


@pytest.mark.parametrize("key", ["cluster.cookie", "default_user", "default_pass", "default_vhost"])
def test_what_is_no_text_is_refused(key: str) -> None:
    """Of the command line: bytes that are not UTF-8."""
    with pytest.raises(ConfigError, match="it is not UTF-8 text"):
        load_config(None, [f"{key}=\udcff" + "x" * 20])


@pytest.mark.parametrize("host", ["n2..example.com", ".example.com", f"{'n' * 64}.example.com"])
@pytest.mark.parametrize(
    "key", ["listeners.tcp.default", "advertised_address", "cluster.listener", "cluster.advertised_address"]
)
def test_a_host_that_nobody_could_look_up_is_refused(key: str, host: str) -> None:
    remedy = "in the name of a host 1 to 63 characters stand between dots"
    assert complaint_about(f"{key} = {host}:5") == f"node.conf, line 1: bad value `{host}:5` for `{key}`: {remedy}"


def test_a_member_at_a_host_that_nobody_could_look_up_is_refused() -> None:
    key = "cluster_formation.classic_config.nodes.1"
    assert f"for `{key}`: in the name of a host" in complaint_about(f"{key} = n1@n1..example.com:5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (THREE_NODES.replace("node_name = n2", "node_name = n9"), "this node, n9, is not among the members"),
        (THREE_NODES.replace("n3@", "n1@"), "a node is listed twice"),
        (THREE_NODES.replace("10.0.0.3", "10.0.0.1"), "two nodes have the same address"),
        (THREE_NODES.replace("cluster.cookie", "# "), "`cluster.cookie` is missing"),
        (THREE_NODES + "cluster.cookie_file = /x", "both `cluster.cookie` and `cluster.cookie_file`"),
        ("raft.heartbeat_ms = 1000", "at least 3 times `raft.heartbeat_ms` (1000)"),
        ("cluster.silence_timeout_ms = 2599", "`cluster.silence_timeout_ms` is 2599; it must be at least 2600"),
        (
            "raft.election_timeout_ms = 3000",
            "the default: `cluster.silence_timeout_ms` is 5000; it must be at least 6600",
        ),
    ],
)
def test_settings_that_do_not_fit_each_other_are_refused(text: str, words: str) -> None:
    assert words in complaint_about(text)


def test_the_least_silence_timeout_is_what_a_node_needs_to_sit_out_an_election() -> None:
    assert config_of("cluster.silence_timeout_ms = 2600").quorum_grace_ms == 2600 - 200 - 1000
    assert config_of("").quorum_grace_ms == 3000
    slow = config_of("raft.election_timeout_ms = 9000\ncluster.silence_timeout_ms = 60000")
    assert slow.quorum_grace_ms == 9000 + 400, "an election of such a cluster takes longer than the usual grace"


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "n1.conf"
    path.write_text("heartbeat = 10\nchannel_max = 5\n")
    config = load_config(path, ["heartbeat=30"])
    assert (config.heartbeat_s, config.channel_max) == (30, 5)


def test_a_bad_override_is_named() -> None:
    with pytest.raises(ConfigError, match=re.escape("--set heartbeat: bad value `x` for `heartbeat`")):
        load_config(None, ["heartbeat=x"])


def test_the_secret_can_be_in_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "cookie"
    secret.write_text(COOKIE + "\n")
    secret.chmod(0o600)
    assert load_config(None, [f"cluster.cookie_file={secret}"]).cluster_cookie == COOKIE
    with pytest.raises(ConfigError, match=r"cannot read the file of `cluster\.cookie_file`: No such file"):
        load_config(None, [f"cluster.cookie_file={secret}.gone"])


def test_a_file_of_the_secret_that_is_no_text_is_a_complaint_not_a_traceback(tmp_path: Path) -> None:
    secret = tmp_path / "cookie"
    secret.write_bytes(bytes(range(128, 168)))
    secret.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        load_config(None, [f"cluster.cookie_file={secret}"])
    assert str(refused.value) == (
        f"--set cluster.cookie_file: {secret}: cannot read the file of `cluster.cookie_file`: "
        "it is not UTF-8 text; write a secret of letters and digits into it"
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o601])
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    secret = tmp_path / "cookie"
    secret.write_text(COOKIE)
    secret.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        load_config(None, [f"cluster.cookie_file={secret}"])
    assert "must be accessible by its owner only" in str(refused.value)
    assert f"`chmod 600 {secret}`" in str(refused.value)


def test_a_secret_that_belongs_to_somebody_else_may_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As secrets of containers are: their user could not read it otherwise, and cannot change it."""
    secret = tmp_path / "cookie"
    secret.write_text(COOKIE)
    secret.chmod(0o644)
    monkeypatch.setattr("os.geteuid", lambda: secret.stat().st_uid + 10_001)
    assert load_config(None, [f"cluster.cookie_file={secret}"]).cluster_cookie == COOKIE


def test_a_missing_file_is_a_complaint_not_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"n1\.conf: cannot read the configuration: No such file or directory"):
        load_config(tmp_path / "n1.conf")


def test_every_key_converts_its_own_default_and_is_in_the_table() -> None:
    table = reference_table()
    for key in KEYS:
        if key.default:
            key.convert(key.default)
        assert f"| `{key.name}` |" in table
    assert len({key.name for key in KEYS}) == len(KEYS)


def test_every_field_is_reached_by_some_key() -> None:
    """A field that no setting changes would be a constant in disguise."""
    changed = """
        data_dir = /d
        listeners.tcp.default = 1.2.3.4:1
        cluster.listener = 1.2.3.4:2
        cluster.ssl_options.cacertfile = /a.pem
        cluster.ssl_options.certfile = /c.pem
        cluster.ssl_options.keyfile = /k.pem
        default_user = u
        default_pass = p
        default_vhost = v
        loopback_users = none
        heartbeat = 1
        frame_max = 4096
        channel_max = 1
        handshake_timeout = 100
        max_message_size = 1
        queue_index_embed_msgs_below = 0
        msg_store_compaction = merge
        msg_store_io_batch_size = 7
        classic_queue.default_version = 1
        queue_index_segment_entry_count = 64
        queue_index_max_journal_entries = 99
        classic_queue_index_v2_segment_entry_count = 32
        msg_store_file_size_limit = 64kb
        vm_memory_high_watermark.absolute = 1GiB
        vm_memory_high_watermark_paging_ratio = 0.6
        total_memory_available_override_value = 2GiB
        disk_free_limit.relative = 1.5
        durability = flush
        credit_flow_default_credit.more_after = 51
        msg_store_credit_disc_bound.initial = 4001
        cluster.credit.initial = 4001
        cluster_partition_handling = ignore
        mirroring_sync_batch_size = 1
        mirroring_sync_max_throughput = 1
        cluster.silence_timeout_ms = 160
        raft.heartbeat_ms = 10
        raft.election_timeout_ms = 50
        log.level = debug
        log.file = /l
    """
    one, other = config_of(""), config_of(THREE_NODES + changed)
    for item in dataclasses.fields(NodeConfig):
        assert getattr(one, item.name) != getattr(other, item.name), item.name


# --- credit flow ---


def test_credit_has_the_figures_of_the_mission_by_default() -> None:
    config = config_of("")
    assert config.credit_flow_default_credit == (200, 50)
    assert config.msg_store_credit_disc_bound == (4000, 800)
    assert config.cluster_credit == (4000, 800)


def test_credit_that_could_never_be_granted_is_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        config_of("credit_flow_default_credit.more_after = 201")
    assert str(caught.value) == (
        "node.conf, line 1: `credit_flow_default_credit.more_after` is 201; it must not be more than "
        "`credit_flow_default_credit.initial` (200), or a sender that has used up its credit would wait for ever"
    )


def test_tls_needs_all_three_files() -> None:
    prefix = "cluster.ssl_options"
    lines = [f"{prefix}.cacertfile = /a.pem", f"{prefix}.certfile = /c.pem", f"{prefix}.keyfile = /k.pem"]
    assert config_of("\n".join(lines)).cluster_tls == (Path("/a.pem"), Path("/c.pem"), Path("/k.pem"))
    assert config_of("").cluster_tls is None
    with pytest.raises(ConfigError, match=r"`cluster\.ssl_options\.certfile` is missing"):
        config_of("\n".join(lines[::2]))
