"""Which processes have files below a directory open: a node at work, most likely."""

from __future__ import annotations

import os
from pathlib import Path

import psutil


def processes_using(directory: Path) -> list[int]:
    """Ids of the processes of this machine, but us, with an open file at or below ``directory``.

    Those of other users are not seen unless we are root: an empty answer proves nothing.
    """
    base = str(directory.resolve())
    found: list[int] = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            paths = [file.path for file in process.open_files()]
        except (psutil.Error, OSError):
            continue
        if any(path == base or path.startswith(base + os.sep) for path in paths):
            found.append(process.pid)
    return sorted(found)


def data_directory_of(directory: Path) -> Path:
    """The data directory of the node that ``directory`` is a part of, or itself if it is not below one."""
    resolved = directory.resolve()
    for above in (resolved, *resolved.parents):
        if above.name == "vhosts":
            return above.parent
    return resolved
