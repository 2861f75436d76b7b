"""Everything that was recorded of one message, in words."""

from __future__ import annotations

import json

import pytest

from chaos.conduct.sheet import QueueEntry, RosterEntry, Sheet
from chaos.judge.findings import Finding, Name
from chaos.record.kinds import Flag, Heir, Kind, Stray
from chaos.record.message_key import MessageKey
from chaos.record.schema import Event
from chaos.report.model import Actor
from chaos.report.stories import ABOUT_ALL, ABOUT_QUEUE, AROUND_US, DEEDS_MAX, WORDS, story

KEY = MessageKey(1, 4, 21, 1).pack()
AGAIN = MessageKey(1, 4, 21, 2).pack()
OTHER = MessageKey(1, 4, 22, 1).pack()
SHEET = Sheet(
    "r", "K01", "t", "h", "local", 1, "now",
    nodes=[{"number": 2, "name": "rabbit@b"}],
    queues=[QueueEntry("orders", False)],
    roster=[RosterEntry(1, "conductor"), RosterEntry(2, "publisher", [4]), RosterEntry(3, "consumer")],
)  # fmt: skip
KILL = json.dumps({"type": "kill", "nodes": [1, 2], "lines": []})
CUT = json.dumps({"type": "cut", "nodes": [], "lines": [[0, 1], [2, 3]]})


def told(*events: Event, findings: tuple[Finding, ...] = ()) -> list[tuple[str, str]]:
    return [(deed.who, deed.text) for deed in story(KEY, events, findings, SHEET).deeds]


def test_who_did_what_in_the_order_of_time() -> None:
    events = [
        Event(3, 1, Kind.DELIVER, 60, 60, KEY, channel=9, tag=5, flags=Flag.REDELIVERED),
        Event(2, 1, Kind.PUBLISH, 10, 10, KEY, tag=7, number=3_000),
        Event(1, 2, Kind.PROMOTED, 40, 55, queue=1, node=2, epoch=3, number=Heir.OLDEST_SYNCHRONISED),
        Event(1, 1, Kind.FAULT_BEGIN, 30, 31, fault=1, detail=KILL),
        Event(2, 2, Kind.CONFIRM, 20, 20, KEY, tag=7),
        Event(2, 3, Kind.CONFIRM, 21, 21, OTHER, tag=8),
    ]
    assert told(*events) == [
        ("publisher 2", "publishes it (attempt 1, tag 7, 3 ms late)"),
        ("publisher 2", "hears that it was taken"),
        ("conductor", "fault 1: kill of n1, n2"),
        ("rabbit@b", "becomes master, epoch 3, the oldest that had everything"),
        ("consumer 3", "gets it (tag 5), flagged as redelivered"),
    ]


def test_all_attempts_are_one_story() -> None:
    assert told(Event(2, 1, Kind.UNRESOLVED, 1, 2, KEY), Event(2, 2, Kind.PUBLISH, 3, 3, AGAIN, tag=1)) == [
        ("publisher 2", "loses its channel before an answer"),
        ("publisher 2", "publishes it (attempt 2, tag 1)"),
    ]


def test_what_happened_to_other_queues_or_long_before_is_another_story() -> None:
    publish = Event(2, 1, Kind.PUBLISH, 10**9, 10**9, KEY, tag=1)
    near, far = 10**9 - AROUND_US, 10**9 - AROUND_US - 1
    events = [
        Event(1, 1, Kind.PROMOTED, far, far, queue=1, node=2, epoch=2),
        Event(1, 2, Kind.PROMOTED, near, near, queue=2, node=2, epoch=2),
        Event(1, 3, Kind.PROMOTED, near, near, queue=1, node=2, epoch=3),
        Event(1, 4, Kind.DEPTH, 10**9, 10**9, queue=1, number=5),
        publish,
    ]
    assert [text for _, text in told(*events)] == ["becomes master, epoch 3", "publishes it (attempt 1, tag 1)"]


def test_the_row_of_a_finding_is_marked() -> None:
    rows = [Event(2, 1, Kind.PUBLISH, 1, 1, KEY), Event(2, 2, Kind.CONFIRM, 2, 2, KEY)]
    made = story(KEY, rows, [Finding(Name.LOST, KEY, 2, 1), Finding(Name.COPIES, AGAIN, 2, 9)], SHEET)
    assert [deed.is_finding for deed in made.deeds] == [True, False]
    assert made.findings == [Name.COPIES, Name.LOST]
    assert made.title == "message 21 of publisher 4, queue orders"


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    rows = [Event(3, number, Kind.DELIVER, number, number, KEY, tag=number) for number in range(1, 1001)]
    deeds = story(KEY, rows, [], SHEET).deeds
    assert len(deeds) == DEEDS_MAX + 1
    assert [deeds[0].text, deeds[DEEDS_MAX // 2].text, deeds[-1].text] == [
        "gets it (tag 1)",
        f"{1000 - DEEDS_MAX} more",
        "gets it (tag 1000)",
    ]


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind <= Kind.LEFT or 64 <= kind <= 73])
def test_everything_that_can_be_recorded_of_a_message_can_be_told(kind: Kind) -> None:
    assert WORDS[kind](Event(1, 1, kind, 1, 1, KEY, number=1, epoch=1, tag=1))


def test_everything_that_is_told_of_queues_can_be_told() -> None:
    assert WORDS.keys() >= ABOUT_QUEUE | ABOUT_ALL


@pytest.mark.parametrize("stray", list(Stray))
@pytest.mark.parametrize("heir", list(Heir))
def test_numbers_of_rows_are_told(stray: Stray, heir: Heir) -> None:
    assert WORDS[Kind.STRAY](Event(1, 1, Kind.STRAY, 1, 1, number=stray))
    assert WORDS[Kind.PROMOTED](Event(1, 1, Kind.PROMOTED, 1, 1, number=heir)).startswith("becomes master")


def test_a_fault_of_lines() -> None:
    assert told(Event(1, 1, Kind.FAULT_BEGIN, 1, 1, fault=3, detail=CUT), Event(2, 1, Kind.PUBLISH, 2, 2, KEY))[0] == (
        "conductor",
        "fault 3: cut of clients to n1, n2 to n3",
    )


def test_who_is_not_in_the_roster_is_told_all_the_same() -> None:
    made = story(KEY, [Event(77, 1, Kind.DELIVER, 1, 1, KEY)], [], SHEET)
    assert [(deed.actor, deed.who) for deed in made.deeds] == [(Actor.CONSUMER, "process 77")]
