"""How long an attempt to log in waits."""

from __future__ import annotations

import random

import pytest

from node.amqp.connection import HANDSHAKE_TIMEOUT_S, ConnectionLimits
from node.amqp.login_throttle import (
    ADDRESSES_MAX,
    DELAY_MAX_S,
    FAILURES_FREE,
    FORGET_AFTER_S,
    LoginThrottle,
)
from node.amqp.server import AmqpServer, AmqpServerConfig
from tests.support.memory_ports import MemoryPorts
from tests.support.observed_broker import ObservedBroker


def test_the_first_failures_are_free_and_each_further_one_costs_more() -> None:
    throttle = LoginThrottle(HANDSHAKE_TIMEOUT_S)
    delays = []
    for _ in range(FAILURES_FREE + 40):
        delays.append(throttle.delay_s("a", 1.0))
        throttle.failed("a", 1.0)
        throttle.check_invariants()
    assert delays[:FAILURES_FREE] == [0.0] * FAILURES_FREE
    assert delays == sorted(delays)
    assert 0 < delays[FAILURES_FREE] < delays[FAILURES_FREE + 1] < delays[-1] == DELAY_MAX_S
    assert throttle.delay_s("b", 1.0) == 0.0, "another address is none of this"


@pytest.mark.parametrize(
    ("handshake_timeout_s", "longest_s"), [(0.1, 0.05), (2.0, 1.0), (10.0, DELAY_MAX_S), (600.0, DELAY_MAX_S)]
)
async def test_who_waits_is_looked_at_before_its_handshake_is_cut(
    broker: ObservedBroker, handshake_timeout_s: float, longest_s: float
) -> None:
    """However short it is configured to be."""
    config = AmqpServerConfig(limits=ConnectionLimits(handshake_timeout_s=handshake_timeout_s))
    server = AmqpServer(broker, config, listen=MemoryPorts(), chance=random.Random(1), clock=lambda: 0.0)
    for _ in range(100):
        server.logins.failed("a", 1.0)
    assert server.logins.delay_s("a", 1.0) == longest_s < handshake_timeout_s


def test_a_while_without_a_failure_and_all_is_forgotten() -> None:
    throttle = LoginThrottle(HANDSHAKE_TIMEOUT_S)
    for _ in range(2 * FAILURES_FREE):
        throttle.failed("a", 1.0)
    assert throttle.delay_s("a", FORGET_AFTER_S) > 0
    assert throttle.delay_s("a", 1.0 + FORGET_AFTER_S) == 0.0
    throttle.failed("a", 1.0 + FORGET_AFTER_S)
    assert throttle.delay_s("a", 1.0 + FORGET_AFTER_S) == 0.0


def test_many_addresses_are_not_all_remembered() -> None:
    throttle = LoginThrottle(HANDSHAKE_TIMEOUT_S)
    for _ in range(FAILURES_FREE):
        throttle.failed("first", 0.0)
        throttle.failed("second", 0.0)
    for number in range(ADDRESSES_MAX - 1):
        throttle.failed(str(number), 1.0)
    throttle.check_invariants()
    assert throttle.delay_s("first", 2.0) == 0.0
    assert throttle.delay_s("second", 2.0) > 0.0
