"""``cluster_status`` and ``status`` as text: a heading, a blank line, its lines, a blank line.

The documents are JSON objects with rabbitmqctl's keys. A section whose key a node does not send is left out, so a new
tool can ask an old node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

Document = Mapping[str, Any]
_NONE = "(none)"


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, "", *(list(lines) or [_NONE])]) + "\n"


def _versions(versions: Mapping[str, Any]) -> list[str]:
    lines = []
    for node, version in versions.items():
        text = (
            version
            if isinstance(version, str)
            else f"Warren {version['warren_version']} on Python {version['python_version']}"
        )
        if not isinstance(version, str) and "protocol" in version:
            text += f", protocol {version['protocol']}"
        lines.append(f"{node}: {text}")
    return lines


def _protocol(protocol: Document) -> list[str]:
    held_back = [f"Not raised yet: {reason}" for reason in protocol["held_back_by"]]
    return [f"Cluster protocol: {protocol['version']}", *held_back]


def _alarms(alarms: Iterable[Any]) -> list[str]:
    names = {
        "memory": "Memory alarm",
        "disk": "Free disk space alarm",
        "file_descriptor_limit": "File descriptor limit alarm",
    }
    return [
        alarm if isinstance(alarm, str) else f"{names[alarm['resource']]} on node {alarm['node']}" for alarm in alarms
    ]


def _listeners(listeners: Mapping[str, Iterable[Document]]) -> list[str]:
    return [
        f"Node: {node}, interface: {item['interface']}, port: {item['port']}, protocol: {item['protocol']}, "
        f"purpose: {item['purpose']}"
        for node, items in listeners.items()
        for item in items
    ]


def _partitions(partitions: Mapping[str, Iterable[str]]) -> list[str]:
    return [f"Node {node} cannot communicate with {', '.join(others)}" for node, others in partitions.items()]


def _paused(paused: Mapping[str, Document]) -> list[str]:
    lines = []
    for node, standing in paused.items():
        seconds = standing["seconds"]
        since = "" if seconds is None else f", since {_ago(seconds)} ({seconds} seconds)"
        state = "serves clients" if standing["serves_clients"] else "serves no clients"
        lines.append(f"Node {node} {state}{since}: {standing['reason']}")
        for key, title in (("reaches", "It reaches"), ("lacks", "It lacks")):
            lines.append(f"{title}: {', '.join(standing[key]) or 'nobody'}")
    return lines


def _ago(seconds: int) -> str:
    """The time of day on this machine."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def cluster_status_text(document: Document) -> str:
    """Sections in rabbitmqctl's order."""
    sections = []
    if "cluster_name" in document:
        sections.append(_section("Basics", [f"Cluster name: {document['cluster_name']}"]))
    if document.get("paused"):
        sections.append(_section("Paused", _paused(document["paused"])))
    for key, title in (("disk_nodes", "Disk Nodes"), ("running_nodes", "Running Nodes")):
        if key in document:
            sections.append(_section(title, document[key]))
    if "versions" in document:
        sections.append(_section("Versions", _versions(document["versions"])))
    if "protocol" in document:
        sections.append(_section("Protocol", _protocol(document["protocol"])))
    if "maintenance_status" in document:
        lines = [f"Node: {node}, status: {state}" for node, state in document["maintenance_status"].items()]
        sections.append(_section("Maintenance status", lines))
    if "alarms" in document:
        sections.append(_section("Alarms", _alarms(document["alarms"])))
    if "partitions" in document:
        sections.append(_section("Network Partitions", _partitions(document["partitions"])))
    if "listeners" in document:
        sections.append(_section("Listeners", _listeners(document["listeners"])))
    return "\n".join(sections)


_STATUS_SECTIONS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Runtime",
        (
            ("pid", "OS PID"),
            ("os", "OS"),
            ("uptime", "Uptime (seconds)"),
            ("is_under_maintenance", "Is under maintenance?"),
            ("warren_version", "Warren version"),
            ("protocol", "Protocol"),
            ("node_name", "Node name"),
            ("python_version", "Python version"),
        ),
    ),
    ("Data directory", (("data_directory", "Node data directory"),)),
    (
        "Free Disk Space",
        (("disk_free_limit", "Low free disk space watermark (bytes)"), ("disk_free", "Free disk space (bytes)")),
    ),
)
_LIST_SECTIONS = (("config_files", "Config files"), ("log_files", "Log file(s)"))
_TOTALS = (
    ("connection_count", "Connection count"),
    ("queue_count", "Queue count"),
    ("virtual_host_count", "Virtual host count"),
)


def _pairs(document: Document, names: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{title}: {_plain(document[key])}" for key, title in names if key in document]


def _plain(value: Any) -> str:
    if value is None:
        return "unknown"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _memory(document: Document) -> list[str]:
    lines = [f"{key}: {value}" for key, value in document["memory"].items()]
    if "vm_memory_calculation_strategy" in document:
        lines.append(f"Calculation strategy: {document['vm_memory_calculation_strategy']}")
    if "vm_memory_high_watermark_limit" in document:
        setting = document["vm_memory_high_watermark_setting"]
        text = (
            f"{setting['absolute']} bytes" if "absolute" in setting else f"{setting['relative']:g} of available memory"
        )
        limit = document["vm_memory_high_watermark_limit"]
        lines.append(f"Memory high watermark setting: {text}, computed to: {limit} bytes")
    return lines


def status_text(document: Document) -> str:
    """Sections of a node's own status."""
    sections = [_section(title, lines) for title, names in _STATUS_SECTIONS if (lines := _pairs(document, names))]
    sections += [_section(title, document[key]) for key, title in _LIST_SECTIONS if key in document]
    if document.get("paused"):
        sections.insert(0, _section("Paused", _paused({document["node_name"]: document["paused"]})))
    if "alarms" in document:
        sections.append(_section("Alarms", _alarms(document["alarms"])))
    if "memory" in document:
        sections.append(_section("Memory", _memory(document)))
    totals = _pairs(document.get("totals", document), _TOTALS)
    if totals:
        sections.append(_section("Totals", totals))
    if "listeners" in document:
        listeners = document["listeners"]
        by_node = listeners if isinstance(listeners, Mapping) else {document["node_name"]: listeners}
        sections.append(_section("Listeners", _listeners(by_node)))
    return "\n".join(sections)
