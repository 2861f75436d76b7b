"""What a simulated run must not show, judged from its history by the laboratory's definitions.

The definitions are those of `chaos.analysis.reference`, of which the Spark job is the fast reading. What is added here
is what a simulator knows and a laboratory cannot: what the cluster has committed and when (`chaos.sim.record_watch`),
which lives of which nodes have ended, what was durable where, and which acknowledgements were taken for sure.

**What excuses a loss.** A message was confirmed when its confirm was sent (``t_lo_us``), however long that was on its
way to the client: a slow link brings it after everybody who had the message is dead. One that went to several queues,
or is part of a transaction, is confirmed by each of them at some time of its own, and the confirm is sent behind the
last. It may be missing only if

- its queue was taken over since by a copy that lacked something, as the record says; whether the policy permitted that
  is judged when it happens (`chaos.sim.record_watch`); or
- it was not persistent (a copy of it lives as long as the process that holds it and its part in the record), and of
  those that held everything when it was confirmed, and of those that were filled by them since, none is left; or
- it left its queue legally, seen where it happened, message by message: dropped by a limit (`Kind.DROP`), purged
  (`Kind.PURGE`), or handed out without acknowledgement (`Kind.EXPIRE`). An operator's call that was not answered
  excuses what it took away, if it did, and nothing else; or
- its queue was deleted after it was published. If that was done on condition that the queue is empty, nothing that was
  confirmed before may be gone but what some channel held (as with RabbitMQ, which counts what is ready); and under any
  condition nothing that was published and confirmed since the deletion was proposed; or
- it was published through a node that did not know yet what had become of its queue: it went nowhere; or
- the nodes sync nothing before they confirm (``durability = flush``), and one that had everything has lost its power
  since with no sync behind the confirm, or could not sync and was started again: only what was unsynced may go.

**What excuses a repetition.** An acknowledgement has no answer, and one that was not replicated yet may be lost with
its master: that is promised. But one that the master in service has taken, proven by a later answer of the same master
to the same channel in the same session, is a settlement. That master must not hand the message out again. What was
handed out before may still come: to a channel behind a link that the master has given up and the other side has not,
on its way before what was handed out in its place. So may what a master of an earlier epoch hands out that has not
heard of its successor: it stood still, or is cut off, and serves what it knows until it finds itself too old
(`cluster.runtime.standing`). All of that is seen where it happens (`chaos.sim.taps`), and each time that a message is
handed out excuses one delivery. Where another epoch has begun since, anything may come again; so may what the master
had taken when its disk ended its copy, with which it goes on in that epoch when there is room again.

**What must be flagged** as a repetition is what anybody has heard before, unless it is handed out by a master that has
yet to hear of the one who delivered it.

**What excuses a wrong order.** What clients hear of a master that came to its end may cross with what they hear of the
next one; but each master hands out, for the first time and without the flag, in the order of each publishing channel.

**What excuses a refusal of what was delivered.** The master that delivered it died, gave up its copy for its disk, or
had yet to hear of its successor, before anybody else had it, and the next one, to which it was sent again, has reached
its limit under ``reject-publish``. It cannot know that its predecessor had room, and a full queue stays full
(RabbitMQ's case S14). Or another copy had it from the predecessor, and the one that refused it died before it had that
copy give up what itself had not. Who publishes it anew makes a repetition, as at least once allows.

Everything else is a violation, whatever the faults were: they never exceed what Warren promises, because no schedule
destroys the disks of all complete copies (`chaos.sim.schedule`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.analysis.reference import AttemptKey, findings_of_attempt, incomplete_logs, inversions, stories
from chaos.history import Event, Kind
from chaos.sim.record_watch import NEVER_US, Holders, Ignorance, outlives
from chaos.sim.workload import Settlement


class Violation(NamedTuple):
    """A promise that was not kept."""

    kind: str
    text: str
    #: The message that it is about, if it is about one.
    key: AttemptKey | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


class HandOut(NamedTuple):
    """A master has taken a message out of its queue for somebody."""

    at_us: int
    #: Of that master.
    epoch: int
    #: As what may have been delivered before.
    is_flagged: bool = False
    #: Among all that masters have handed out: what is handed out in one turn has one time.
    position: int = 0
    #: Identity of the queue: one of the same name may have been there before, in the same epoch.
    queue_id: int = 0


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the simulator knows beside the history. Times in microseconds."""

    #: Queues -> when a copy that lacked something took service.
    lossy: Mapping[int, Sequence[int]] = field(default_factory=dict)
    #: Queues -> who held everything, from when on.
    holders: Mapping[int, Sequence[Holders]] = field(default_factory=dict)
    #: Queues -> when they were deleted, with everything that was published before.
    removals: Mapping[int, Sequence[int]] = field(default_factory=dict)
    #: The same, of deletions that take nothing that was confirmed before.
    empty_removals: Mapping[int, Sequence[int]] = field(default_factory=dict)
    #: Queues -> which nodes did not know what had become of them, and when.
    ignorance: Mapping[int, Sequence[Ignorance]] = field(default_factory=dict)
    #: Names by `Event.node_id`.
    nodes: Sequence[str] = ()
    #: Queues -> of each deletion under a condition, when it was proposed (sealed by then), and when it came about.
    conditional: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    #: Queues -> of each request to take something away, when it was made and when the queue was declared again, which
    #: is never while nobody knows what became of the request. Only where no link is cut
    #: (`Personality.has_whole_links`): who publishes after that reaches the new queue.
    requests: Mapping[int, Sequence[tuple[int, int]]] = field(default_factory=dict)
    #: Attempts whose messages were not persistent.
    transient: AbstractSet[AttemptKey] = frozenset()
    #: Attempts that are confirmed together with others.
    joint: AbstractSet[AttemptKey] = frozenset()
    #: Attempts that were settled for sure, in the order of time.
    settled: Mapping[AttemptKey, Sequence[Settlement]] = field(default_factory=dict)
    #: Attempts -> each time that they were handed out, in the order of time.
    hand_outs: Mapping[AttemptKey, Sequence[HandOut]] = field(default_factory=dict)
    #: For each node the times at which a life of it ended, and those at which it lost what was not synced.
    deaths: Mapping[str, Sequence[int]] = field(default_factory=dict)
    powers: Mapping[str, Sequence[int]] = field(default_factory=dict)
    #: Queues -> when which node gave up the copy that it had, with all that was in its memory: the disk refused it.
    given_up: Mapping[int, Sequence[tuple[int, str]]] = field(default_factory=dict)
    #: For each node its syncs: when each was asked for, and when it had taken effect.
    syncs: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    #: Confirms wait for no sync.
    is_flush: bool = False


