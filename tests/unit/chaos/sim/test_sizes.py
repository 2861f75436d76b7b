"""Sizes that a personality may set."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import cluster
import node
from chaos.sim.run import WITH_DIGEST_SEGMENTS
from node.queues import replica


def test_all_who_count_positions_in_segments_of_digests_are_told_how_long_they_are() -> None:
    """Otherwise some would compare what others do not mean."""
    names = [
        found.name
        for package in (cluster, node)
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not found.name.endswith("__main__")
    ]
    knowing = {name for name in names if hasattr(import_module(name), "DIGEST_SEGMENT_ENTRIES")}
    assert knowing == {module.__name__ for module in (replica, *WITH_DIGEST_SEGMENTS)}
