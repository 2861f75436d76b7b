"""A generated history shows nothing wrong, as much of what is legal as its generator says, and is one that a broker and
its clients could have made."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chaos.generator import History, Shape, write_history
from chaos.judge.findings import LEGAL, VIOLATIONS, Name
from chaos.judge.reference import Reference
from chaos.record.kinds import Flag, Kind
from chaos.record.message_key import unpack
from chaos.record.reading import event_files, read_events
from chaos.record.schema import SCHEMA, Event
from tests.support.amounts import slow
from tests.support.generated_histories import SMALL, events_of

SHAPES = {
    "some of everything": replace(SMALL, seed=1),
    "another seed": replace(SMALL, seed=2),
    "one consumer": replace(SMALL, seed=3, consumers=1, prefetch=4),
    "one by one": replace(SMALL, seed=4, prefetch=1, consumers=4),
    "many publishers": replace(SMALL, seed=5, publishers=5),
    "fast": replace(SMALL, seed=6, rate=100_000, messages=5_000, block_messages=5_000),
    "the broker tells": replace(SMALL, seed=7, tap=True),
}
FAST = ("some of everything", "one by one")
#: What is out of order, and excused, is not counted by the generator.
COUNTED = LEGAL - {Name.MISORDERED_EXCUSED, Name.OVERTAKEN_EXCUSED}
OF_DELIVERIES = (Kind.ACK, Kind.ACK_PROVEN, Kind.REQUEUE, Kind.DISCARD, Kind.RELEASE)


class Judged:
    """A history with what the reference says of it."""

    def __init__(self, shape: Shape) -> None:
        self.history = History(shape)
        self.events = list(events_of(self.history))
        self.reference = Reference(self.events, self.history.layout.facts())
        self.counts = Counter(finding.name for finding in self.reference.findings())
        self.by_process: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            self.by_process[event.process].append(event)

    def of(self, *kinds: Kind) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]


@pytest.fixture(
    scope="module",
    params=[shape if name in FAST else slow(shape) for name, shape in SHAPES.items()],
    ids=list(SHAPES),
)
def judged(request: pytest.FixtureRequest) -> Judged:
    return Judged(request.param)


def test_nothing_is_wrong(judged: Judged) -> None:
    assert not judged.reference.incomplete
    assert judged.reference.pairs_compared > 1_000
    assert {name: count for name, count in judged.counts.items() if name in VIOLATIONS} == {}


def test_what_is_legal_is_counted(judged: Judged) -> None:
    legal = judged.history.generated.legal
    assert {name: judged.counts[name] for name in COUNTED} == {name: legal[name] for name in COUNTED}


def test_everything_legal_occurs() -> None:
    history = History(SHAPES["some of everything"])
    assert len(list(events_of(history))) == history.generated.rows
    assert [name for name in sorted(COUNTED) if not history.generated.legal[name]] == []


def test_all_is_published_and_every_failover_happens(judged: Judged) -> None:
    shape = judged.history.layout.shape
    published = {event.message for event in judged.of(Kind.PUBLISH)}
    assert len({message >> 8 for message in published}) == shape.messages
    promoted = [event for event in judged.of(Kind.PROMOTED) if event.epoch > 1]
    assert len(promoted) == judged.history.generated.failovers == shape.failovers


def test_events_of_a_process_are_in_the_order_of_time(judged: Judged) -> None:
    assert judged.by_process.keys() == judged.history.layout.processes.keys()
    for events in judged.by_process.values():
        assert [event.event for event in events] == list(range(1, len(events) + 1))
        assert [event.t_hi_us for event in events] == sorted(event.t_hi_us for event in events)
        assert all(event.t_lo_us <= event.t_hi_us for event in events)


def test_tags_count_publishes_and_deliveries_of_a_channel(judged: Judged) -> None:
    for kind in (Kind.PUBLISH, Kind.DELIVER):
        tags: dict[int, list[int]] = defaultdict(list)
        for event in judged.of(kind):
            tags[event.channel].append(event.tag)
        assert tags
        assert all(each == list(range(1, len(each) + 1)) for each in tags.values())


def test_a_delivery_is_ended_behind_it_on_its_channel(judged: Judged) -> None:
    for events in judged.by_process.values():
        delivered: dict[tuple[int, int], int] = {}
        for event in events:
            if event.kind == Kind.DELIVER:
                delivered[event.channel, event.tag] = event.message
            elif event.kind in OF_DELIVERIES:
                assert delivered.get((event.channel, event.tag)) == event.message


def test_a_channel_is_used_while_it_is_open(judged: Judged) -> None:
    for events in judged.by_process.values():
        is_open: set[int] = set()
        for event in events:
            if event.kind == Kind.CHANNEL_OPEN:
                is_open.add(event.channel)
            elif event.channel:
                assert event.channel in is_open, event
            if event.kind == Kind.CHANNEL_OVER:
                is_open.remove(event.channel)
        assert not is_open


def test_what_a_lost_channel_held_is_released_with_it(judged: Judged) -> None:
    over = {event.channel: (event.t_lo_us, event.t_hi_us) for event in judged.of(Kind.CHANNEL_OVER)}
    released = judged.of(Kind.RELEASE)
    assert released or judged.history.layout.shape.prefetch == 1
    assert all((event.t_lo_us, event.t_hi_us) == over[event.channel] for event in released)


def test_a_dead_master_neither_confirms_nor_delivers(judged: Judged) -> None:
    faults = {event.fault: event for event in judged.of(Kind.FAULT_BEGIN)}
    ends = {event.fault: event for event in judged.of(Kind.FAULT_END)}
    promoted = [event for event in judged.of(Kind.PROMOTED) if event.epoch > 1]
    assert len(faults) == len(promoted)
    for fault, begun in faults.items():
        until_us = ends[fault].t_lo_us
        queue = json.loads(begun.detail)["queue"]
        assert [event for event in promoted if event.queue == queue and begun.t_hi_us < event.t_lo_us < until_us]
        heard = [
            event
            for event in judged.of(Kind.CONFIRM, Kind.REFUSE, Kind.DELIVER)
            if unpack(event.message).queue == queue and begun.t_hi_us < event.t_lo_us < until_us
        ]
        assert heard == []


def test_consumers_hold_no_more_than_their_prefetch_count() -> None:
    """Published faster than consumers acknowledge, so that they are full."""
    shape = replace(SMALL, seed=8, rate=100_000, requeued=0.0, failovers=0)
    held: Counter[int] = Counter()
    most = 0
    for event in events_of(History(shape)):
        if event.kind == Kind.DELIVER:
            held[event.channel] += 1
        elif event.kind in (Kind.ACK, Kind.DISCARD):
            held[event.channel] -= 1
        most = max(most, held[event.channel])
    assert most == shape.prefetch


def test_the_same_seed_makes_the_same_record() -> None:
    first, again, other = (list(events_of(History(replace(SMALL, seed=seed), plant=1))) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_record_is_written_as_processes_do(tmp_path: Path) -> None:
    history = History(replace(SMALL, tap=True))
    rows: list[int] = []
    write_history(history, tmp_path, "run", rows.append)
    files = event_files(tmp_path)
    assert all(pq.read_schema(path).remove_metadata().equals(SCHEMA) for path in files)
    assert {path.parent.name for path in files} == {"class=client", "class=broker", "class=control"}
    read = list(read_events(tmp_path))
    assert len(read) == sum(rows) == history.generated.rows
    assert sorted(read) == sorted(events_of(History(replace(SMALL, tap=True))))


def test_blocks_go_on_where_the_last_one_was() -> None:
    """Messages are the same in blocks of any size that every publisher has the same share of."""
    whole, parts = (
        {
            event.message
            for event in events_of(History(replace(SMALL, block_messages=size)))
            if event.kind == Kind.PUBLISH
        }
        for size in (SMALL.messages, 750)
    )
    first_attempts, again = ({key for key in keys if unpack(key).attempt == 1} for keys in (whole, parts))
    assert first_attempts == again
    assert len(again) == SMALL.messages


def test_confirms_cover_several() -> None:
    flags = Counter(
        bool(event.flags & Flag.MULTIPLE) for event in events_of(History(SMALL)) if event.kind == Kind.CONFIRM
    )
    assert min(flags[True], flags[False]) > 100


@pytest.mark.parametrize("wrong", [{"queues": 2}, {"messages": 0}, {"publishers": 2_000}, {"slack_us": 1}])
def test_a_shape_must_be_possible(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        replace(SMALL, **wrong)
