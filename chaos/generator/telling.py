"""The rows of one queue's block, from what was laid out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chaos.generator.delivering import SILENCE_US, Deliveries, Fate
from chaos.generator.publishing import RECONNECT_US, Outcome, Published
from chaos.generator.rows import Counters, Mask, Numbers, Rows
from chaos.generator.shape import NODES, Layout
from chaos.judge.findings import Name
from chaos.record.kinds import Ending, Flag, Heir, Kind

#: What takes less than the recorders' clock can tell, between the broker and a client.
NET_US = 100


@dataclass(slots=True)
class QueueState:
    """What a queue's blocks hand on."""

    queue: int
    #: By slot: the last number, and the channel.
    sequences: Numbers
    publisher_channels: Numbers
    consumer_channels: Numbers
    #: Of its master, from 1, whose node follows from it.
    epoch: int = 1
    #: Messages that it has taken.
    position: int = 0

    def master(self, epoch: npt.ArrayLike) -> Numbers:
        return (self.queue + np.asarray(epoch, np.int64)) % NODES + 1


@dataclass(slots=True)
class Told:
    """A block of a queue, and where its rows are."""

    published: Published
    deliveries: Deliveries
    #: By kind and the message's place in `published`: the place of its row, or -1. Deliveries and what ends them only
    #: where there is one delivery.
    places: dict[Kind, Numbers]
    #: The only delivery of a message, or -1.
    delivery: Numbers
    publisher_channel: Numbers
    consumer_channel: Numbers
    #: By delivery, and by publish.
    lines: Numbers
    publish_lines: Numbers


