"""Every key of the configuration: its name, type, default, meaning, and how its value is read (see `node.config`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from node.ids import NodeName

#: A node name is part of file names, addresses and log lines: keep it to what is safe in all of them.
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")

#: Of users and vhosts: a short string of AMQP.
NAME_BYTES_MAX = 255

KIB = 1024
MIB = 1024 * 1024
#: The client's method frames must fit whatever it asks for (AMQP 0-9-1, frame-min-size).
FRAME_MIN_BYTES = 4096
#: One frame is held in memory whole per connection; RabbitMQ's own ceiling is of the same order.
FRAME_CEILING_BYTES = 64 * MIB
#: As in RabbitMQ: a larger message could not be handled in one piece.
MESSAGE_CEILING_BYTES = 512 * MIB
#: Credit beyond this bounds nothing: the publishers' bytes are bounded before it is used up.
_CREDIT_CEILING = 1_000_000
#: A queue index entry with an embedded message has to fit one write; the reference warns above this, too.
EMBED_CEILING_BYTES = 48 * KIB


class Address(NamedTuple):
    """Where to listen or connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """True if the host means "every interface": good for listening, useless to tell others."""
        return self.host in ("0.0.0.0", "::", "")


class Member(NamedTuple):
    """One line of ``cluster_formation.classic_config.nodes``."""

    name: NodeName
    cluster_address: Address


@dataclass(frozen=True, slots=True)
class Key:
    """One key an operator can write. ``name`` may end in ``.N``: then any last word is good and each is an entry."""

    name: str
    type_name: str
    #: As it would be written; empty if there is none.
    default: str
    meaning: str
    #: Text to value. Raises `ValueError` with what to write instead.
    convert: Callable[[str], Any]

    @property
    def is_family(self) -> bool:
        return self.name.endswith(".N")

    def matches(self, key: str) -> bool:
        if self.is_family:
            prefix = self.name[:-1]
            return key.startswith(prefix) and len(key) > len(prefix)
        return key == self.name


# --- values -----------------------------------------------------------------------------------------------------


def _parse_port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65535:
        raise ValueError("a port is a number from 1 to 65535")
    return int(text)