#: Findings that are violations by themselves; `lost` and `vanished` may be excused.
_ALWAYS_WRONG = ("phantom", "duplicates_unflagged", "confirm_violations", "refused_but_delivered")


def judge(history: Iterable[Event], circumstances: Circumstances) -> list[Violation]:
    """Every promise that was broken, with the story of the message."""
    events = list(history)
    epochs: dict[int | None, list[int]] = {}
    elections: dict[int | None, list[tuple[int, int]]] = {}
    for event in events:
        if event.kind == Kind.PROMOTE:
            epochs.setdefault(event.queue_id, []).append(event.t_hi_us)
            elections.setdefault(event.queue_id, []).append((event.t_hi_us, event.epoch or 0))
    entries = entries_of(events, circumstances.nodes)
    found: list[Violation] = []
    for key, story in stories(events).items():
        findings = findings_of_attempt(story)
        wrong = [name for name in _ALWAYS_WRONG if findings[name]]
        hand_outs = circumstances.hand_outs.get(key, ())
        if findings["refused_but_delivered"] and (
            _is_refused_by_another(story, elections.get(key[0], ()), hand_outs)
            or _is_refused_by_next_life(key, story, circumstances)
        ):
            wrong.remove("refused_but_delivered")
        is_missing = [name for name in ("lost", "vanished") if findings[name]]
        if is_missing and not _is_excused(key, story, circumstances, entries, epochs.get(key[0], ())):
            wrong += is_missing
        is_returned = any(event.kind == Kind.RETURN for event in story)
        if is_returned and findings["delivered"] and not findings["refused_but_delivered"]:
            wrong.append("refused_but_delivered")
        if not findings["duplicates_unflagged"] and _is_unflagged_behind(story, hand_outs):
            wrong.append("duplicates_unflagged")
        if _has_come_back(key, story, circumstances, epochs.get(key[0], ())):
            wrong.append("resurrected")
        found += [Violation(name, tell(key, story), key) for name in wrong]
    overtaken, _ = inversions(events)
    if overtaken:
        found.append(Violation("order", f"{overtaken} first deliveries overtook one another"))
    found += _handed_out_too_early(events, circumstances.hand_outs)
    strays = sum(event.kind == Kind.CONFIRM_STRAY for event in events)
    if strays:
        found.append(Violation("confirm_violations", f"{strays} confirms of what was not outstanding"))
    nameless = sum(event.kind == Kind.DELIVER and event.seq is None for event in events)
    if nameless:
        found.append(Violation("phantom", f"{nameless} deliveries of what nobody has published"))
    incomplete = incomplete_logs(events)
    if incomplete:
        found.append(Violation("harness", f"{incomplete} logs with holes or without an end"))
    return found


