"""What nodes are told about themselves and the others."""

from __future__ import annotations

from pathlib import Path

from chaos.cluster_under_test.local import render_config
from chaos.harm.lines import CLIENTS, Line
from chaos.plan.actions import Capability
from chaos.targets.local import NOWHERE, detours
from chaos.targets.proxied_lines import lines_for
from chaos.targets.rabbitmq import configuration
from cluster.directory import ClusterDirectory, NodeEntry
from node.config import NodeConfig, build_config, parse_settings

NODES = tuple(NodeEntry(f"n{number}", f"127.0.0.1:567{number}", f"127.0.0.1:700{number}") for number in (1, 2, 3))


def configured(directory: Path, node: int, proxies: dict[Line, str]) -> NodeConfig:
    text = render_config(ClusterDirectory(directory, NODES), NODES[node - 1], detours(node, proxies))
    return build_config(parse_settings(text, "n.conf"), lambda _: "secretsecretsecret")


def test_with_proxies_a_node_is_reached_by_them_only(tmp_path: Path) -> None:
    lines = lines_for([1, 2, 3], {Capability.NODE_LINES, Capability.CLIENT_LINES})
    proxies = {line: f"127.0.0.1:{8000 + 10 * line.source + line.destination}" for line in lines}
    config = configured(tmp_path, 2, proxies)
    assert {member.name: str(member.cluster_address) for member in config.members} == {
        "n1": "127.0.0.1:8021",
        "n2": "127.0.0.1:7002",
        "n3": "127.0.0.1:8023",
    }
    assert str(config.cluster_advertised_address) == NOWHERE
    assert str(config.cluster_listener) == "127.0.0.1:7002"


def test_with_proxies_for_clients_only_nodes_are_as_ever(tmp_path: Path) -> None:
    proxies = {Line(CLIENTS, node): f"127.0.0.1:800{node}" for node in (1, 2, 3)}
    assert configured(tmp_path, 1, proxies) == configured(tmp_path, 1, {})


def test_lines_have_proxies_if_they_are_needed() -> None:
    clients = {Line(CLIENTS, 1), Line(CLIENTS, 2)}
    nodes = {Line(1, 2), Line(2, 1)}
    assert lines_for([1, 2], {Capability.KILL}) == set()
    assert lines_for([1, 2], {Capability.CLIENT_LINES}) == clients
    assert lines_for([1, 2], {Capability.NODE_LINES}) == nodes
    assert lines_for([1, 2], set(Capability)) == clients | nodes


def test_what_a_scenario_says_counts_in_a_configuration_of_rabbitmq() -> None:
    settings = {"cluster_partition_handling": "pause_minority", "disk_free_limit.absolute": "1GB", "mirrored": True}
    assert configuration([1, 2], 5672, settings).splitlines() == [
        "listeners.tcp.1 = 127.0.0.1:5672",
        "cluster_formation.peer_discovery_backend = classic_config",
        "cluster_formation.classic_config.nodes.1 = n1@localhost",
        "cluster_formation.classic_config.nodes.2 = n2@localhost",
        "disk_free_limit.absolute = 1GB",
        "cluster_partition_handling = pause_minority",
        "mirrored = true",
    ]
