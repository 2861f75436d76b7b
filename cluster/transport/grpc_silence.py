"""How a gRPC connection finds out that nobody is at its other end any more, though nobody has hung up."""

from __future__ import annotations


def silence_options(silence_timeout_ms: int) -> list[tuple[str, int]]:
    """Of a channel or server. A ping after a third of the timeout, and the rest of it to wait for the answer."""
    ping_after_ms = max(1, silence_timeout_ms // 3)
    answer_within_ms = max(1, silence_timeout_ms - silence_timeout_ms // 3)
    return [
        ("grpc.keepalive_time_ms", ping_after_ms),
        ("grpc.keepalive_timeout_ms", answer_within_ms),
        ("grpc.http2.ping_timeout_ms", answer_within_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]
