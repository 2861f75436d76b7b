"""Commands of a shell that hurt and heal what is not ours, and what the journal knows of them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

from chaos.harm.journal import CannotUndo

#: By which the journal knows `run_told`.
HOW = "command"
#: For a command to do its work.
TIMEOUT_S = 120.0
#: Of what a command said.
SAID_CHARS = 500


class CommandFailed(Exception):
    """It did not end with 0, or not in time; the text has the command and the end of what it said."""


def run(command: str, timeout_s: float = TIMEOUT_S) -> None:
    """Blocks. Raises `CommandFailed`; variables in the command are shown by their names, as they were written."""
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{command!r} did not end within {timeout_s:g} s") from None
    if done.returncode != 0:
        said = done.stdout.strip()[-SAID_CHARS:]
        raise CommandFailed(f"{command!r} ended with {done.returncode}{': ' if said else ''}{said}")


def run_told(told: Mapping[str, Any]) -> None:
    """The undoer."""
    try:
        run(told["command"])
    except CommandFailed as error:
        raise CannotUndo(str(error)) from None
