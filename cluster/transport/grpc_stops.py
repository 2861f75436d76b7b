"""How gRPC calls it that a server stops under a call, which to an operator is a node that stops or begins again."""

from __future__ import annotations

_STOPS = ("Internal error from Core", "Cancelling all calls", "CANCELLED")


def is_stop(details: str | None) -> bool:
    """Whether that is what the server at the other end has done."""
    return details in _STOPS
