"""What waiting for a cluster of processes says."""

from __future__ import annotations

#: Long enough for three interpreters to start on a busy two-core machine and to elect a leader.
DEFAULT_READY_TIMEOUT_S = 60.0


class NodeEndedError(Exception):
    """A node ended while it was starting; the text shows the end of its log."""
