"""The first line of a kind, then a count."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from node.throttled_log import KINDS_MAX, ThrottledLog, kind_of


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
        minutes.log.write(f"n{number}", f"line {number}")
    minutes.log.check_invariants()
    assert len(caplog.messages) == KINDS_MAX + 1


def test_what_differs_only_in_a_number_is_the_same_again(caplog: pytest.LogCaptureFixture) -> None:
    minutes = Minutes()
    for number in range(100):
        text = f"refused n2: link {number} is older than the present one"
        minutes.log.write(text, text)
    assert caplog.messages == ["refused n2: link 0 is older than the present one"]
    minutes.end()
    assert caplog.messages[1:] == [
        "99 more like this in the last minute: refused n2: link 0 is older than the present one"
    ]


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (
            "it was started 2 times, and its directory knows of 1",
            "it was started 14 times, and its directory knows of 9",
            True,
        ),
        ("it has applied 7.", "it has applied 8.", True),
        ("proposal X(queue_id=7, as_of_index=80)", "proposal X(queue_id=7, as_of_index=81)", True),
        ("proposal X(queue_id=7, as_of_index=80)", "proposal X(queue_id=8, as_of_index=80)", False),
        ("n2 is no member", "n3 is no member", False),
        ("no link to node-2", "no link to node-3", False),
        ("login 10.0.0.1 refused", "login 10.0.0.2 refused", False),
        ("login fe80::1:2 refused", "login fe80::1:3 refused", False),
        ("127.0.0.1:5672 is silent", "127.0.0.1:5673 is silent", False),
    ],
)
def test_names_and_addresses_are_no_numbers(one: str, other: str, is_same: bool) -> None:
    assert (kind_of(one) == kind_of(other)) is is_same
