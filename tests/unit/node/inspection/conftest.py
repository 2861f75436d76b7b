"""A node with two queues, at work, after a clean stop and after a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.storage_on_disk import (
    NodeOnDisk,
    fill,
    stay_on,
)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeOnDisk:
    stay_on(monkeypatch)
    node = NodeOnDisk(tmp_path / "n1")
    fill(node)
    return node


@pytest.fixture
def stopped(node: NodeOnDisk) -> NodeOnDisk:
    node.stop()
    return node


@pytest.fixture
def crashed(node: NodeOnDisk, tmp_path: Path) -> NodeOnDisk:
    """Killed after a sync; the copy takes the place of the directory, which the old process cannot touch any more."""
    copy = node.killed(tmp_path / "crashed")
    node.stop()
    shutil.rmtree(node.directory)
    copy.rename(node.directory)
    return node
