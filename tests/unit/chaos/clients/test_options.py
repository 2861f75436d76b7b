"""Orders: they come out as they went in, and what is not valid is told without showing it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chaos.clients.options import ConsumerOptions, Endpoint, Orders, PublisherOptions, QueueTarget, Role

QUEUES = (QueueTarget(1, "a"), QueueTarget(2, "b", routing_key="to.b"))
ENDPOINTS = (
    Endpoint(1, "n1", "amqp://user:secr%2Ft@127.0.0.1:5672/%2F"),
    Endpoint(2, "n2", "amqp://user:secr%2Ft@127.0.0.1:5673/%2F"),
)
PUBLISHER = Orders(
    Role.PUBLISHER, 3, "run", Path("/runs/1"), 17, ENDPOINTS, publisher=PublisherOptions(5, QUEUES, rate_per_s=10.5)
)
CONSUMER = Orders(Role.CONSUMER, 4, "run", Path("/runs/1"), 17, ENDPOINTS, consumer=ConsumerOptions(QUEUES, hold_ms=5))


@pytest.mark.parametrize("orders", [PUBLISHER, CONSUMER], ids=lambda orders: orders.role.value)
def test_orders_travel_as_one_line(orders: Orders) -> None:
    line = orders.to_json()
    assert "\n" not in line
    assert Orders.from_json(line) == orders


def test_a_password_is_not_shown_and_can_be_taken_out_of_words() -> None:
    assert "secr" not in repr(PUBLISHER)
    words = "no answer from amqp://user:secr%2Ft@127.0.0.1:5673/%2F, secr/t or secr%2Ft"
    assert PUBLISHER.scrub(words) == "no answer from amqp://user:***@127.0.0.1:5673/%2F, *** or ***"


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("publisher", 0),
        ("publisher", 4096),
        ("queues", ()),
        ("queues", (QueueTarget(0, "a"),)),
        ("queues", (QueueTarget(1, "a"), QueueTarget(1, "b"))),
        ("rate_per_s", -1),
        ("window", 0),
        ("window", 32_769),
        ("body_bytes", 23),
        ("attempts_max", 256),
    ],
)
def test_what_a_publisher_cannot_do_is_refused(options: str, value: Any) -> None:
    assert PUBLISHER.publisher is not None
    with pytest.raises(ValueError, match=f"not valid: {options}"):
        replace(PUBLISHER.publisher, **{options: value}).check()


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ("consumers", 0),
        ("prefetch", 0),
        ("group", 201),
        ("hold_ms", -1),
        ("requeue_share", 1.0),
        ("requeue_share", -0.1),
    ],
)
def test_what_a_consumer_cannot_do_is_refused(options: str, value: Any) -> None:
    assert CONSUMER.consumer is not None
    with pytest.raises(ValueError, match=f"not valid: {options}"):
        replace(CONSUMER.consumer, **{options: value}).check()


def test_a_process_has_the_options_of_its_role_and_no_others() -> None:
    for wrong in (replace(PUBLISHER, publisher=None), replace(PUBLISHER, consumer=CONSUMER.consumer)):
        with pytest.raises(ValueError, match="exactly the options of the role"):
            wrong.check()


def changed(path: str, value: Any) -> str:
    values = json.loads(PUBLISHER.to_json())
    place = values
    *outer, last = path.split(".")
    for name in outer:
        place = place[int(name) if isinstance(place, list) else name]
    place[last] = value
    return json.dumps(values)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "Orders is not an object"),
        ("{}", "Orders lacks something"),
        (changed("publisher.speed", 1), "PublisherOptions has no speed"),
        (changed("publisher.window", "secret"), "wrong type"),
        (changed("endpoints.0.password", "secret"), "Endpoint has no password"),
        (changed("role", "secret"), "not valid: role"),
        (changed("process", 0), "not valid: process"),
    ],
)
def test_orders_that_are_wrong_are_refused_without_showing_them(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        Orders.from_json(line)
    assert "secr" not in str(refusal.value)
