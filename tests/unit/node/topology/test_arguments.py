"""Which values of arguments are refused at a declaration."""

from __future__ import annotations

from typing import Any

import pytest

from node.amqp.values import Timestamp
from node.errors import ChannelError
from node.topology.arguments import (
    check_consumer_arguments,
    check_exchange_arguments,
    check_headers_binding,
    check_queue_arguments,
)


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-version": 1.0},
        {"x-queue-version": True},
        {"x-max-length": Timestamp(5)},
        {"x-max-length": "5"},
        {"x-expires": 10**5000},
        {"x-overflow": ["drop-head"]},
        {"x-overflow": [10**5000]},
        {"x-queue-master-locator": {"random": True}},
        {"x-dead-letter-exchange": b"\xff"},
    ],
)
def test_a_value_of_another_type_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ChannelError, match="invalid arg"):
        check_queue_arguments("/", "q", arguments)


def test_names_that_mean_nothing_may_have_any_value() -> None:
    check_queue_arguments("/", "q", {"max-length": "x", "x-colour": [1], "alternate-exchange": 5})
    check_exchange_arguments("/", "x", {"x-alternate-exchange": 5, "x-max-length": "x"})


def test_the_alternate_exchange_is_a_name() -> None:
    with pytest.raises(ChannelError, match="invalid arg 'alternate-exchange'"):
        check_exchange_arguments("/", "x", {"alternate-exchange": ["a"]})


def test_an_unknown_kind_of_match_is_refused_whatever_its_type() -> None:
    kinds: list[Any] = [[], {}, 10**5000, None]
    for kind in kinds:
        with pytest.raises(ChannelError, match="x-match"):
            check_headers_binding({"x-match": kind})


def test_a_consumer_of_a_stream_is_told_that_this_is_none() -> None:
    with pytest.raises(
        ChannelError, match="invalid arg 'x-stream-offset' for consumer 't': not an argument of a classic"
    ):
        check_consumer_arguments("consumer 't'", {"x-stream-offset": "first"})
