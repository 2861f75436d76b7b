"""A record as a history of Jepsen."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from chaos.record.kinds import Kind
from chaos.record.message_key import MessageKey
from chaos.record.schema import Event
from chaos.suite.jepsen import history

ONE, TWO, THREE = (MessageKey(1, 1, number, 1).pack() for number in (1, 2, 3))
_LINE = re.compile(r"\{:index (\d+), :type (\S+), :f (\S+), :value (.+), :process (\d+), :time (\d+)\}")


def read(*events: Event) -> list[tuple[str, str, str, int, int]]:
    """Type, function, value, process and time in microseconds of each line."""
    found = []
    for number, line in enumerate(history(events)):
        match = _LINE.fullmatch(line)
        assert match is not None, line
        assert int(match[1]) == number
        found.append((match[2], match[3], match[4], int(match[5]), int(match[6]) // 1000))
    return found


def event(kind: Kind, at_us: int, message: int) -> Event:
    return Event(1, 1, kind, at_us, at_us, message)


@pytest.mark.parametrize(
    ("kind", "ending"),
    [(Kind.CONFIRM, ":ok"), (Kind.REFUSE, ":fail"), (Kind.RETURN, ":fail"), (Kind.UNRESOLVED, ":info")],
)
def test_an_attempt_ends_as_its_answer_says(kind: Kind, ending: str) -> None:
    assert read(event(Kind.PUBLISH, 100, ONE), event(kind, 130, ONE))[:2] == [
        (":invoke", ":enqueue", str(ONE), 0, 0),
        (ending, ":enqueue", str(ONE), 0, 30),
    ]


def test_a_return_counts_and_the_confirm_behind_it_does_not() -> None:
    told = read(event(Kind.PUBLISH, 1, ONE), event(Kind.RETURN, 2, ONE), event(Kind.CONFIRM, 2, ONE))
    assert [line[0] for line in told] == [":invoke", ":fail", ":invoke", ":ok"]


def test_a_process_does_one_thing_at_a_time_and_none_behind_what_it_does_not_know() -> None:
    told = read(
        event(Kind.PUBLISH, 1, ONE),
        event(Kind.PUBLISH, 2, TWO),
        event(Kind.UNRESOLVED, 3, ONE),
        event(Kind.CONFIRM, 4, TWO),
        event(Kind.DELIVER, 5, TWO),
        event(Kind.PUBLISH, 6, THREE),
    )
    assert [line[3] for line in told[:7]] == [0, 1, 0, 1, 1, 1, 1]
    busy: set[int] = set()
    for kind, _, _, process, _ in told:
        assert (process in busy) == (kind != ":invoke")
        busy ^= {process}


def test_each_delivery_is_an_operation_and_what_was_left_is_drained() -> None:
    told = read(
        event(Kind.DELIVER, 1, ONE), event(Kind.DELIVER, 2, ONE), event(Kind.LEFT, 3, TWO), event(Kind.DELIVER, 4, 0)
    )
    assert Counter((line[0], line[1]) for line in told) == {
        (":invoke", ":dequeue"): 2, (":ok", ":dequeue"): 2, (":invoke", ":drain"): 1, (":ok", ":drain"): 1,
    }  # fmt: skip
    assert told[-1][2] == f"[{TWO}]"


def test_what_was_never_answered_is_not_known() -> None:
    assert read(event(Kind.PUBLISH, 1, ONE))[1][:3] == (":info", ":enqueue", str(ONE))


def test_time_never_goes_back() -> None:
    told = read(event(Kind.PUBLISH, 10, ONE), event(Kind.PUBLISH, 5, TWO), event(Kind.CONFIRM, 20, ONE))
    times = [line[4] for line in told]
    assert times == sorted(times)
