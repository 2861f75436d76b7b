"""The configuration of a node: ``key = value`` lines, as in ``rabbitmq.conf``.

A file has one setting per line and each key once; ``#`` starts a comment (a ``#`` inside a value needs a backslash
before it).
Where a key means what it means in RabbitMQ it has RabbitMQ's name. ``--set key=value`` on the command line wins
over the file. A key that nothing uses is an error, not a silence: a limit that is not enforced is worse than one
that is missing.

`node.config_keys.KEYS` is the one list of what there is. The parser, the reference table of the documentation
(`reference_table`) and the spelling suggestions are made from it. `NodeConfig` holds the values as the rest of the
code uses them.

Three stages, so that every complaint can name file and line: text -> `Setting` (`parse_settings`), settings ->
values by key (`_Reader`), values -> a `NodeConfig` whose parts fit each other (`build_config`).
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from node.config_keys import KEYS, Address, Key, Member, parse_address, reference_table
from node.errors import ConfigError
from node.flow.credit import Credit
from node.ids import NodeName

_KEY = re.compile(r"[A-Za-z0-9_.-]+\Z")
_WORD = re.compile(r"[A-Za-z0-9_.-]+")
#: A follower must be able to miss a heartbeat or two without starting an election.
ELECTION_TO_HEARTBEAT_RATIO = 3
#: What a node without word of the metadata group waits for beyond an election timeout before it stops serving clients.
QUORUM_GRACE_MS = 3000
#: An election takes up to two timeouts; around it the leader's last proof and its successor's first are some heartbeats
#: apart.
ELECTION_TIMEOUTS = 2
ELECTION_HEARTBEATS = 4
#: A node pauses so long before the others declare it down for its silence.
PAUSE_BEFORE_SILENCE_HEARTBEATS = 2
#: A shorter secret could be guessed over the network.
COOKIE_MIN_CHARACTERS = 16

__all__ = [
    "KEYS",
    "Address",
    "Member",
    "NodeConfig",
    "Setting",
    "build_config",
    "load_config",
    "parse_address",
    "parse_override",
    "parse_settings",
    "reference_table",
]


class TlsFiles(NamedTuple):
    """PEM files for mutual TLS: the authority that both sides trust, and what this side shows of itself."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Everything a node needs to know before it starts. Sizes in bytes, times as the name says.

    Fields carry the names of the keys in `KEYS`, where their meaning and default stand.
    """

    node_name: NodeName
    data_dir: Path
    amqp_listener: Address
    amqp_advertised_address: Address
    cluster_listener: Address
    cluster_advertised_address: Address
    #: All members of the cluster, this node included, as the operator listed them; this node alone if none.
    members: tuple[Member, ...]
    #: Shared secret of nodes and command line tools; empty only for a node that is alone.
    #: Empty if none is configured, which only a node alone may do: see `cluster.home_cookie`.
    cluster_cookie: str = field(repr=False)
    #: ``None``: the cluster port is not encrypted.
    cluster_tls: TlsFiles | None
    default_user: str
    default_pass: str = field(repr=False)
    default_vhost: str
    #: Users who may only log in from this machine.
    loopback_users: frozenset[str]
    heartbeat_s: int
    frame_max_bytes: int
    channel_max: int
    handshake_timeout_ms: int
    max_message_size_bytes: int
    queue_index_embed_msgs_below_bytes: int
    msg_store_file_size_limit_bytes: int
    msg_store_compaction: str
    msg_store_io_batch_messages: int
    queue_version: int
    queue_index_segment_entries: int
    queue_index_journal_entries_max: int
    queue_index_v2_segment_entries: int
    #: Fraction of the memory; ``None``: the next is given instead.
    memory_watermark_relative: float | None
    memory_watermark_absolute_bytes: int | None
    memory_paging_ratio: float
    #: ``None``: ask the system.
    total_memory_override_bytes: int | None
    #: ``None``: the next is given instead.
    disk_free_limit_absolute_bytes: int | None
    #: Times the memory.
    disk_free_limit_relative: float | None
    #: ``fsync``: a confirm waits for the disk. ``flush``: it waits for the operating system only.
    durability: str
    #: Credit of the hops inside a node, to the store, and between nodes (`node.flow.credit`).
    credit_flow_default_credit: Credit
    msg_store_credit_disc_bound: Credit
    cluster_credit: Credit
    cluster_partition_handling: str
    mirroring_sync_batch_size: int
    #: Bytes per second and queue; 0 means no limit.
    mirroring_sync_max_throughput_bytes: int
    cluster_silence_timeout_ms: int
    raft_heartbeat_ms: int
    raft_election_timeout_ms: int
    log_level: str
    #: ``None``: standard error.
    log_file: Path | None

    @property
    def is_clustered(self) -> bool:
        """True if there are other members."""
        return len(self.members) > 1

    @property
    def quorum_grace_ms(self) -> int:
        """A node pauses after this and an election timeout without proof of what the group has decided: later than an
        election takes, and before the others declare it down for its silence (`cluster.runtime.standing`)."""
        before_silence_ms = self.cluster_silence_timeout_ms - PAUSE_BEFORE_SILENCE_HEARTBEATS * self.raft_heartbeat_ms
        election_ms = (ELECTION_TIMEOUTS - 1) * self.raft_election_timeout_ms
        election_ms += ELECTION_HEARTBEATS * self.raft_heartbeat_ms
        return min(max(QUORUM_GRACE_MS, election_ms), before_silence_ms - self.raft_election_timeout_ms)

    @property
    def pauses_minority(self) -> bool:
        """True if the node serves no clients while it cannot know what the cluster decides."""
        return self.cluster_partition_handling == "pause_minority"


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``key = value`` and where it was written, for messages."""

    key: str
    value: str
    #: ``file, line N`` or ``--set``.
    where: str


