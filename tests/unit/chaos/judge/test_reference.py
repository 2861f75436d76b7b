"""Hand-written records, of a few rows each, and what the definitions of `chaos.judge` make of them."""

from __future__ import annotations

import pytest

from chaos.judge.findings import Name, QueueFacts, RunFacts
from chaos.judge.reference import Reference
from chaos.record.kinds import Flag, Kind
from chaos.record.message_key import MessageKey
from chaos.record.schema import Event

PUBLISHER, CONSUMER, BROKER = 1, 2, 3
MESSAGE = MessageKey(queue=1, publisher=1, sequence=1, attempt=1).pack()
Row = tuple[int, Kind, int, int]


def names(*rows: Row, may_remove: bool = False) -> list[Name]:
    """Findings of rows (process, kind, tag, flags), one millisecond apart, that are all about one message."""
    numbers = {PUBLISHER: 0, CONSUMER: 0, BROKER: 0}
    events = []
    ends = [(process, Kind.PROCESS_END, 0, 0) for process in numbers]
    for moment, (process, kind, tag, flags) in enumerate([*rows, *ends]):
        numbers[process] += 1
        is_about_queue = kind in (Kind.PROMOTED, Kind.PROCESS_END)
        events.append(
            Event(
                process,
                numbers[process],
                kind,
                t_lo_us=moment * 1_000,
                t_hi_us=moment * 1_000,
                message=0 if is_about_queue else MESSAGE,
                queue=1 if kind is Kind.PROMOTED else 0,
                channel=process,
                tag=tag,
                flags=flags,
            )
        )
    processes = {process: frozenset({1} if process == PUBLISHER else ()) for process in numbers}
    facts = RunFacts(processes, [QueueFacts(may_remove=may_remove)], slack_us=100)
    return [finding.name for finding in Reference(events, facts).findings()]


PUBLISHED = ((PUBLISHER, Kind.PUBLISH, 1, 0), (PUBLISHER, Kind.CONFIRM, 1, 0))
DELIVERED = (CONSUMER, Kind.DELIVER, 1, 0)
ACKED = (CONSUMER, Kind.ACK, 1, 0)
AGAIN = (CONSUMER, Kind.DELIVER, 2, int(Flag.REDELIVERED))
AGAIN_ACKED = (CONSUMER, Kind.ACK, 2, 0)
AGAIN_PROVEN = (CONSUMER, Kind.ACK_PROVEN, 2, 0)
SETTLED = (BROKER, Kind.SETTLED, 0, 0)
PROMOTED = (BROKER, Kind.PROMOTED, 0, 0)


def test_what_is_confirmed_and_never_delivered_is_lost() -> None:
    assert names(*PUBLISHED) == [Name.LOST]
    assert names(*PUBLISHED, may_remove=True) == [Name.REMOVED_UNPROVEN]


@pytest.mark.parametrize("may_remove", [False, True])
def test_what_was_returned_was_in_no_queue(may_remove: bool) -> None:
    """A confirm follows a return: it says that the message was dealt with, not that it was taken."""
    published, confirmed = PUBLISHED
    assert names(published, (PUBLISHER, Kind.RETURN, 1, 0), confirmed, may_remove=may_remove) == []


def test_without_acknowledgements_delivered_is_settled() -> None:
    delivered = (CONSUMER, Kind.DELIVER, 1, int(Flag.NO_ACK))
    assert names(*PUBLISHED, delivered, AGAIN, AGAIN_ACKED, AGAIN_PROVEN) == [Name.RESURRECTED]
    assert names(*PUBLISHED, delivered, PROMOTED, AGAIN, AGAIN_ACKED, AGAIN_PROVEN) == [Name.AFTER_ACK]


def test_the_word_of_the_broker_proves_an_acknowledgement() -> None:
    again = (AGAIN, AGAIN_ACKED, AGAIN_PROVEN)
    assert names(*PUBLISHED, DELIVERED, ACKED, *again) == [Name.SPONTANEOUS]
    assert names(*PUBLISHED, DELIVERED, ACKED, SETTLED, *again) == [Name.RESURRECTED]
    assert names(*PUBLISHED, DELIVERED, ACKED, SETTLED, PROMOTED, *again) == [Name.AFTER_ACK]


def test_what_the_broker_settled_is_not_what_is_acknowledged_later() -> None:
    """Only what was settled before a repeat resurrects: here the first delivery is acknowledged behind it."""
    assert names(*PUBLISHED, DELIVERED, SETTLED, AGAIN, AGAIN_ACKED, ACKED) == [Name.DOUBLE_OWNER]
