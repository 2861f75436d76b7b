"""Descriptors that this process holds."""

from __future__ import annotations

import os
from pathlib import Path


def open_descriptors(directory: Path) -> int:
    """Of files in ``directory``, or below it."""
    targets = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    return sum(target.startswith(str(directory)) for target in targets)
