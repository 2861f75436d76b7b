"""What an argument and a policy ask of a queue together."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from node.amqp.values import Timestamp
from node.queues.options import QueueOptions, exchange_settings, queue_options, queue_settings


@pytest.mark.parametrize(
    ("arguments", "policy", "is_lazy"),
    [
        ({}, {}, False),
        ({"x-queue-mode": "lazy"}, {}, True),
        ({}, {"queue-mode": "lazy"}, True),
        ({"x-queue-mode": "lazy"}, {"queue-mode": "default"}, False),
        ({"x-queue-mode": "default"}, {"queue-mode": "lazy"}, True),
    ],
)
def test_the_mode_of_the_policy_beats_that_of_the_argument(
    arguments: dict[str, Any], policy: dict[str, Any], is_lazy: bool
) -> None:
    assert queue_options(arguments, policy).is_lazy == is_lazy


def test_the_version_of_the_argument_beats_that_of_the_policy() -> None:
    assert queue_options({}, {}).index_version is None
    assert queue_options({}, {"queue-version": 1}).index_version == 1
    assert queue_options({"x-queue-version": 2}, {"queue-version": 1}).index_version == 2


def test_of_two_limits_the_smaller_counts() -> None:
    assert queue_options({"x-max-length": 10}, {"max-length": 5}).max_length == 5


# --- which names are arguments ---


def test_a_name_without_its_prefix_is_no_argument_of_a_queue() -> None:
    arguments = {"max-length": "x", "overflow": "reject-publish", "queue-mode": "lazy", "queue-version": 9}
    assert queue_options(arguments, {"max-length": 5}) == QueueOptions(max_length=5)
    assert queue_options({"max-length": 3}) == QueueOptions()


def test_an_argument_that_is_unknown_does_not_become_a_setting() -> None:
    assert queue_settings({"x-ha-mode": "all", "x-colour": "red", "ha-mode": "all"}, {"max-length": 5}) == {
        "max-length": 5
    }


def test_an_exchange_has_one_argument_and_it_has_no_prefix() -> None:
    assert exchange_settings({"x-alternate-exchange": "secret"}, {}) == {}
    assert exchange_settings({"alternate-exchange": "a"}, {"alternate-exchange": "b"}) == {"alternate-exchange": "a"}
    assert exchange_settings({}, {"alternate-exchange": "b", "max-length": 5}) == {"alternate-exchange": "b"}
    assert exchange_settings({"alternate-exchange": 5}, {"alternate-exchange": "b"}) == {"alternate-exchange": "b"}


# --- what cannot be used ---

ODD_VALUES: list[Any] = [
    *(None, True, -1, 1.5, "x", "", b"\xff", [], [5], {}, {"a": 1}, float("nan"), 2**80, 10**5000, [10**5000]),
    *(Timestamp(5), Decimal("sNaN"), Decimal("Infinity"), datetime(2024, 5, 1, tzinfo=UTC), object()),
]
ARGUMENTS = (
    *("x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow", "x-queue-mode"),
    *("x-queue-version", "x-queue-master-locator", "x-single-active-consumer", "x-dead-letter-exchange"),
)
POLICY = {"max-length": 5, "max-length-bytes": 50, "overflow": "reject-publish", "queue-mode": "lazy"}


@pytest.mark.parametrize("value", ODD_VALUES, ids=range(len(ODD_VALUES)))
@pytest.mark.parametrize("name", ARGUMENTS)
def test_nothing_that_may_be_stored_makes_the_options_raise(name: str, value: Any) -> None:
    for policy in ({}, POLICY, {name.removeprefix("x-"): value}):
        for arguments in ({}, {name: value}, {name.removeprefix("x-"): value}):
            options = queue_options(arguments, policy)
            assert options.max_length is None or type(options.max_length) is int
            assert options.max_length_bytes is None or type(options.max_length_bytes) is int
            assert options.index_version in (None, 1, 2)
            assert type(options.single_active_consumer) is bool
            assert queue_settings(arguments, policy).get("queue-master-locator") in (None, "random")


def test_a_value_that_cannot_be_used_counts_as_absent() -> None:
    assert queue_options({"x-max-length": "x"}, {"max-length": 5}).max_length == 5
    assert queue_options({"x-max-length": 4}, {"max-length": "x"}).max_length == 4
    assert queue_options({"x-queue-version": 1.0}).index_version is None
    assert queue_options({"x-overflow": ["drop-head"]}, {"overflow": "reject-publish"}).rejects_overflow
