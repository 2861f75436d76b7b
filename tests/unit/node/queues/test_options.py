"""What an argument and a policy ask of a queue together."""

from __future__ import annotations

from typing import Any

import pytest

from node.queues.options import queue_options


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
