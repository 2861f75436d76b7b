"""Disks on which every sync takes so long: a small library, preloaded into a program, waits before each.

It is compiled when it is needed, so only a machine with a C compiler has it, and only programs that sync by the
system's library can be slowed down: Python and Erlang do. Nothing else becomes slower, and while the latency is zero
nothing does.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = Path(__file__).with_suffix(".c")
_COMPILER = "cc"
_LATENCY_US = struct.Struct("=Q")
_TIMEOUT_S = 60.0


class SlowSyncsError(Exception):
    """The library could not be compiled."""


def why_none() -> str:
    """Why no sync can be slowed down on this machine; empty if it can."""
    return "" if shutil.which(_COMPILER) else f"there is no C compiler ({_COMPILER}), which slow syncs need"


def compile_library(directory: Path) -> Path:
    """Blocks. Raises `SlowSyncsError`."""
    library = directory / "slow_syncs.so"
    command = [_COMPILER, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlowSyncsError(f"{_COMPILER}: {error}") from error
    if done.returncode != 0:
        raise SlowSyncsError(f"{_COMPILER} ended with {done.returncode}: {done.stderr.strip()}")
    return library


class SlowSyncs:
    """Of one program."""

    def __init__(self, library: Path, file: Path) -> None:
        """``file`` is made; it says what the latency is."""
        self._library, self._file = library, file
        self.set(0.0)

    @property
    def environment(self) -> Mapping[str, str]:
        """What the program is to be started with."""
        return {"LD_PRELOAD": str(self._library), "WARREN_SYNC_LATENCY_FILE": str(self._file)}

    def set(self, latency_s: float) -> None:
        """From now on, for a program that runs, too."""
        with self._file.open("r+b" if self._file.exists() else "xb", buffering=0) as file:
            file.write(_LATENCY_US.pack(round(latency_s * 1e6)))
