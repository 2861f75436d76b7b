"""Processes that outlive the one who started them, and are recognised for certain later.

A pid alone says little: the kernel gives it to somebody else soon after. A process is therefore remembered by its pid
*and* the time it started (`ProcessMark`); only one that has both is ours to signal. Each node leads a session of its
own, so a Ctrl-C at the terminal or the death of the parent does not reach it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

#: The kernel counts start times in ticks of 10 ms; a pid is not given out twice within this.
_START_TIME_TOLERANCE_S = 0.05


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """A process of this machine, for certain."""

    pid: int
    #: Seconds since 1970, as the kernel reports it.
    started_at_s: float

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def mark_from_json(text: str) -> ProcessMark | None:
    """What `ProcessMark.to_json` wrote, or ``None`` for a torn or foreign text."""
    try:
        document = json.loads(text)
        return ProcessMark(int(document["pid"]), float(document["started_at_s"]))
    except (ValueError, KeyError, TypeError):
        return None


def read_mark(path: Path) -> ProcessMark | None:
    """The process a file remembers, running or not."""
    try:
        return mark_from_json(path.read_text(encoding="utf-8"))
    except OSError:
        return None


def write_mark(path: Path, mark: ProcessMark) -> None:
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_text(mark.to_json(), encoding="utf-8")
    scratch.replace(path)


def running_process(mark: ProcessMark | None) -> psutil.Process | None:
    """The process that ``mark`` names, if it still runs. A zombie has ended: only its parent has not noticed."""
    if mark is None:
        return None
    try:
        process = psutil.Process(mark.pid)
        is_same = abs(process.create_time() - mark.started_at_s) <= _START_TIME_TOLERANCE_S
        return process if is_same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def spawn(
    command: Sequence[str], log_path: Path, working_directory: Path, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], ProcessMark]:
    """Start ``command`` in a session of its own, its output appended to ``log_path``."""
    with log_path.open("ab") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=working_directory,
            env=dict(environment),
            start_new_session=True,
        )
    return child, ProcessMark(child.pid, psutil.Process(child.pid).create_time())


def send_signal(mark: ProcessMark | None, signal_number: signal.Signals) -> bool:
    """Signal the process group that the process leads. False if the process is gone."""
    if mark is None or running_process(mark) is None:
        return False
    try:
        os.killpg(mark.pid, signal_number)
    except ProcessLookupError:
        return False
    return True


def log_tail(path: Path, line_count: int = 20) -> str:
    """The last lines of a log, for an error message. Reads a bounded piece from the end."""
    longest_tail_bytes = 16 * 1024
    try:
        with path.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - longest_tail_bytes))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error.strerror})"
    return "\n".join(lines[-line_count:]) or "(the log is empty)"