# --- text -> settings -------------------------------------------------------------------------------------------


def parse_settings(text: str, source: str) -> list[Setting]:
    """The settings of a file named ``source`` (for messages). Raises `ConfigError` with the line.

    A key that stands there twice is an error: which of the two is meant cannot be known.
    """
    settings = []
    lines: dict[str, int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = re.sub(r"(?<!\\)#.*", "", raw).replace("\\#", "#").strip()
        if line:
            setting = _parse_setting(line, f"{source}, line {number}")
            first = lines.setdefault(setting.key, number)
            if first != number:
                text = f"`{setting.key}` is set already in line {first}; keep one of the two"
                raise ConfigError(f"{setting.where}: {text}")
            settings.append(setting)
    return settings


def parse_override(text: str) -> Setting:
    """One ``key=value`` of ``--set``. Raises `ConfigError`."""
    line = text.strip()
    name = line.partition("=")[0].strip()
    shown = name if _KEY.match(name) and "=" in line else _known_key(line)
    return _parse_setting(line, f"--set {shown}".strip())


def _parse_setting(line: str, where: str) -> Setting:
    key, equals, value = (part.strip() for part in line.partition("="))
    if not equals or not _KEY.match(key):
        shown = _known_key(line)
        found = f"; found `{shown}`" if shown else ""
        raise ConfigError(f"{where}: write `key = value`, for instance `node_name = n1`{found}")
    return Setting(key, value, where)


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Of a file that holds a secret; its bytes are not shown."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it is not UTF-8 text; write a secret of letters and digits into it"


def _known_key(line: str) -> str:
    """The key with which a line begins that is no setting; empty if it does not. Any other word may be a secret."""
    word = _WORD.match(line)
    return word[0] if word is not None and any(key.matches(word[0]) for key in KEYS) else ""


# --- settings -> values -----------------------------------------------------------------------------------------


def _find_key(setting: Setting) -> Key:
    for key in KEYS:
        if key.matches(setting.key):
            return key
    names = [key.name for key in KEYS]
    close = difflib.get_close_matches(setting.key, names, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else "see the table of keys in README.md"
    raise ConfigError(f"{setting.where}: unknown key `{setting.key}`; {hint}")


class _Reader:
    """The converted values of all settings, and where each was written."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self._values: dict[str, tuple[Any, str]] = {}
        for setting in settings:
            key = _find_key(setting)
            try:
                value = key.convert(setting.value)
            except ValueError as error:
                found = "" if key.name in ("cluster.cookie", "default_pass") else f" `{setting.value}`"
                raise ConfigError(f"{setting.where}: bad value{found} for `{setting.key}`: {error}") from None
            self._values[setting.key] = (value, setting.where)

    def get(self, name: str) -> Any:
        """The value of a key, or its default, or ``None`` if it has none."""
        if name in self._values:
            return self._values[name][0]
        key = next(key for key in KEYS if key.name == name)
        return key.convert(key.default) if key.default else None

    def where(self, name: str) -> str:
        return self._values[name][1] if name in self._values else "the default"

    def is_set(self, name: str) -> bool:
        """The operator has written this key."""
        return name in self._values

    def family(self, name: str) -> dict[str, Any]:
        """Last word of the key -> value, for a key that ends in ``.N``; numbers in the order of counting."""
        prefix = name[:-1]
        found = {key.removeprefix(prefix): value for key, (value, _) in self._values.items() if key.startswith(prefix)}
        return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


# --- values -> configuration ------------------------------------------------------------------------------------


def build_config(settings: Sequence[Setting], read_secret: Callable[[Path], str] | None = None) -> NodeConfig:
    """The configuration that ``settings`` describe; of two settings of one key the later wins.

    ``read_secret`` reads ``cluster.cookie_file``, see `_read_secret`. Raises `ConfigError` for what cannot be used.
    """
    reader = _Reader(settings)
    node_name: NodeName = reader.get("node_name")
    amqp_listener: Address = reader.get("listeners.tcp.default")
    cluster_listener: Address = reader.get("cluster.listener")
    members = _read_members(reader, node_name)
    own_line = next((member.cluster_address for member in members if member.name == node_name), None)
    cluster_address = reader.get("cluster.advertised_address") or own_line or _reachable(cluster_listener)
    amqp_address = reader.get("advertised_address") or _reachable(amqp_listener, cluster_address.host)
    _check_timing(reader)
    _check_one_of(reader, "vm_memory_high_watermark.relative", "vm_memory_high_watermark.absolute")
    _check_one_of(reader, "disk_free_limit.relative", "disk_free_limit.absolute")
    memory_absolute_bytes = reader.get("vm_memory_high_watermark.absolute")
    disk_relative = reader.get("disk_free_limit.relative")
    return NodeConfig(
        node_name=node_name,
        data_dir=reader.get("data_dir"),
        amqp_listener=amqp_listener,
        amqp_advertised_address=amqp_address,
        cluster_listener=cluster_listener,
        cluster_advertised_address=cluster_address,
        members=members or (Member(node_name, cluster_address),),
        cluster_cookie=_read_cookie(reader, read_secret, is_needed=len(members) > 1),
        cluster_tls=_read_tls(reader),
        default_user=reader.get("default_user"),
        default_pass=reader.get("default_pass"),
        default_vhost=reader.get("default_vhost"),
        loopback_users=_read_loopback_users(reader),
        heartbeat_s=reader.get("heartbeat"),
        frame_max_bytes=reader.get("frame_max"),
        channel_max=reader.get("channel_max"),
        handshake_timeout_ms=reader.get("handshake_timeout"),
        max_message_size_bytes=reader.get("max_message_size"),
        queue_index_embed_msgs_below_bytes=reader.get("queue_index_embed_msgs_below"),
        msg_store_file_size_limit_bytes=reader.get("msg_store_file_size_limit"),
        msg_store_compaction=reader.get("msg_store_compaction"),
        msg_store_io_batch_messages=reader.get("msg_store_io_batch_size"),
        queue_version=reader.get("classic_queue.default_version"),
        queue_index_segment_entries=reader.get("queue_index_segment_entry_count"),
        queue_index_journal_entries_max=reader.get("queue_index_max_journal_entries"),
        queue_index_v2_segment_entries=reader.get("classic_queue_index_v2_segment_entry_count"),
        memory_watermark_relative=_get_unless(reader, "vm_memory_high_watermark.relative", memory_absolute_bytes),
        memory_watermark_absolute_bytes=memory_absolute_bytes,
        memory_paging_ratio=reader.get("vm_memory_high_watermark_paging_ratio"),
        total_memory_override_bytes=_read_total_memory(reader),
        disk_free_limit_absolute_bytes=_get_unless(reader, "disk_free_limit.absolute", disk_relative),
        disk_free_limit_relative=disk_relative,
        durability=reader.get("durability"),
        credit_flow_default_credit=_read_credit(reader, "credit_flow_default_credit"),
        msg_store_credit_disc_bound=_read_credit(reader, "msg_store_credit_disc_bound"),
        cluster_credit=_read_credit(reader, "cluster.credit"),
        cluster_partition_handling=reader.get("cluster_partition_handling"),
        mirroring_sync_batch_size=reader.get("mirroring_sync_batch_size"),
        mirroring_sync_max_throughput_bytes=reader.get("mirroring_sync_max_throughput"),
        cluster_silence_timeout_ms=reader.get("cluster.silence_timeout_ms"),
        raft_heartbeat_ms=reader.get("raft.heartbeat_ms"),
        raft_election_timeout_ms=reader.get("raft.election_timeout_ms"),
        log_level=reader.get("log.level"),
        log_file=reader.get("log.file"),
    )


def _reachable(listener: Address, host: str = "127.0.0.1") -> Address:
    """An address that can be told to others: a wildcard is replaced by ``host``."""
    return Address(host, listener.port) if listener.is_wildcard else listener


def _read_members(reader: _Reader, node_name: NodeName) -> tuple[Member, ...]:
    members: tuple[Member, ...] = tuple(reader.family("cluster_formation.classic_config.nodes.N").values())
    if not members:
        return ()
    names = [member.name for member in members]
    prefix = "cluster_formation.classic_config.nodes"
    if len(set(names)) != len(names):
        raise ConfigError(f"`{prefix}`: a node is listed twice; list each of the members once")
    addresses = [member.cluster_address for member in members]
    if len(set(addresses)) != len(addresses):
        raise ConfigError(f"`{prefix}`: two nodes have the same address; each listens on its own")
    if node_name not in names:
        raise ConfigError(
            f"`{prefix}`: this node, {node_name}, is not among the members ({', '.join(names)}); "
            "list all members, this one included, or correct `node_name`"
        )
    return members


def _read_cookie(reader: _Reader, read_secret: Callable[[Path], str] | None, *, is_needed: bool) -> str:
    cookie: str | None = reader.get("cluster.cookie")
    path: Path | None = reader.get("cluster.cookie_file")
    where = reader.where("cluster.cookie")
    if cookie is not None and path is not None:
        raise ConfigError(
            f"{reader.where('cluster.cookie_file')}: both `cluster.cookie` and `cluster.cookie_file` are set; keep one"
        )
    if path is not None:
        where = f"{reader.where('cluster.cookie_file')}: {path}"
        if read_secret is None:
            raise ConfigError(f"{where}: `cluster.cookie_file` cannot be read here; use `cluster.cookie`")
        try:
            cookie = read_secret(path).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = why_unreadable(error)
            raise ConfigError(f"{where}: cannot read the file of `cluster.cookie_file`: {reason}") from None
    if cookie is None:
        if is_needed:
            raise ConfigError(
                "`cluster.cookie` is missing: members of a cluster share a secret of "
                f"{COOKIE_MIN_CHARACTERS} characters or more; set `cluster.cookie` or `cluster.cookie_file`"
            )
        return ""
    check_cookie(cookie, where)
    return cookie


def check_cookie(cookie: str, where: str, remedy: str = "") -> None:
    """Raises `ConfigError` for one that could be guessed, which says ``where`` it is, and another ``remedy``."""
    if len(cookie) < COOKIE_MIN_CHARACTERS:
        raise ConfigError(f"{where}: the secret is too short; use {COOKIE_MIN_CHARACTERS} characters or more{remedy}")


def _read_tls(reader: _Reader) -> TlsFiles | None:
    names = [f"cluster.ssl_options.{name}" for name in ("cacertfile", "certfile", "keyfile")]
    paths: list[Path | None] = [reader.get(name) for name in names]
    given = [path for path in paths if path is not None]
    if given and len(given) < len(names):
        missing = next(name for name, path in zip(names, paths, strict=True) if path is None)
        raise ConfigError(
            f"`{missing}` is missing: nodes prove to each other who they are, so each needs the certificate of the "
            "authority, one of its own and the key to it"
        )
    return TlsFiles(*given) if given else None


def _check_one_of(reader: _Reader, first: str, second: str) -> None:
    """Two ways to say one thing: both at once is a mistake, and which is meant cannot be known."""
    if reader.is_set(first) and reader.is_set(second):
        raise ConfigError(f"{reader.where(second)}: both `{first}` and `{second}` are set; keep one")


def _get_unless(reader: _Reader, name: str, other: float | None) -> Any:
    """The value of a key whose default does not count once the other way to say it was used."""
    return reader.get(name) if other is None else None


def _read_total_memory(reader: _Reader) -> int | None:
    total_bytes: int | None = reader.get("total_memory_available_override_value")
    if total_bytes is not None and total_bytes == 0:
        name = "total_memory_available_override_value"
        raise ConfigError(f"{reader.where(name)}: bad value `0` for `{name}`: no machine is without memory")
    return total_bytes


def _read_loopback_users(reader: _Reader) -> frozenset[str]:
    chosen = reader.family("loopback_users.N")
    has_none = reader.where("loopback_users") != "the default"
    users = {} if has_none else {"guest": True}
    return frozenset(user for user, is_bound in (users | chosen).items() if is_bound)


def _read_credit(reader: _Reader, name: str) -> Credit:
    credit = Credit(reader.get(f"{name}.initial"), reader.get(f"{name}.more_after"))
    if credit.more_after > credit.initial:
        raise ConfigError(
            f"{reader.where(f'{name}.more_after')}: `{name}.more_after` is {credit.more_after}; it must not be more "
            f"than `{name}.initial` ({credit.initial}), or a sender that has used up its credit would wait for ever"
        )
    return credit


def _check_timing(reader: _Reader) -> None:
    heartbeat, election = reader.get("raft.heartbeat_ms"), reader.get("raft.election_timeout_ms")
    if election < ELECTION_TO_HEARTBEAT_RATIO * heartbeat:
        raise ConfigError(
            f"{reader.where('raft.election_timeout_ms')}: `raft.election_timeout_ms` is {election}; it must be at "
            f"least {ELECTION_TO_HEARTBEAT_RATIO} times `raft.heartbeat_ms` ({heartbeat}), or a late heartbeat "
            "starts an election"
        )
    silence = reader.get("cluster.silence_timeout_ms")
    least = ELECTION_TIMEOUTS * election + (ELECTION_HEARTBEATS + PAUSE_BEFORE_SILENCE_HEARTBEATS) * heartbeat
    if silence < least:
        raise ConfigError(
            f"{reader.where('cluster.silence_timeout_ms')}: `cluster.silence_timeout_ms` is {silence}; it must be at "
            f"least {least}: an election takes up to {ELECTION_TIMEOUTS} times `raft.election_timeout_ms` ({election}) "
            f"and some heartbeats of `raft.heartbeat_ms` ({heartbeat}), and a node that must not be silent for longer "
            "would close its client connections at each"
        )


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> NodeConfig:
    """The configuration in the file ``path`` (``None``: defaults) with ``key=value`` overrides on top.

    Raises `ConfigError`, also if the file cannot be read.
    """
    settings: list[Setting] = []
    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"{path}: cannot read the configuration: {reason}") from None
        settings += parse_settings(text, str(path))
    settings += [parse_override(text) for text in overrides]
    return build_config(settings, _read_secret)


def _read_secret(path: Path) -> str:
    """What a file holds that only its owner may read.

    Raises `OSError`, `UnicodeDecodeError` if it is no text, and `ConfigError` if others may read it. A file that
    belongs to somebody else is taken as it is: this process could not read it otherwise, and cannot change it (secrets
    that are mounted into containers).
    """
    status = path.stat()
    is_ours_to_change = os.geteuid() in (status.st_uid, 0)
    if is_ours_to_change and stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(f"{path}: it is a secret and must be accessible by its owner only: `chmod 600 {path}`")
    return path.read_text(encoding="utf-8")