def entries_of(events: Iterable[Event], nodes: Sequence[str]) -> dict[int | None, str]:
    """Channel of a client -> which of the ``nodes`` it led to, by their `Event.node_id`, as far as that is known."""
    return {
        event.channel_id: nodes[event.node_id]
        for event in events
        if event.kind == Kind.CONN_OPEN and event.node_id is not None and event.node_id < len(nodes)
    }


def _handed_out_too_early(
    events: Sequence[Event], hand_outs: Mapping[AttemptKey, Sequence[HandOut]]
) -> Iterator[Violation]:
    """What one channel has published to a queue stands there as it was published, whatever becomes of masters and
    links, so a master hands out for the first time in that order, whoever gets it. Not so what two queues of one name
    hand out: who has yet to hear that the first one is deleted goes on."""
    first: dict[tuple[int, int, int, int | None], list[tuple[int, int, AttemptKey]]] = {}
    for event in events:
        if event.kind != Kind.PUB_INVOKE:
            continue
        key = (event.queue_id, event.pub_id, event.seq, event.attempt)
        for each in hand_outs.get(key, ()):
            if not each.is_flagged:
                stream = each.queue_id, each.epoch, event.proc_id, event.channel_id
                first.setdefault(stream, []).append((each.position, event.ev_seq, key))
    for (_, epoch, _, channel), handed_out in first.items():
        last_seq, last_key = -1, None
        for _, ev_seq, key in sorted(handed_out):
            if ev_seq < last_seq:
                text = f"the master of queue {key[0]} in epoch {epoch} has handed out {last_key} before {key}"
                yield Violation("order", f"{text}, which was published earlier on channel {channel}", key)
            else:
                last_seq, last_key = ev_seq, key


def _is_excused(
    key: AttemptKey,
    story: Sequence[Event],
    circumstances: Circumstances,
    entries: Mapping[int | None, str],
    epochs: Sequence[int],
) -> bool:
    """``entries``: which node each channel led to, as far as that is known."""
    queue = key[0]
    assert queue is not None, "a story has a queue"
    confirms = [event for event in story if event.kind == Kind.CONFIRM]
    # What became of the cluster while the confirm was on its way to the client has nothing to do with it.
    confirmed_us = min(event.t_lo_us for event in confirms)
    published_us = min((event.t_hi_us for event in story if event.kind == Kind.PUB_INVOKE), default=confirmed_us)
    if any(event.kind == Kind.RETURN for event in story):
        return True  # no queue took it, and that was said before the confirm
    # A queue may have confirmed its part of what is confirmed together long before the last part.
    first_us = published_us if key in circumstances.joint else confirmed_us
    if any(at_us >= first_us for at_us in circumstances.lossy.get(queue, ())):
        return True
    entry = next((entries.get(event.channel_id) for event in story if event.kind == Kind.PUB_INVOKE), None)
    if _was_deleted(queue, published_us, confirmed_us, entry, circumstances):
        return True
    if key in circumstances.transient:
        return _has_gone_from_memory(queue, published_us, confirmed_us, first_us, circumstances)
    # What no later master can have confirmed was confirmed before, if it was heard on its way after.
    begun_us = max((at_us for at_us in epochs if at_us <= first_us), default=0)
    sure_us = max(published_us, begun_us)
    return circumstances.is_flush and _was_unsynced(queue, sure_us, confirmed_us, circumstances)


