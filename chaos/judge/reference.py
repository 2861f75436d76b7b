"""The definitions of `chaos.judge` in plain Python, for records that fit in memory. Written to be read.

Nothing here is shared with the Spark job but the names: where both find the same, two readings of one text agree.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from chaos.judge.findings import ABSENCES, OF_THE_END, Finding, Name, Place, RunFacts
from chaos.record.kinds import REMOVALS, Flag, Kind, Stray
from chaos.record.message_key import any_attempt, unpack
from chaos.record.schema import Event

_SETTLING = frozenset({Kind.ACK, Kind.DISCARD})
_OF_THE_QUEUE = frozenset({Kind.PROMOTED, Kind.DISTURBED})
_GIVING_BACK = frozenset({Kind.REQUEUE, Kind.RELEASE})
_STRAYS = {
    Stray.TWICE: Name.CONFIRM_TWICE,
    Stray.CONTRADICTION: Name.CONFIRM_CONTRADICTION,
    Stray.UNKNOWN: Name.CONFIRM_UNKNOWN,
}


def is_before(earlier: Event, later: Event, slack_us: int = 0) -> bool:
    """True if ``earlier`` happened before, and by more than the slack."""
    return earlier.t_hi_us + slack_us < later.t_lo_us


def may_be_before(earlier: Event, later: Event) -> bool:
    """False if ``earlier`` happened after ``later``."""
    return earlier.t_lo_us <= later.t_hi_us


def _by_time(event: Event) -> tuple[int, int, int]:
    return event.t_lo_us, event.process, event.event


@dataclass(slots=True)
class Story:
    """What happened to one message."""

    key: int
    events: dict[Kind, list[Event]] = field(default_factory=lambda: defaultdict(list))

    def of(self, *kinds: Kind) -> list[Event]:
        """Its events of these kinds, by time."""
        return sorted((event for kind in kinds for event in self.events.get(kind, ())), key=_by_time)

    def has(self, *kinds: Kind) -> bool:
        return any(self.events.get(kind) for kind in kinds)

    def ends(self, delivery: Event, *kinds: Kind) -> list[Event]:
        """What was done with one delivery of it."""
        place = (delivery.channel, delivery.tag)
        return [event for event in self.of(*kinds) if (event.channel, event.tag) == place]

    @property
    def first_unflagged(self) -> Event | None:
        """The first delivery of it without REDELIVERED."""
        return next((each for each in self.of(Kind.DELIVER) if not each.flags & Flag.REDELIVERED), None)


class Reference:
    """Judges one record. All of it is in memory."""

    def __init__(self, events: Iterable[Event], facts: RunFacts) -> None:
        self._facts = facts
        self._slack_us = facts.slack_us
        self._stories: dict[int, Story] = {}
        self._others: dict[Kind, list[Event]] = defaultdict(list)
        self._numbers: dict[int, list[int]] = defaultdict(list)
        self._ends: dict[int, int] = {}
        for event in events:
            self._numbers[event.process].append(event.event)
            kind = Kind(event.kind)
            if kind is Kind.PROCESS_END:
                self._ends[event.process] = event.event
            if event.message:
                self._stories.setdefault(event.message, Story(event.message)).events[kind].append(event)
            else:
                self._others[kind].append(event)
        #: Processes of which something is missing.
        self.incomplete = {process for process in facts.processes if not self._is_complete(process)}
        #: Neighbours in a channel whose order was judged: without any, nothing is known of order.
        self.pairs_compared = 0

    def _is_complete(self, process: int) -> bool:
        numbers = sorted(self._numbers[process])
        return numbers == list(range(1, len(numbers) + 1)) and self._ends.get(process) == len(numbers)

    def findings(self) -> list[Finding]:
        """Everything that the record shows, sorted."""
        found = [*self._foreign(), *self._order(), *self._copies(), *self._false_confirms(), *self._replicas()]
        for story in self._stories.values():
            found += self._of_message(story)
            found += self._repeats(story)
            found += self._requeue_overtaken(story)
        return sorted(finding for finding in found if self._is_concluded(finding))

    def _is_concluded(self, finding: Finding) -> bool:
        """False for what is concluded from an absence in an incomplete record."""
        if finding.name is Name.PHANTOM:
            publisher = unpack(finding.message).publisher
            return not any(publisher in self._facts.processes[process] for process in self.incomplete)
        if finding.name in OF_THE_END and not self._facts.queue(unpack(finding.message).queue).is_known:
            return False
        return finding.name not in ABSENCES or not self.incomplete

    # --- one message

    def _of_message(self, story: Story) -> Iterator[Finding]:
        key = story.key
        published, deliveries, left = story.of(Kind.PUBLISH), story.of(Kind.DELIVER), story.of(Kind.LEFT)
        is_confirmed = story.has(Kind.CONFIRM) and not story.has(Kind.RETURN)
        is_refused = story.has(Kind.REFUSE)
        may_be_removed = self._may_be_removed(story)
        is_automatic = any(each.flags & Flag.NO_ACK for each in deliveries)
        is_settled = story.has(*_SETTLING) or is_automatic
        proofs = [story.ends(end, Kind.ACK_PROVEN) for end in story.of(*_SETTLING)]
        is_proven = story.has(Kind.SETTLED) or is_automatic or any(proofs)
        origin = published[0] if published else None
        first = deliveries[0] if deliveries else None
        is_removed = story.has(*REMOVALS)
        is_gone = not left and not is_removed
        # What was returned is confirmed, and in no queue.
        is_missing = is_confirmed and not first and is_gone
        facts = {
            Name.LOST: (is_missing and not may_be_removed, origin),
            Name.REMOVED_UNPROVEN: (is_missing and may_be_removed, origin),
            Name.VANISHED: (
                is_confirmed and bool(first) and not is_settled and is_gone and not may_be_removed,
                origin,
            ),
            Name.PHANTOM: (bool(first) and not published, first),
            Name.REFUSED_DELIVERED: (bool(first) and is_refused and not is_confirmed, first),
            Name.RETURNED_DELIVERED: (bool(first) and story.has(Kind.RETURN), first),
            Name.RECOVERED: (bool(first) and not is_confirmed and story.has(Kind.UNRESOLVED), first),
            Name.FLAGGED_FIRST: (bool(first) and not story.first_unflagged, first),
            Name.SETTLED_UNPROVEN: (is_settled and not is_proven and not left, origin),
            Name.STUCK: (bool(left) and self._facts.queue(unpack(key).queue).is_drained, left[0] if left else None),
        }
        for name, (holds, row) in facts.items():
            if holds:
                yield _finding(name, key, row)
        for delivery in deliveries:
            if delivery.flags & Flag.CORRUPT:
                yield _finding(Name.CORRUPT, key, delivery)
            if delivery.queue:
                yield _finding(Name.MISROUTED, key, delivery)
        unflagged = [each for each in deliveries if not each.flags & Flag.REDELIVERED]
        for delivery in unflagged[1:]:
            yield _finding(Name.UNFLAGGED, key, delivery)
        for stray in story.of(Kind.STRAY):
            yield _finding(_STRAYS[Stray(stray.number)], key, stray)

    def _may_be_removed(self, story: Story) -> bool:
        queue = unpack(story.key).queue
        if self._facts.queue(queue).may_remove:
            return True
        published = story.of(Kind.PUBLISH)
        emptied = [event for event in self._others[Kind.EMPTIED] if event.queue == queue]
        return any(not is_before(event, publish) for event in emptied for publish in published)

    # --- deliveries of one message, again

    def _repeats(self, story: Story) -> Iterator[Finding]:
        deliveries = story.of(Kind.DELIVER)
        flagged = [each for each in deliveries if each.flags & Flag.REDELIVERED]
        repeats = flagged if len(flagged) < len(deliveries) else flagged[1:]
        causes = sorted([*story.of(*_GIVING_BACK), *self._of_queue(Kind.PROMOTED, story.key)], key=_by_time)
        disturbed = self._of_queue(Kind.DISTURBED, story.key)
        for repeat in repeats:
            others = [each for each in deliveries if each is not repeat]
            cause = next((each for each in causes if self._explains(each, repeat, others)), None)
            if cause is not None:
                causes.remove(cause)
            else:
                cause = next((each for each in disturbed if self._explains(each, repeat, others)), None)
            yield _finding(self._grade(story, repeat, others, cause), story.key, repeat)
        if deliveries and deliveries[0] not in repeats and self._was_removed_before(story, deliveries[0]):
            yield _finding(Name.RESURRECTED, story.key, deliveries[0])

    @staticmethod
    def _explains(cause: Event, repeat: Event, others: Sequence[Event]) -> bool:
        if not may_be_before(cause, repeat):
            return False
        if cause.kind in _OF_THE_QUEUE:
            return any(not is_before(cause, other) for other in others)
        return any((other.channel, other.tag) == (cause.channel, cause.tag) for other in others)

    def _grade(self, story: Story, repeat: Event, others: Sequence[Event], cause: Event | None) -> Name:
        if self._is_resurrected(story, repeat, others):
            return Name.RESURRECTED
        if cause is not None:
            settled = [end for other in others for end in self._settlings(story, other) if is_before(end, repeat)]
            return Name.AFTER_ACK if settled else Name.CAUSED
        holders = [other for other in others if is_before(other, repeat)]
        if any(self._is_held(story, holder, repeat) for holder in holders):
            return Name.DOUBLE_OWNER
        return Name.SPONTANEOUS

    @staticmethod
    def _settlings(story: Story, delivery: Event) -> list[Event]:
        """What settles a delivery; with NO_ACK it does so itself."""
        own = [delivery] if delivery.flags & Flag.NO_ACK else []
        return [*own, *story.ends(delivery, *_SETTLING)]

    @staticmethod
    def _is_held(story: Story, delivery: Event, at: Event) -> bool:
        if delivery.flags & Flag.NO_ACK:
            return False
        return not any(may_be_before(end, at) for end in story.ends(delivery, *_SETTLING, *_GIVING_BACK))

    def _is_resurrected(self, story: Story, repeat: Event, others: Sequence[Event]) -> bool:
        if any(each.flags & Flag.EVERYWHERE and is_before(each, repeat) for each in story.of(Kind.SETTLED)):
            return True
        if self._was_removed_before(story, repeat):
            return True
        for other in others:
            proofs = [*story.ends(other, Kind.ACK_PROVEN), *story.of(Kind.SETTLED)]
            if other.flags & Flag.NO_ACK:
                proofs.append(other)
            for end in self._settlings(story, other):
                is_proven = is_before(end, repeat) and any(is_before(proof, repeat) for proof in proofs)
                if is_proven and not self._is_between(story.key, other, repeat, *_OF_THE_QUEUE):
                    return True
        return False

    def _was_removed_before(self, story: Story, delivery: Event) -> bool:
        slack_us = self._slack_us
        return slack_us is not None and any(is_before(each, delivery, slack_us) for each in story.of(*REMOVALS))

    # --- the queue's masters

    def _of_queue(self, kind: Kind, key: int) -> list[Event]:
        queue = unpack(key).queue
        return [event for event in self._others[kind] if event.queue == queue]

    def _is_between(self, key: int, first: Event, last: Event, *kinds: Kind) -> bool:
        """True if such an event of the queue may have been between the two."""
        found = [each for kind in kinds for each in self._of_queue(kind, key)]
        return any(may_be_before(first, each) and may_be_before(each, last) for each in found)

    # --- order

    def _order(self) -> Iterator[Finding]:
        misordered: set[int] = set()
        for pairs in self._streams.values():
            channels: dict[int, list[tuple[Event, Event]]] = defaultdict(list)
            for pair in pairs:
                channels[pair[1].channel].append(pair)
            for finding in (finding for pairs in channels.values() for finding in self._misordered(pairs)):
                misordered.add(finding.message)
                yield finding
        for pairs in self._streams.values():
            for finding in self._overtaken(pairs):
                if finding.message not in misordered:
                    yield finding

    def _misordered(self, pairs: list[tuple[Event, Event]]) -> Iterator[Finding]:
        pairs.sort(key=lambda pair: pair[1].event)
        self.pairs_compared += len(pairs) - 1
        leader = pairs[0]
        for published, delivery in pairs[1:]:
            if published.event > leader[0].event:
                leader = (published, delivery)
                continue
            is_excused = self._is_between(delivery.message, leader[1], delivery, Kind.PROMOTED)
            name = Name.MISORDERED_EXCUSED if is_excused else Name.MISORDERED
            yield _finding(name, delivery.message, delivery)

    def _overtaken(self, pairs: list[tuple[Event, Event]]) -> Iterator[Finding]:
        """Two pointers over the same pairs: by when they were delivered at the earliest, and at the latest."""
        if self._slack_us is None:
            return
        by_end = sorted(pairs, key=lambda pair: pair[1].t_hi_us)
        leader: tuple[Event, Event] | None = None
        passed = 0
        for published, delivery in sorted(pairs, key=lambda pair: pair[1].t_lo_us):
            while passed < len(by_end) and is_before(by_end[passed][1], delivery, self._slack_us):
                if leader is None or by_end[passed][0].event > leader[0].event:
                    leader = by_end[passed]
                passed += 1
            if leader is not None and leader[0].event > published.event:
                is_excused = self._is_between(delivery.message, leader[1], delivery, Kind.PROMOTED)
                name = Name.OVERTAKEN_EXCUSED if is_excused else Name.OVERTAKEN
                yield _finding(name, delivery.message, delivery)

    def _requeue_overtaken(self, story: Story) -> Iterator[Finding]:
        published = story.of(Kind.PUBLISH)
        if self._slack_us is None or not published:
            return
        for requeue in story.of(Kind.REQUEUE):
            proof = next(iter(story.ends(requeue, Kind.ACK_PROVEN)), None)
            if proof is None:
                continue
            again = next((each for each in story.of(Kind.DELIVER) if is_before(proof, each)), None)
            if again is None or self._is_between(story.key, requeue, again, Kind.PROMOTED):
                continue
            if any(
                is_before(proof, other, self._slack_us) and is_before(other, again, self._slack_us)
                for other in self._published_behind(story.key, published[0])
            ):
                yield _finding(Name.REQUEUE_OVERTAKEN, story.key, again)

    def _published_behind(self, key: int, publish: Event) -> list[Event]:
        """First deliveries, without REDELIVERED, of what was published later on the same channel to the same queue."""
        stream = self._streams.get((unpack(key).queue, publish.channel), [])
        behind = bisect_left(stream, publish.event + 1, key=lambda pair: pair[0].event)
        return [delivery for _, delivery in stream[behind:]]

    @cached_property
    def _streams(self) -> dict[tuple[int, int], list[tuple[Event, Event]]]:
        """What was published on one channel to one queue, in that order, with the first delivery of each that has no
        REDELIVERED."""
        streams: dict[tuple[int, int], list[tuple[Event, Event]]] = defaultdict(list)
        for story in self._stories.values():
            published, delivery = story.of(Kind.PUBLISH), story.first_unflagged
            if published and delivery is not None:
                streams[unpack(story.key).queue, published[0].channel].append((published[0], delivery))
        for stream in streams.values():
            stream.sort(key=lambda pair: pair[0].event)
        return streams

    # --- what is about several messages, or none

    def _foreign(self) -> Iterator[Finding]:
        for delivery in self._others[Kind.DELIVER]:
            yield _finding(Name.FOREIGN, 0, delivery)
            if delivery.flags & Flag.CORRUPT:
                yield _finding(Name.CORRUPT, 0, delivery)
        for stray in self._others[Kind.STRAY]:
            yield _finding(_STRAYS[Stray(stray.number)], 0, stray)

    def _copies(self) -> Iterator[Finding]:
        lowest: dict[int, int] = {}
        delivered = [story for story in self._stories.values() if story.has(Kind.DELIVER)]
        for story in sorted(delivered, key=lambda story: story.key):
            if lowest.setdefault(any_attempt(story.key), story.key) != story.key:
                published = story.of(Kind.PUBLISH)
                yield _finding(Name.COPIES, story.key, published[0] if published else None)

    def _false_confirms(self) -> Iterator[Finding]:
        for story in self._stories.values():
            for answer in story.of(Kind.ANSWERED):
                later = [each for each in self._of_queue(Kind.PROMOTED, story.key) if each.epoch > answer.epoch]
                if any(is_before(each, answer) for each in later):
                    yield _finding(Name.FALSE_CONFIRM, story.key, answer)

    def _replicas(self) -> Iterator[Finding]:
        for listed in self._others[Kind.LISTED]:
            if not listed.flags & Flag.SYNCHRONISED:
                continue
            for story in self._stories.values():
                is_there = any(each.node == listed.node for each in story.of(Kind.HELD))
                if unpack(story.key).queue == listed.queue and story.has(Kind.LEFT) and not is_there:
                    yield _finding(Name.REPLICA_LOST, story.key, listed)

    def places(self, lost: Iterable[Finding]) -> dict[int, Place]:
        """Where each lost message was among the delivered ones of its publisher, see LOST."""
        delivered: dict[tuple[int, int], list[int]] = defaultdict(list)
        for story in self._stories.values():
            if story.has(Kind.DELIVER):
                key = unpack(story.key)
                delivered[key.queue, key.publisher].append(key.sequence)
        found: dict[int, Place] = {}
        for finding in lost:
            key = unpack(finding.message)
            seen = delivered.get((key.queue, key.publisher))
            if not seen or key.sequence > max(seen):
                found[finding.message] = Place.POSTFIX
            else:
                found[finding.message] = Place.PREFIX if key.sequence < min(seen) else Place.MIDDLE
        return found


def _finding(name: Name, message: int, row: Event | None) -> Finding:
    return Finding(name, message, row.process if row else 0, row.event if row else 0)
