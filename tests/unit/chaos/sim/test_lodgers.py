"""Users and vhosts that are deleted while somebody is connected, and what is said of those who stay."""

from __future__ import annotations

import pytest

from chaos.sim.ablation.catalogue import SAFEGUARDS
from chaos.sim.lodgers import CLOSED_WITHIN_S
from chaos.sim.run import run_schedule
from chaos.sim.schedule import LODGINGS, OF_BOTH, OF_USER, OF_VHOST, Schedule
from tests.support.simulated import publish, schedule


def lodging(what: str, *steps: tuple[object, ...]) -> Schedule:
    """Through the second node."""
    return schedule(publish(100), (200, "lodging", 0, 300, what, 1), *steps, quiet_ms=40_000)


@pytest.mark.parametrize("what", LODGINGS)
def test_who_is_connected_to_what_is_deleted_is_sent_away_at_once(what: str) -> None:
    outcome = run_schedule(lodging(what))
    assert outcome.violations == []
    assert outcome.length_s < CLOSED_WITHIN_S, "nobody has waited for a connection to end"


@pytest.mark.parametrize("what", LODGINGS)
def test_a_node_that_is_away_when_something_is_deleted_sends_its_clients_away_later(what: str) -> None:
    away = lodging(what, (900, "isolate", "n2"), (2_500, "isolate_end", "n2"))
    assert run_schedule(away).violations == []


@pytest.mark.parametrize(
    ("safeguard", "what", "found"),
    [
        ("deleted_users_stay", OF_USER, ["access"]),
        ("deleted_users_stay", OF_VHOST, []),
        ("deleted_users_stay", OF_BOTH, []),  # which the vhost sees to
        ("clients_of_deleted_vhosts_stay", OF_VHOST, ["access"]),
        ("clients_of_deleted_vhosts_stay", OF_USER, []),
    ],
)
def test_who_stays_is_found(safeguard: str, what: str, found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    SAFEGUARDS[safeguard].take_away(monkeypatch)
    assert [violation.kind for violation in run_schedule(lodging(what)).violations] == found
