"""The messages of a block in which something may be planted: columns, with the places of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chaos.generator.delivering import Fate
from chaos.generator.publishing import Outcome
from chaos.generator.rows import Column, Mask, Numbers
from chaos.generator.shape import Layout
from chaos.generator.telling import Told
from chaos.record.kinds import Kind

#: Nothing follows from a failover farther away than so many times the slack.
CALM = 8
_KINDS = (
    Kind.PUBLISH,
    Kind.CONFIRM,
    Kind.DELIVER,
    Kind.ACK,
    Kind.ACK_PROVEN,
    Kind.APPLIED,
    Kind.ANSWERED,
    Kind.HANDED_OUT,
    Kind.SETTLED,
    Kind.EXPIRED,
)


@dataclass(slots=True)
class Candidates:
    """All messages of a block, queue by queue in the order of publishing."""

    queue: Numbers
    slot: Numbers
    key: Numbers
    t_us: Numbers
    outcome: Numbers
    answered_us: Numbers
    publisher_channel: Numbers
    publish_line: Numbers
    #: Of the only delivery, where there is one.
    consumer: Numbers
    consumer_channel: Numbers
    read_us: Numbers
    ended_us: Numbers
    proven_us: Numbers
    #: Places of its rows; -1 for none.
    places: Mapping[Kind, Numbers]
    #: Taken, confirmed, delivered once, acknowledged and proven.
    is_plain: Mask
    #: No failover is near its delivery.
    is_calm: Mask
    #: Published before a failover and delivered behind it.
    is_over_failover: Mask
    #: Failovers of its queue in the block before it was read, and before it was answered.
    era: Numbers
    answered_era: Numbers
    #: When the next failover of its queue in the block was over; zero if there is none.
    next_failover_us: Numbers
    #: Of those around it in its queue: first and last ones are for what has to be there.
    from_first: Numbers
    to_last: Numbers

    def __len__(self) -> int:
        return len(self.key)


def candidates_of(layout: Layout, told: Sequence[Told]) -> Candidates:
    """Of the queues of a block, from the first."""
    parts = [_of_queue(layout, queue, each) for queue, each in enumerate(told, 1)]
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in Candidates.__slots__
        if name != "places"
    }
    places = {kind: np.concatenate([part.places[kind] for part in parts]) for kind in _KINDS}
    return Candidates(**columns, places=places)


def _of_queue(layout: Layout, queue: int, told: Told) -> Candidates:
    published, deliveries = told.published, told.deliveries
    count = len(published)
    delivery = told.delivery
    has_delivery = delivery >= 0

    def of_delivery(column: Column) -> Numbers:
        return np.where(has_delivery, column[delivery], 0) if len(column) else np.zeros(count, np.int64)

    none = np.full(count, -1, np.int64)
    places = {kind: told.places.get(kind, none) for kind in _KINDS}
    read_us, proven_us = of_delivery(deliveries.read_us), of_delivery(deliveries.proven_us)
    is_plain = (
        has_delivery
        & (published.outcome == Outcome.TAKEN)
        & ~published.is_copy
        & (of_delivery(deliveries.fate) == Fate.PLAIN)
        & ~of_delivery(deliveries.is_lost_ack).astype(np.bool_)
        & (places[Kind.ACK] >= 0)
        & (places[Kind.ACK_PROVEN] >= 0)
        & (places[Kind.DELIVER] >= 0)
    )
    calm_us = CALM * layout.shape.slack_us
    ended = np.array([outage.ended_us for outage in published.outages], np.int64)
    is_calm, is_over_failover = np.ones(count, np.bool_), np.zeros(count, np.bool_)
    for outage in published.outages:
        is_calm &= (read_us + calm_us < outage.began_us) | (published.t_us > outage.ended_us)
        is_over_failover |= (published.t_us < outage.began_us) & (read_us > outage.ended_us)
    following = np.append(ended, 0)[np.searchsorted(ended, published.t_us)]
    # Read before it broke, or it is no failover behind the message.
    began = np.append([outage.began_us for outage in published.outages], 0)[np.searchsorted(ended, published.t_us)]
    return Candidates(
        queue=np.full(count, queue, np.int64),
        slot=published.slot,
        key=published.key,
        t_us=published.t_us,
        outcome=published.outcome,
        answered_us=published.answered_us,
        publisher_channel=told.publisher_channel,
        publish_line=told.publish_lines,
        consumer=of_delivery(deliveries.consumer),
        consumer_channel=of_delivery(told.consumer_channel),
        read_us=read_us,
        ended_us=of_delivery(deliveries.ended_us),
        proven_us=proven_us,
        places=places,
        is_plain=is_plain,
        is_calm=is_calm,
        is_over_failover=is_over_failover,
        era=np.searchsorted(ended, read_us),
        answered_era=np.searchsorted(ended, published.answered_us),
        next_failover_us=np.where(proven_us < began, following, 0),
        from_first=np.arange(count),
        to_last=np.arange(count)[::-1],
    )


def next_of_same(groups: Numbers, which: Numbers) -> Numbers:
    """For each message the next of the same group, both among ``which`` (in their order); else -1."""
    following = np.full(len(groups), -1, np.int64)
    order = which[np.argsort(groups[which], kind="stable")]
    is_same = groups[order[1:]] == groups[order[:-1]]
    following[order[:-1][is_same]] = order[1:][is_same]
    return following


def first_read_behind(groups: Numbers, read_us: Numbers, which: Numbers, moments: Numbers) -> Numbers:
    """For each of ``which`` the first of the same group, among them, that was read later than its moment; else -1."""
    found = np.full(len(groups), -1, np.int64)
    order = which[np.argsort(groups[which], kind="stable")]
    if not len(order):
        return found
    _, group = np.unique(groups[order], return_inverse=True)
    since_us = read_us[order].min()
    apart = group.astype(np.int64) << 44
    # The first at which the latest so far exceeds the moment exceeds it itself.
    latest = np.maximum.accumulate(read_us[order] - since_us + apart)
    at = np.searchsorted(latest, moments[order] - since_us + apart, side="right")
    is_there = at < len(order)
    at = np.minimum(at, len(order) - 1)
    is_there &= group[at] == group
    found[order[is_there]] = order[at[is_there]]
    return found
