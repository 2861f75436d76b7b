"""How many clients are let in, by the descriptors that there are."""

from __future__ import annotations

import pytest

from node.amqp.server.bounds import ARRIVING_MAX, CONNECTIONS_MAX, HANDSHAKES_MAX, client_bounds

SAMPLES = (1, 64, 256, 512, 1024, 4096, 65_536, 100_000, 1 << 20, 1 << 62)


@pytest.mark.parametrize(
    ("open_files_max", "connections", "handshakes"),
    [
        (256, 32, 16),
        (512, 64, 32),
        (1024, 256, 128),
        (4096, 1792, 896),
        (65_536, 32_512, HANDSHAKES_MAX),
        (2 * (CONNECTIONS_MAX + ARRIVING_MAX), CONNECTIONS_MAX, HANDSHAKES_MAX),
        (1 << 62, CONNECTIONS_MAX, HANDSHAKES_MAX),
    ],
)
def test_clients_get_less_than_half_of_the_descriptors(open_files_max: int, connections: int, handshakes: int) -> None:
    bounds = client_bounds(open_files_max)
    assert (bounds.connections, bounds.handshakes) == (connections, handshakes)


@pytest.mark.parametrize("open_files_max", SAMPLES)
def test_strangers_never_take_all_places_and_somebody_is_always_let_in(open_files_max: int) -> None:
    bounds = client_bounds(open_files_max)
    assert 1 <= bounds.handshakes <= max(1, bounds.connections // 2)
    assert bounds.connections <= CONNECTIONS_MAX


def test_who_can_serve_fewer_clients_than_usual_says_what_is_to_be_raised_and_how_far() -> None:
    shortage = client_bounds(1024).shortage
    assert "at most 256 client connections are let in, not 50000" in shortage
    assert "may have 1024 files open" in shortage
    assert "768 of them are kept for the files of this node and for its peers" in shortage
    assert "to 100512 (`ulimit -Hn`, LimitNOFILE of systemd)" in shortage
    assert client_bounds(100_511).shortage
    assert not client_bounds(100_512).shortage
