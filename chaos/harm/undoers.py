"""All that the laboratory knows how to undo."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.harm import commands, marked, small_disks
from chaos.harm.journal import Undoer

UNDOERS: Mapping[str, Undoer] = {
    commands.HOW: commands.run_told,
    marked.HOW: marked.end_told,
    small_disks.HOW: small_disks.unmount_told,
}