def _was_deleted(
    queue: int, published_us: int, confirmed_us: int, entry: str | None, circumstances: Circumstances
) -> bool:
    """It went with its queue, or nowhere because of that. ``entry``: the node it was published through, if known."""
    requests = circumstances.requests.get(queue, ())
    if requests and all(done_us < published_us for _, done_us in requests):
        return False  # the queue was declared again before
    # Nothing is confirmed while a deletion under a condition is open, so it cannot take that away.
    open_until_us = min(
        (end for begin, end in circumstances.conditional.get(queue, ()) if begin < published_us and confirmed_us < end),
        default=None,
    )
    for at_us in circumstances.removals.get(queue, ()):
        if at_us >= published_us and (open_until_us is None or at_us < open_until_us):
            return True
    if any(published_us <= at_us <= confirmed_us for at_us in circumstances.empty_removals.get(queue, ())):
        return True  # it was held back, as the queue was sealed: it went nowhere
    return any(
        published_us <= each.until_us and confirmed_us >= each.from_us and entry in (None, each.node)
        for each in circumstances.ignorance.get(queue, ())
    )


def _has_gone_from_memory(
    queue: int, published_us: int, confirmed_us: int, first_us: int, circumstances: Circumstances
) -> bool:
    """The master decided to confirm at some time between, or at ``first_us``: whoever held everything then may be
    meant. No record tells of a copy that was given up meanwhile."""
    holders, given_up = circumstances.holders.get(queue, ()), circumstances.given_up.get(queue, ())
    deaths = [(at_us, node) for node, times in circumstances.deaths.items() for at_us in times]
    changes = [*(entry.at_us for entry in holders), *(at_us for at_us, _ in given_up)]
    begins = [first_us, *(at_us for at_us in changes if published_us <= at_us <= confirmed_us)]
    return bool(holders) and any(not outlives(holders, [*deaths, *given_up], begin_us) for begin_us in begins)


def _was_unsynced(queue: int, from_us: int, confirmed_us: int, circumstances: Circumstances) -> bool:
    """Some node that had everything then, or got it later, lost its power after ``from_us``, and before it had synced
    what it had when this was confirmed."""
    holders = circumstances.holders.get(queue, ())
    begin = max(0, bisect_right(holders, from_us, key=lambda entry: entry.at_us) - 1)
    holding = {node for entry in holders[begin:] for node in entry.nodes}
    return any(
        node in holding
        and power_us >= from_us
        and not any(
            begin_us >= confirmed_us and end_us <= power_us for begin_us, end_us in circumstances.syncs.get(node, ())
        )
        for node, times in circumstances.powers.items()
        for power_us in times
    )


def _until_refused(story: Sequence[Event]) -> tuple[int, int] | None:
    """When it was published first, and refused first."""
    published_us = min((event.t_lo_us for event in story if event.kind == Kind.PUB_INVOKE), default=None)
    refused_us = min((event.t_hi_us for event in story if event.kind == Kind.NACK), default=None)
    return None if published_us is None or refused_us is None else (published_us, refused_us)


def _is_refused_by_another(
    story: Sequence[Event], elections: Sequence[tuple[int, int]], hand_outs: Sequence[HandOut]
) -> bool:
    """It was delivered by a master that died with the message, or that had not heard yet of the one that refused it, or
    by one that had it from the master before the one that refused it, whose copy is full.

    ``elections``: when each master of the queue was elected, and its epoch.
    """
    span = _until_refused(story)
    if span is None:
        return False
    published_us, refused_us = span
    was_taken_over = any(published_us <= at_us <= refused_us for at_us, _ in elections)
    newest_epoch = max((epoch for at_us, epoch in elections if at_us <= refused_us), default=0)
    return all(
        any(event.t_lo_us <= at_us <= refused_us for at_us, _ in elections)
        or (was_taken_over and any(refused_us <= at_us <= event.t_hi_us for at_us, _ in elections))
        or (event.t_lo_us <= refused_us and _is_of_earlier(event, newest_epoch, hand_outs))
        for event in story
        if event.kind == Kind.DELIVER
    )


