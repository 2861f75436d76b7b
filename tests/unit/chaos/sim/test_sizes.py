"""Sizes that a personality may set."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from types import ModuleType

import cluster
import node
from chaos.sim import carrier
from chaos.sim.link_sizes import MEASURED
from chaos.sim.run import WITH_DIGEST_SEGMENTS
from cluster.mirroring import settings, sync
from node.queues import events, replica


def names_in(*packages: ModuleType) -> list[str]:
    """Of all modules that can be imported."""
    return [
        found.name
        for package in packages
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not found.name.endswith("__main__")
    ]


def test_all_who_count_positions_in_segments_of_digests_are_told_how_long_they_are() -> None:
    """Otherwise some would compare what others do not mean."""
    names = names_in(cluster, node)
    knowing = {name for name in names if hasattr(import_module(name), "DIGEST_SEGMENT_ENTRIES")}
    assert knowing == {module.__name__ for module in (replica, *WITH_DIGEST_SEGMENTS)}


def test_all_who_measure_by_the_links_are_told_of_small_ones() -> None:
    """Otherwise one turn of one of them is as much as all that may wait for a link (574152981)."""
    told = {(module.__name__, size) for module, size in MEASURED if module is not carrier}
    #: Others have them from there; settings of mirroring are made anew.
    sources = {
        (events.__name__, "DELIVERY_WINDOW_BYTES"),
        (settings.__name__, "WINDOW_BYTES"),
        (sync.__name__, "SYNC_BATCH_BYTES"),
    }
    knowing = {
        (name, size)
        for name in names_in(cluster, node)
        for size in {size for _, size in told | sources}
        if hasattr(import_module(name), size)
    }
    assert knowing - sources == told
