"""A data directory serves one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.real_world.data_lock import DataLock
from node.errors import ConfigError


def test_a_directory_in_use_is_refused_and_its_holder_named(tmp_path: Path) -> None:
    lock = DataLock(str(tmp_path))
    with pytest.raises(ConfigError, match=rf"in use by process {os.getpid()}: stop that node first"):
        DataLock(str(tmp_path))
    lock.release()
    DataLock(str(tmp_path)).release()
