"""The first line of a kind, then a count."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from node.throttled_log import KINDS_MAX, ThrottledLog


class Minutes:
    """They end when the test says so."""

    def __init__(self) -> None:
        self.ends: list[Callable[[], None]] = []
        self.log = ThrottledLog(logging.getLogger("test"), lambda _delay_s, call: self.ends.append(call))

    def end(self) -> None:
        calls, self.ends[:] = self.ends[:], []
        for call in calls:
            call()
        self.log.check_invariants()


def test_what_comes_again_is_counted_and_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    minutes = Minutes()
    for number in range(1000):
        minutes.log.write("wrong cookie", f"request {number} refused: wrong cookie")
    minutes.log.write("no cookie", "request refused: no cookie")
    assert caplog.messages == ["request 0 refused: wrong cookie", "request refused: no cookie"]
    minutes.end()
    assert caplog.messages[2:] == ["999 more like this in the last minute: request 0 refused: wrong cookie"]
    minutes.log.write("wrong cookie", "counted again")
    minutes.end()
    assert caplog.messages[3:] == ["1 more like this in the last minute: request 0 refused: wrong cookie"]
    minutes.end()
    assert not minutes.ends, "nothing came, nothing is remembered"
    minutes.log.write("wrong cookie", "the first of another outage")
    assert caplog.messages[4:] == ["the first of another outage"]


def test_kinds_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    minutes = Minutes()
    for number in range(3 * KINDS_MAX):
        minutes.log.write(str(number), f"line {number}")
    minutes.log.check_invariants()
    assert len(caplog.messages) == KINDS_MAX + 1
