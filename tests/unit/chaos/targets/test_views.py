"""What brokers say of queues, as a target tells it."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.targets import rabbitmq_console
from chaos.targets.target import QueueView
from chaos.targets.warren_operator import view_of_row

NUMBERS = {"n1": 1, "n2": 2, "n3": 3}
ROW: dict[str, Any] = {
    "name": "orders",
    "pid": "<n2.1.34.0>",
    "slave_pids": ["<n3.2.34.0>", "<n1.1.34.0>"],
    "synchronised_slave_pids": ["<n3.2.34.0>"],
    "messages_ready": 7,
    "messages_unacknowledged": 0,
    "state": "running",
}
SAID: dict[str, Any] = {
    "queue": "orders",
    "master": "n2@localhost",
    "incarnation": "g1g=",
    "mirrors": ["n3@localhost", "n1@localhost"],
    "synchronised": ["n1@localhost", "n3@localhost"],
    "ready": 7,
    "unacked": 0,
}


@pytest.mark.parametrize(
    ("said", "view"),
    [
        ({}, QueueView("orders", 2, (3, 1), (3,), 7, 0, incarnation="<n2.1.34.0>")),
        ({"state": "down"}, QueueView("orders", None, (3, 1), (3,), 7, 0)),
        ({"state": "elected"}, QueueView("orders", 2, (3, 1), (3,), 7, 0, incarnation="<n2.1.34.0>")),
        # The master does not answer: that is not the same as an empty queue.
        (
            {"messages_ready": None, "messages_unacknowledged": None},
            QueueView("orders", 2, (3, 1), (3,), incarnation="<n2.1.34.0>"),
        ),
        (
            {"slave_pids": [], "synchronised_slave_pids": []},
            QueueView("orders", 2, (), (), 7, 0, incarnation="<n2.1.34.0>"),
        ),
    ],
)
def test_a_row_of_warren(said: dict[str, Any], view: QueueView) -> None:
    assert view_of_row(ROW | said, NUMBERS) == view


@pytest.mark.parametrize(
    ("said", "view"),
    [
        # Synchronised ones come in any order, and are told the oldest first.
        ({}, QueueView("orders", 2, (3, 1), (3, 1), 7, 0, incarnation="g1g=")),
        ({"master": None, "ready": None, "unacked": None}, QueueView("orders", None, (3, 1), (3, 1))),
        ({"mirrors": [], "synchronised": []}, QueueView("orders", 2, (), (), 7, 0, incarnation="g1g=")),
    ],
)
def test_a_word_of_rabbitmq(said: dict[str, Any], view: QueueView) -> None:
    numbers = {f"{name}@localhost": number for name, number in NUMBERS.items()}
    assert rabbitmq_console.view_of(SAID | said, numbers) == view