def parse_address(text: str) -> Address:
    """``host:port`` or ``[ipv6]:port``. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise ValueError("write host:port, for instance 127.0.0.1:5672")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("put an IPv6 address in brackets, for instance [::1]:5672")
    return Address(host, _parse_port(port))


def _parse_findable(text: str) -> Address:
    """As `parse_address`, of a host that can be looked up. What others have announced is not held to that."""
    address = parse_address(text)
    try:
        address.host.encode("idna")
    except UnicodeError:
        raise ValueError("in the name of a host 1 to 63 characters stand between dots") from None
    return address


def _parse_listener(text: str) -> Address:
    """As `_parse_findable`; a port alone means every interface, as in RabbitMQ."""
    if ":" not in text:
        return Address("0.0.0.0", _parse_port(text))
    return _parse_findable(text)


def _parse_node_name(text: str) -> NodeName:
    if not _NODE_NAME.match(text):
        raise ValueError("a node name has up to 64 letters, digits, dots, dashes or underscores, for instance n1")
    return NodeName(text)


def _parse_member(text: str) -> Member:
    name, at, address = text.partition("@")
    if not at:
        raise ValueError("write name@host:port, for instance n1@127.0.0.1:25672")
    return Member(_parse_node_name(name), _parse_findable(address))


def _parse_text(text: str) -> str:
    _require_value(text)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("it is not UTF-8 text") from None
    return text


def _parse_name(text: str) -> str:
    """As it goes into a short string of the protocol."""
    if len(_parse_text(text).encode()) > NAME_BYTES_MAX:
        raise ValueError(f"a name has at most {NAME_BYTES_MAX} bytes")
    return text


def _parse_path(text: str) -> Path:
    _require_value(text)
    if "\0" in text:
        raise ValueError("a path has no NUL character in it")
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"the home directory of {path.parts[0]} is not known; write the whole path") from None


def _require_value(text: str) -> None:
    if not text:
        raise ValueError("it needs a value")


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("write true or false")
    return text == "true"


def _parse_none(text: str) -> None:
    if text != "none":
        raise ValueError("write none, or name users: loopback_users.guest = false")


def _choice(*choices: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if text not in choices:
            raise ValueError(f"write {' or '.join(choices)}")
        return text

    return convert


def _integer(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not re.fullmatch(r"\d{1,19}", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError(f"write a whole number from {low} to {high}")
        return int(text)

    return convert


#: Suffixes of sizes such as ``queue_index_embed_msgs_below``: binary, upper or lower case, as RabbitMQ reads them.
_SIZE_UNITS = {"": 1, "b": 1, "kb": KIB, "mb": MIB, "gb": KIB * MIB, "kib": KIB, "mib": MIB, "gib": KIB * MIB}
#: Suffixes of amounts such as ``mirroring_sync_max_throughput`` and ``disk_free_limit.absolute``, in any case: here
#: RabbitMQ tells 1000 (``kB``) from 1024 (``k``, ``kiB``).
_AMOUNT_UNITS = {"": 1} | {
    prefix + suffix: (1000 if suffix == "b" else 1024) ** power
    for power, prefix in enumerate("kmgt", 1)
    for suffix in ("", "b", "ib")
}
_QUANTITY = re.compile(r"(\d{1,19})\s*([A-Za-z]*)\Z", re.ASCII)


def _quantity(low: int, high: int, units: Mapping[str, int], examples: str) -> Callable[[str], int]:
    def convert(text: str) -> int:
        match = _QUANTITY.match(text)
        if match is not None:
            unit = match[2] if match[2] in units else match[2].lower()
            if unit in units:
                value = int(match[1]) * units[unit]
                if low <= value <= high:
                    return value
                raise ValueError(f"that is {value} bytes; it must be from {low} to {high}")
        raise ValueError(f"write a number of bytes, with a unit if you like: {examples}")

    return convert


def _size(low: int, high: int) -> Callable[[str], int]:
    return _quantity(low, high, _SIZE_UNITS, "4096, 4kb, 16mb")


def _power_of_two(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        value = _integer(low, high)(text)
        if value & (value - 1):
            raise ValueError(f"write a power of two from {low} to {high}, for instance 4096")
        return value

    return convert


_NO_CEILING = 2**53


def _credit_keys(name: str, default: tuple[int, int], where: str) -> tuple[Key, Key]:
    """The two numbers of a credit, in messages."""
    initial, more_after = default
    return (
        Key(
            f"{name}.initial",
            "messages",
            str(initial),
            f"Credit flow, {where}: messages that a sender may have unprocessed.",
            _integer(1, _CREDIT_CEILING),
        ),
        Key(
            f"{name}.more_after",
            "messages",
            str(more_after),
            f"Credit flow, {where}: more credit is granted after so many are processed; at most `{name}.initial`.",
            _integer(1, _CREDIT_CEILING),
        ),
    )


def parse_amount(text: str) -> int:
    """Bytes of ``2GiB``, ``500MB``, ``1048576``. Raises `ValueError`."""
    return _quantity(0, _NO_CEILING, _AMOUNT_UNITS, "1073741824, 1GiB, 500MB")(text)


def parse_factor(text: str, high: float) -> float:
    """A number from 0 to ``high``. Raises `ValueError`."""
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?|\.\d{1,9}", text, re.ASCII) or float(text) > high:
        raise ValueError(f"write a number from 0 to {high:g}, for instance {min(0.4, high):g}")
    return float(text)


def _factor(high: float) -> Callable[[str], float]:
    return lambda text: parse_factor(text, high)


#: Nobody keeps more of the disk free than this many times the memory.
DISK_TO_MEMORY_FACTOR_MAX = 1000.0

#: Every key there is. Order: as an operator meets them; it is the order of the reference table.
KEYS: tuple[Key, ...] = (
    Key(
        "node_name",
        "name",
        "n1",
        "Name of this node, unique in its cluster and the same for ever: `data_dir` belongs to it.",
        _parse_node_name,
    ),
    Key(
        "data_dir",
        "path",
        "warren-data",
        "Where everything durable lives. One node per directory, which nothing else is in.",
        _parse_path,
    ),
    Key(
        "listeners.tcp.default",
        "host:port or port",
        "127.0.0.1:5672",
        "Where AMQP clients connect. A port alone listens on every interface.",
        _parse_listener,
    ),
    Key(
        "advertised_address",
        "host:port",
        "",
        "Where clients of other nodes and tools find this node's AMQP listener. Default: the listener.",
        _parse_findable,
    ),
    Key(
        "cluster.listener",
        "host:port or port",
        "127.0.0.1:25672",
        "Where other nodes and `warrenctl` connect (gRPC).",
        _parse_listener,
    ),
    Key(
        "cluster.advertised_address",
        "host:port",
        "",
        "Where other nodes find `cluster.listener`. Default: this node's line in the list of members.",
        _parse_findable,
    ),
    Key(
        "cluster_formation.classic_config.nodes.N",
        "name@host:port",
        "",
        "One line per founding member, this node included, the same on all; `N` is 1, 2, 3 ... None: a cluster of one.",
        _parse_member,
    ),
    Key(
        "cluster.cookie",
        "text",
        "",
        "Secret that all members and `warrenctl` share, 16 characters or more. "
        "Default for a node alone: what is in `~/.warren.cookie`, which it makes.",
        _parse_text,
    ),
    Key(
        "cluster.cookie_file",
        "path",
        "",
        "File that holds the secret, instead of `cluster.cookie`. Only its owner may be able to read it.",
        _parse_path,
    ),
    Key(
        "cluster.ssl_options.cacertfile",
        "path",
        "",
        "PEM file of the authority whose certificates nodes and `warrenctl` must show each other (mutual TLS).",
        _parse_path,
    ),
    Key(
        "cluster.ssl_options.certfile",
        "path",
        "",
        "PEM file of this node's certificate, for the host by which others call its cluster port.",
        _parse_path,
    ),
    Key("cluster.ssl_options.keyfile", "path", "", "PEM file of the key to it, without a password.", _parse_path),
    Key("default_user", "text", "guest", "Administrator made at the first start of a cluster.", _parse_name),
    Key("default_pass", "text", "guest", "Password of `default_user`.", _parse_text),
    Key("default_vhost", "text", "/", "Virtual host made at the first start of a cluster.", _parse_name),
    Key(
        "loopback_users.N",
        "true, false",
        "",
        "Whether user `N` may log in from this machine only. Default: true for `guest`, false for everyone else.",
        _parse_bool,
    ),
    Key("loopback_users", "none", "", "`none`: every user may log in from anywhere.", _parse_none),
    Key("heartbeat", "seconds", "60", "Heartbeat offered to clients; 0 switches it off.", _integer(0, 65535)),
    Key(
        "frame_max",
        "bytes",
        "131072",
        "Largest AMQP frame offered to clients.",
        _integer(FRAME_MIN_BYTES, FRAME_CEILING_BYTES),
    ),
    Key("channel_max", "number", "2047", "Channels one connection may open.", _integer(1, 65535)),
    Key(
        "handshake_timeout",
        "milliseconds",
        "10000",
        "A client that has not logged in by then is disconnected.",
        _integer(100, 600_000),
    ),
    Key("max_message_size", "size", "134217728", "Larger messages are refused.", _size(1, MESSAGE_CEILING_BYTES)),
    Key(
        "queue_index_embed_msgs_below",
        "size",
        "4096",
        "Messages smaller than this are kept with the queue's index, others in the shared message store.",
        _size(0, EMBED_CEILING_BYTES),
    ),
    Key(
        "msg_store_file_size_limit",
        "size",
        "16777216",
        "A message store file that has grown to this is closed and a new one begun.",
        _size(64 * KIB, KIB * MIB),
    ),
    Key(
        "msg_store_compaction",
        "holes, merge",
        "holes",
        "How space is won back in the shared message store: `holes` moves messages inside a file (RabbitMQ 3.13), "
        "`merge` joins neighbouring files (before).",
        _choice("holes", "merge"),
    ),
    Key(
        "msg_store_io_batch_size",
        "messages",
        "4096",
        "Positions leave memory when there are so many to move, or more.",
        _integer(1, 65_536),
    ),
    Key(
        "classic_queue.default_version",
        "1, 2",
        "2",
        "Version of the index of a queue for which neither `x-queue-version` nor a policy says one.",
        lambda text: int(_choice("1", "2")(text)),
    ),
    Key(
        "queue_index_segment_entry_count",
        "power of two",
        "16384",
        "Entries of one segment of an index of version 1; a vhost keeps the number it was made with.",
        _power_of_two(8, 65_536),
    ),
    Key(
        "queue_index_max_journal_entries",
        "entries",
        "32768",
        "The journal of an index of version 1 goes into the segments when it has so many.",
        _integer(16, 1_048_576),
    ),
    Key(
        "classic_queue_index_v2_segment_entry_count",
        "power of two",
        "4096",
        "Entries of one segment of an index of version 2; a vhost keeps the number it was made with.",
        _power_of_two(8, 65_536),
    ),
    Key(
        "vm_memory_high_watermark.relative",
        "0 to 1",
        "0.4",
        "Fraction of the memory (of the control group's, if that is less) this node may use before publishers on all "
        "nodes are blocked; 0 blocks them at once.",
        _factor(1.0),
    ),
    Key(
        "vm_memory_high_watermark.absolute",
        "amount",
        "",
        "The same in bytes, instead of the fraction: `512MiB`, `2GB`.",
        parse_amount,
    ),
    Key(
        "vm_memory_high_watermark_paging_ratio",
        "0 to 1",
        "0.5",
        "From this fraction of the memory limit on, queues move messages to the disk.",
        _factor(1.0),
    ),
    Key(
        "total_memory_available_override_value",
        "amount",
        "",
        "The memory that fractions are taken of. Default: what the system reports.",
        parse_amount,
    ),
    Key(
        "disk_free_limit.absolute",
        "amount",
        "50MB",
        "With less room than this where `data_dir` is, publishers on all nodes are blocked.",
        parse_amount,
    ),
    Key(
        "disk_free_limit.relative",
        "factor",
        "",
        "The same as a multiple of the memory, instead of bytes.",
        _factor(DISK_TO_MEMORY_FACTOR_MAX),
    ),
    Key(
        "durability",
        "fsync, flush",
        "fsync",
        "What a publisher confirm of a persistent message waits for: the disk, or only the operating system.",
        _choice("fsync", "flush"),
    ),
    *_credit_keys(
        "credit_flow_default_credit",
        (200, 50),
        "connection to channel to queue, inside a node",
    ),
    *_credit_keys("msg_store_credit_disc_bound", (4000, 800), "queue to its message store, here and on a mirror"),
    *_credit_keys("cluster.credit", (4000, 800), "channel to a queue mastered elsewhere, and queue to mirror"),
    Key(
        "cluster_partition_handling",
        "pause_minority, ignore",
        "pause_minority",
        "What a node does that cannot know what the majority decides: close its client connections, or keep them. Kept "
        "ones wait for confirms; but what they publish to a queue declared meanwhile is confirmed as unroutable.",
        _choice("pause_minority", "ignore"),
    ),
    Key(
        "mirroring_sync_batch_size",
        "messages",
        "4096",
        "Messages in one batch of a synchronisation, at most.",
        _integer(1, 1_000_000),
    ),
    Key(
        "mirroring_sync_max_throughput",
        "bytes per second",
        "0",
        "Speed limit of a synchronisation, per queue; 0 is none. `k` and `kiB` are 1024, `kB` is 1000.",
        _quantity(0, _NO_CEILING, _AMOUNT_UNITS, "1048576, 10MiB, 10MB"),
    ),
    Key(
        "cluster.silence_timeout_ms",
        "milliseconds",
        "5000",
        "A member that says nothing for this long counts as down, and a mirror whose link to its master is cut for as "
        "long is left behind. At least two election timeouts and six heartbeats.",
        _integer(100, 600_000),
    ),
    Key(
        "raft.heartbeat_ms",
        "milliseconds",
        "100",
        "How often the leader of the cluster's metadata reports to the others.",
        _integer(10, 60_000),
    ),
    Key(
        "raft.election_timeout_ms",
        "milliseconds",
        "1000",
        "Without word from the leader for this long (at random up to twice as long) a member stands for election.",
        _integer(50, 600_000),
    ),
    Key(
        "log.level",
        "debug, info, warning, error",
        "info",
        "Least important message that is logged.",
        _choice("debug", "info", "warning", "error"),
    ),
    Key("log.file", "path", "", "File that the log is appended to. Default: standard error.", _parse_path),
)


def reference_table() -> str:
    """`KEYS` as a Markdown table, for the documentation."""
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key in KEYS:
        default = f"`{key.default}`" if key.default else ""
        lines.append(f"| `{key.name}` | {key.type_name} | {default} | {key.meaning} |")
    return "\n".join(lines) + "\n"
