"""What is wrong with bytes that a peer sent."""

from __future__ import annotations

from node.errors import WarrenError


class WireError(WarrenError):
    """A peer sent bytes that are no frame of ours: another version, or damage."""