def _is_refused_by_next_life(key: AttemptKey, story: Sequence[Event], circumstances: Circumstances) -> bool:
    """The master that had taken and delivered it gave up its copy, for its disk, with what was in its memory. When it
    has room it goes on in its epoch with what the disk has, and knows as little of it as another master would."""
    span = _until_refused(story)
    if key[0] is None or span is None:
        return False
    published_us, refused_us = span
    ends_us = _ends_of_master(circumstances, key[0], published_us)
    return any(published_us <= end_us <= refused_us for end_us in ends_us)


def _is_of_earlier(delivery: Event, epoch: int, hand_outs: Sequence[HandOut]) -> bool:
    """Whoever handed out what was delivered then was of an earlier epoch."""
    before = [each.epoch for each in hand_outs if each.at_us <= delivery.t_lo_us]
    return bool(before) and max(before) < epoch


def _is_unflagged_behind(story: Sequence[Event], hand_outs: Sequence[HandOut]) -> bool:
    """Handed out as never delivered when somebody had heard a delivery of it, whatever that had said of itself: the
    first may be flagged, by a master that recovered its copy and knew no better.

    Not if that one was of a later epoch: who has yet to hear of his successor knows nothing of what that one delivers.
    """
    deliveries = [event for event in story if event.kind == Kind.DELIVER]
    for at_us, epoch, is_flagged, *_ in hand_outs:
        if is_flagged or not any(event.t_lo_us >= at_us and not event.redelivered for event in deliveries):
            continue
        for earlier in deliveries:
            if earlier.t_hi_us < at_us and all(
                each.epoch <= epoch for each in hand_outs if each.at_us <= earlier.t_lo_us
            ):
                return True
    return False


def _has_come_back(
    key: AttemptKey, story: Sequence[Event], circumstances: Circumstances, epochs: Sequence[int]
) -> bool:
    """Sent out after it was settled for sure, before another epoch began, and not because it was handed out before.

    A message is nobody else's while a channel holds it, so the acknowledgement found it in that channel's hands, and
    from then on it was gone. ``t_lo_us`` of a delivery is when the broker has sent it.
    """
    queue, hand_outs = key[0], circumstances.hand_outs.get(key, ())
    settled = next((each for each in circumstances.settled.get(key, ()) if _has_found_it(each, hand_outs)), None)
    if settled is None:
        return False
    assert queue is not None, "a story has a queue"
    sent_us = sorted(event.t_lo_us for event in story if event.kind == Kind.DELIVER)
    ends_us = [*epochs, *_ends_of_master(circumstances, queue, settled.acked_us)]
    others_us = min((at_us for at_us in ends_us if at_us >= settled.acked_us), default=NEVER_US)
    if not any(settled.acked_us < at_us < others_us for at_us in sent_us):
        return False
    if any(settled.acked_us < at_us < others_us and epoch >= settled.epoch for at_us, epoch, *_ in hand_outs):
        return True
    # Each delivery needs a time of its own that came before it.
    return any(
        position >= len(hand_outs) or hand_outs[position].at_us > at_us
        for position, at_us in enumerate(sent_us)
        if at_us < others_us
    )


def _has_found_it(settled: Settlement, hand_outs: Sequence[HandOut]) -> bool:
    """The acknowledgement came to who had handed the message out. What is written late may be from the session before,
    whose acknowledgements go nowhere. Nothing is acknowledged that was not handed out at all."""
    earlier = [each for each in hand_outs if each.at_us <= settled.acked_us]
    return not earlier or any(each.epoch == settled.epoch and each.at_us >= settled.began_us for each in earlier)


def _ends_of_master(circumstances: Circumstances, queue: int, at_us: int) -> list[int]:
    """When the master of this time gave up its copy. It may go on in its epoch, with what the disk has."""
    holders = [each for each in circumstances.holders.get(queue, ()) if each.at_us <= at_us]
    return [
        given_up_us
        for given_up_us, node in circumstances.given_up.get(queue, ())
        if holders and node == holders[-1].master
    ]


def tell(key: AttemptKey, story: Sequence[Event]) -> str:
    """The story of one attempt in a line."""
    queue, publisher, number, attempt = key
    parts = [
        f"{event.t_hi_us / 1e6:.3f} {event.kind}{' (redelivered)' if event.redelivered else ''}"
        f"{f' channel {event.channel_id}' if event.channel_id is not None else ''}"
        for event in story
    ]
    return f"message {publisher}:{number} attempt {attempt} of queue {queue}: {'; '.join(parts)}"
