"""All that the laboratory knows how to undo, on this machine and on clusters that others use."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.harm.journal import Undoer
from chaos.harm.undoers import UNDOERS
from chaos.targets import guest

EVERY_UNDOER: Mapping[str, Undoer] = {**UNDOERS, guest.HOW: guest.clear_told}
