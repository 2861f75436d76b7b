"""Processes that are found again by a mark in their environment.

Whoever begins a process learns its id afterwards, and may be killed in between: then nobody knows it. So a process of
the laboratory is not told apart by its id but by a mark, a random word that is in the journal of the run before the
first process has it. Its children inherit it, whatever sessions and groups they make for themselves, and theirs too: a
broker that starts daemons of its own hides none from us. A process that is found is remembered with the time at which
it began, as ids are given anew.

What comes behind a slash tells processes of one mark apart: ``3f..9a/n2`` is one of ``3f..9a``.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import time
from collections.abc import Mapping
from typing import Any

import psutil

from chaos.harm.journal import CannotUndo

ENVIRONMENT = "WARREN_LABORATORY_MARK"
#: By which the journal knows `end_told`.
HOW = "processes"
#: Seconds for the kernel to end killed processes, which may have much memory.
END_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.02
#: Of `new_mark`. What is shorter, and nothing above all, could be said of others, too.
_MARK = re.compile(r"[0-9a-f]{32}(/.+)?")


def new_mark() -> str:
    """A word that nobody else has."""
    return secrets.token_hex(16)


def marked_environment(mark: str, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """``base``, or ours, with the mark."""
    return {**(os.environ if base is None else base), ENVIRONMENT: mark}


def processes_of(mark: str) -> list[psutil.Process]:
    """All that have the mark, or one below it, and have not ended. Raises `ValueError` for what is no mark."""
    if not _MARK.fullmatch(mark):
        raise ValueError(f"{mark!r} is no mark: whose processes have it, nobody knows")
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        # It has just ended, has no environment any more, or is another user's.
        with contextlib.suppress(psutil.Error, OSError):
            said = process.environ().get(ENVIRONMENT, "")
            if said == mark or said.startswith(f"{mark}/"):
                found.append(process)
    return found


def signal_marked(number: signal.Signals, *marks: str) -> list[psutil.Process]:
    """To all who have one of the marks, as many as there are."""
    found = [process for mark in marks for process in processes_of(mark)]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    return found


def kill_all(*marks: str, timeout_s: float = END_TIMEOUT_S) -> list[int]:
    """SIGKILL to all who have one of the marks, at once, and to those that are begun meanwhile, until nobody is left.

    Blocks. Returns the ids of who does not go. Who is gone has no files, sockets or memory any more.
    """
    deadline = time.monotonic() + timeout_s
    killed: dict[int, psutil.Process] = {}
    while True:
        # Who stands still sees nobody die.
        signal_marked(signal.SIGSTOP, *marks)
        found = signal_marked(signal.SIGKILL, *marks)
        killed |= {process.pid: process for process in found}
        left = [process.pid for process in killed.values() if not _has_ended(process)]
        if not found and not left:
            return []
        if time.monotonic() > deadline:
            return left
        time.sleep(_POLL_INTERVAL_S)


def _has_ended(process: psutil.Process) -> bool:
    """Its environment is gone before its files are, and its first thread may be before the others."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def end_told(told: Mapping[str, Any]) -> None:
    """The undoer."""
    try:
        left = kill_all(told["mark"])
    except ValueError as error:
        raise CannotUndo(str(error)) from None
    if left:
        raise CannotUndo(f"processes {', '.join(map(str, left))} do not end when they are killed; end them by hand")