class Telling:
    """Tells of one queue's blocks."""

    def __init__(self, layout: Layout, state: QueueState, counters: Counters, rows: Rows) -> None:
        self._layout = layout
        self._state = state
        self._counters = counters
        self._rows = rows
        #: Moments at which another epoch began, in this block.
        self._promotions: list[int] = []
        #: Channels by consumer and chunk, in this block.
        self._chunks: Numbers = np.zeros((0, 0), np.int64)

    def open(self, at_us: int) -> None:
        """The first channels of everybody."""
        for slot in range(self._layout.shape.publishers):
            self._state.publisher_channels[slot] = self._open_publisher(slot, at_us)
        for slot in range(self._layout.shape.consumers):
            self._state.consumer_channels[slot] = self._open_consumer(slot, at_us)

    def tell(self, published: Published, deliveries: Deliveries) -> Told:
        """Everything of a block."""
        state = self._state
        self._promotions = [outage.ended_us for outage in published.outages]
        publisher_channel = self._publisher_channels(published)
        consumer_channel = self._consumer_channels(deliveries)
        told = Told(
            published,
            deliveries,
            {},
            _only(deliveries.entry, len(published)),
            publisher_channel,
            consumer_channel,
            self._rows.new_lines(len(deliveries)),
            self._rows.new_lines(len(published)),
        )
        self._publishes(told)
        self._deliveries(told)
        self._ends_of_channels(told)
        if self._layout.shape.tap:
            self._broker(told)
        state.epoch += len(published.outages)
        state.position += int(np.isin(published.outcome, _TAKEN).sum())
        return told

    # --- publishers

    def _open_publisher(self, slot: int, at_us: int) -> int:
        process = self._layout.publisher_process(self._state.queue, slot)
        channel = int(self._counters.new_channels(1)[0])
        self._rows.add(
            Kind.CHANNEL_OPEN, process, at_us, channel=channel, node=process % NODES + 1, number=RECONNECT_US // 4
        )
        return channel

    def _publisher_channels(self, published: Published) -> Numbers:
        """By message. Opens those that follow on others."""
        lives: list[list[int]] = [[channel] for channel in self._state.publisher_channels.tolist()]
        for each in published.breaks:
            lives[each.slot].append(self._open_publisher(each.slot, each.reopened_us))
        self._state.publisher_channels[:] = [channels[-1] for channels in lives]
        table = _table(lives)
        return table[published.slot, published.life]

    def _publishes(self, told: Told) -> None:
        published = told.published
        process = self._layout.publisher_process(self._state.queue, 0) + published.slot
        answered = published.answered_us
        is_unresolved = np.isin(published.outcome, (Outcome.UNRESOLVED, Outcome.UNRESOLVED_TAKEN))
        is_refused = published.outcome == Outcome.REFUSED
        is_returned = published.outcome == Outcome.RETURNED
        over: list[list[int]] = [[] for _ in self._state.publisher_channels]
        for each in published.breaks:
            over[each.slot].append(each.over_us)
        over_us = _table([moments or [0] for moments in over])
        last_life = np.minimum(published.life, over_us.shape[1] - 1)
        multiple = published.is_multiple * int(Flag.MULTIPLE)
        every = np.ones(len(published), np.bool_)
        told_of: tuple[tuple[Kind, Mask, Numbers, Numbers], ...] = (
            (Kind.PUBLISH, every, published.t_us, is_returned * int(Flag.MANDATORY)),
            (Kind.RETURN, is_returned, answered - 1, multiple * 0),
            (Kind.CONFIRM, ~is_unresolved & ~is_refused, answered, multiple),
            (Kind.REFUSE, is_refused, answered, multiple),
            (Kind.UNRESOLVED, is_unresolved, over_us[published.slot, last_life], multiple * 0),
        )
        for kind, is_told, moments, flags in told_of:
            which = np.flatnonzero(is_told)
            told.places[kind] = _placed(
                self._rows.add(
                    kind,
                    process[which],
                    moments[which],
                    message=published.key[which],
                    channel=told.publisher_channel[which],
                    line=told.publish_lines[which],
                    flags=flags[which],
                ),
                which,
                len(published),
            )
        for each in published.breaks:
            life = over[each.slot].index(each.over_us)
            channel = told.publisher_channel[(published.slot == each.slot) & (published.life == life)][-1]
            ended = self._rows.add(
                Kind.CHANNEL_OVER,
                self._layout.publisher_process(self._state.queue, each.slot),
                each.over_us,
                since_us=each.last_sign_us,
                channel=channel,
                number=int(Ending.LOST),
            )
            self._rows.describe(ended, "connection lost")

    # --- consumers

    def _open_consumer(self, slot: int, at_us: int) -> int:
        process = self._layout.consumer_process(self._state.queue, slot)
        channel = int(self._counters.new_channels(1)[0])
        node = process % NODES + 1
        self._rows.add(Kind.CHANNEL_OPEN, process, at_us, channel=channel, node=node, number=RECONNECT_US // 4)
        prefetch = self._layout.shape.prefetch
        self._rows.add(Kind.SUBSCRIBED, process, at_us, channel=channel, queue=self._state.queue, number=prefetch)
        return channel

    def _consumer_channels(self, deliveries: Deliveries) -> Numbers:
        """By delivery. Opens those that follow on others."""
        chunks: list[list[int]] = []
        for slot, channel in enumerate(self._state.consumer_channels.tolist()):
            channels = [channel]
            for boundary in deliveries.boundaries_of(slot):
                channels.append(self._open_consumer(slot, boundary.back_us) if boundary.is_over else channels[-1])
            chunks.append(channels)
        self._state.consumer_channels[:] = [channels[-1] for channels in chunks]
        self._chunks = _table(chunks)
        return self._chunks[deliveries.consumer, deliveries.chunk]

    def _deliveries(self, told: Told) -> None:
        deliveries = told.deliveries
        process = self._layout.consumer_process(self._state.queue, 0) + deliveries.consumer
        is_read = deliveries.fate != Fate.UNREAD
        is_given_back = deliveries.fate == Fate.GIVEN_BACK
        is_ended, is_proven = deliveries.ended_us > 0, deliveries.proven_us > 0
        is_discarded = is_ended & deliveries.is_discarded
        flagged, multiple = (
            column * int(flag)
            for column, flag in ((deliveries.is_flagged, Flag.REDELIVERED), (deliveries.is_multiple, Flag.MULTIPLE))
        )
        told_of: tuple[tuple[Kind, Mask, Numbers, Numbers], ...] = (
            (Kind.DELIVER, is_read, deliveries.read_us, flagged),
            (Kind.ACK, is_ended & ~is_given_back & ~is_discarded, deliveries.ended_us, multiple),
            (Kind.DISCARD, is_discarded, deliveries.ended_us, multiple * 0),
            (Kind.REQUEUE, is_ended & is_given_back, deliveries.ended_us, multiple * 0),
            (Kind.ACK_PROVEN, is_proven, deliveries.proven_us, multiple * 0),
        )
        for kind, is_told, moments, flags in told_of:
            which = np.flatnonzero(is_told)
            places = self._rows.add(
                kind,
                process[which],
                moments[which],
                message=told.published.key[deliveries.entry[which]],
                channel=told.consumer_channel[which],
                line=told.lines[which],
                flags=flags[which],
            )
            told.places[kind] = _of_only(_placed(places, which, len(deliveries)), told.delivery)

    def _ends_of_channels(self, told: Told) -> None:
        """A channel ends behind everything that was done on it, and lets go what it held."""
        deliveries = told.deliveries
        last_us = np.maximum(
            np.where(deliveries.fate == Fate.UNREAD, 0, deliveries.read_us),
            np.maximum(deliveries.ended_us, deliveries.proven_us),
        )
        for slot in range(self._layout.shape.consumers):
            process = self._layout.consumer_process(self._state.queue, slot)
            is_its = deliveries.consumer == slot
            for chunk, boundary in enumerate(deliveries.boundaries_of(slot)):
                if not boundary.is_over:
                    continue
                its = np.flatnonzero(is_its & (deliveries.chunk == chunk))
                channel = self._chunks[slot, chunk]
                since_us = max(int(last_us[its].max(initial=0)), boundary.at_us)
                over_us = since_us + SILENCE_US
                held = its[np.isin(deliveries.fate[its], (Fate.HELD, Fate.UNPROVEN))]
                self._rows.add(
                    Kind.RELEASE,
                    process,
                    np.full(len(held), over_us),
                    since_us=since_us,
                    message=told.published.key[deliveries.entry[held]],
                    channel=channel,
                    line=told.lines[held],
                )
                over = self._rows.add(
                    Kind.CHANNEL_OVER,
                    process,
                    over_us,
                    since_us=since_us,
                    channel=channel,
                    number=int(Ending.LOST),
                )
                self._rows.describe(over, "connection lost")

    # --- the broker

    def _broker(self, told: Told) -> None:
        published, deliveries, state = told.published, told.deliveries, self._state
        taken = np.flatnonzero(np.isin(published.outcome, _TAKEN))
        answered = np.flatnonzero((published.answered_us > 0) & (published.outcome != Outcome.REFUSED))
        position = state.position + 1 + np.arange(len(taken))
        key = published.key
        entry = deliveries.entry
        places = told.places
        places[Kind.APPLIED] = _placed(
            self._tap(Kind.APPLIED, published.t_us[taken] + NET_US, key[taken], number=position), taken, len(key)
        )
        answered_us = published.answered_us[answered] - NET_US
        places[Kind.ANSWERED] = _placed(self._tap(Kind.ANSWERED, answered_us, key[answered]), answered, len(key))
        expired = np.flatnonzero(published.outcome == Outcome.EXPIRED)
        expired_us = published.t_us[expired] + 5_000 + expired % 7 * 1_000
        places[Kind.EXPIRED] = _placed(self._tap(Kind.EXPIRED, expired_us, key[expired]), expired, len(key))
        is_unheard = deliveries.is_lost_ack & (deliveries.fate == Fate.UNPROVEN)
        is_settled = np.isin(deliveries.fate, (Fate.PLAIN, Fate.UNPROVEN)) & ~is_unheard
        is_everywhere = is_settled & ~deliveries.is_lost_ack & (np.arange(len(deliveries)) % 2 == 0)
        told_of = (
            (Kind.HANDED_OUT, deliveries.sent_us >= 0, deliveries.sent_us, deliveries.is_flagged, Flag.REDELIVERED),
            (Kind.SETTLED, is_settled, deliveries.ended_us + NET_US, is_everywhere, Flag.EVERYWHERE),
            (
                Kind.REQUEUED,
                deliveries.fate == Fate.GIVEN_BACK,
                deliveries.ended_us + NET_US,
                is_everywhere,
                Flag.EVERYWHERE,
            ),
        )
        for kind, is_told, moments, is_flagged, flag in told_of:
            which = np.flatnonzero(is_told)
            rows = self._tap(kind, moments[which], key[entry[which]], flags=is_flagged[which] * int(flag))
            places[kind] = _of_only(_placed(rows, which, len(deliveries)), told.delivery)

    def _tap(self, kind: Kind, moments: Numbers, messages: Numbers, **others: npt.ArrayLike) -> Numbers:
        epoch = self._state.epoch + np.searchsorted(self._promotions, moments, side="right")
        node = self._state.master(epoch)
        return self._rows.add(kind, Layout.TAP, moments, message=messages, epoch=epoch, node=node, **others)

    def promote(self, published: Published, faults: int) -> None:
        """What the harness tells of failovers; ``faults`` were there before."""
        state, rows = self._state, self._rows
        for number, outage in enumerate(published.outages):
            epoch = state.epoch + number + 1
            dead, heir = int(state.master(epoch - 1)), int(state.master(epoch))
            since_us, until_us = outage.promoted_us
            fault = faults + number + 1
            words = f'{{"type": "kill", "nodes": [{dead}], "queue": {state.queue}}}'
            begun = rows.add(Kind.FAULT_BEGIN, Layout.HARNESS, outage.began_us, fault=fault, node=dead)
            rows.describe(begun, words)
            rows.add(
                Kind.PROMOTED,
                Layout.HARNESS,
                until_us,
                since_us=since_us,
                queue=state.queue,
                node=heir,
                epoch=epoch,
                number=int(Heir.OLDEST_SYNCHRONISED),
            )
            rows.add(Kind.FAULT_END, Layout.HARNESS, outage.ended_us, fault=fault)


_TAKEN = (Outcome.TAKEN, Outcome.UNRESOLVED_TAKEN, Outcome.EXPIRED, Outcome.LEFT)


def legal_findings(told: Told, has_tap: bool) -> Counter[Name]:
    """What a judge must count in a block in which nothing is wrong. (Without what is out of order, and excused.)"""
    published, deliveries = told.published, told.deliveries
    outcome = published.outcome
    again = deliveries.origin >= 0
    is_repeat = again & (deliveries.fate[deliveries.origin] != Fate.UNREAD)
    is_after_ack = is_repeat & deliveries.is_lost_ack[deliveries.origin]
    is_unproven = (deliveries.fate == Fate.UNPROVEN) & ~deliveries.is_lost_ack
    flagged_first = again & ~is_repeat & deliveries.is_flagged
    return Counter(
        {
            Name.CAUSED: int((is_repeat & ~is_after_ack).sum()),
            Name.AFTER_ACK: int(is_after_ack.sum()),
            Name.FLAGGED_FIRST: int(flagged_first.sum()),
            Name.SETTLED_UNPROVEN: 0 if has_tap else int(is_unproven.sum()),
            Name.RECOVERED: int((outcome == Outcome.UNRESOLVED_TAKEN).sum()),
            Name.COPIES: int((outcome == Outcome.UNRESOLVED_TAKEN).sum()),
            Name.REMOVED_UNPROVEN: 0 if has_tap else int((outcome == Outcome.EXPIRED).sum()),
        }
    )


def _table(lists: list[list[int]]) -> Numbers:
    """Lists of numbers as one array, filled up."""
    width = max(len(each) for each in lists)
    return np.array([each + each[-1:] * (width - len(each)) for each in lists], np.int64)


def _placed(places: Numbers, which: Numbers, count: int) -> Numbers:
    placed = np.full(count, -1, np.int64)
    placed[which] = places
    return placed


def _only(entries: Numbers, count: int) -> Numbers:
    """The only delivery of each message, or -1."""
    only = np.full(count, -1, np.int64)
    only[entries] = np.arange(len(entries))
    only[np.bincount(entries, minlength=count) != 1] = -1
    return only


def _of_only(places: Numbers, delivery: Numbers) -> Numbers:
    if not len(places):
        return np.full(len(delivery), -1, np.int64)
    return np.where(delivery >= 0, places[delivery], -1)
