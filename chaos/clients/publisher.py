"""A publisher that never forgets what it does not know, without its connection.

**Open loop.** Message i is *intended* at ``start + i / rate`` (later by the time that the publisher was told to hold),
whatever became of those before. A cluster that stands
still for a second so gets the messages of that second late, and each says by how much (`PUBLISH.number`): nobody takes
a pause of the cluster for a pause of the publisher. Without a rate a message is intended when the window has room, and
is never late.

**One end for each attempt.** An attempt begins with `PUBLISH` and ends with exactly one of `CONFIRM`, `REFUSE` and
`UNRESOLVED`. `RETURN` comes before one of them. What ends otherwise than by `CONFIRM`, or was returned, is published
again as the next attempt: what was cut off at once, what was refused or returned after a pause, both before new
messages. So in the end each message is confirmed, or `GIVEN_UP`; and copies made here (another attempt) can be told
from copies made by the broker.

**Answers are not believed.** What is not outstanding cannot be answered: that is a `STRAY`, by what is remembered of
the tag. An answer with ``multiple`` is one for everything outstanding up to its tag; it is a stray if there is none, or
if the tag was never published. The last `ANSWERS_REMEMBERED` tags of a channel are remembered; of an older one it is
only known that it was answered, and a further answer counts as a repetition.

**Bounds.** What is outstanding and what waits for its next attempt fit in the window together, as a new message needs
room for itself. A message has `PublisherOptions.attempts_max` attempts.
"""

from __future__ import annotations

from array import array
from collections import deque
from typing import NamedTuple

from chaos.clients.options import WINDOW_MAX, PublisherOptions
from chaos.clients.ports import Recorder
from chaos.record.kinds import Ending, Flag, Kind, Stray
from chaos.record.message_key import ATTEMPTS_MAX, MessageKey, unpack

ANSWERS_REMEMBERED = 2 * WINDOW_MAX
US_PER_S = 1_000_000
#: What a row says of an answer that is too old to be known.
FORGOTTEN = "answered before; how is not remembered"


class Publication(NamedTuple):
    """What is to be written now."""

    key: int
    #: Place of its queue in `PublisherOptions.queues`.
    place: int


class _Answers:
    """How the latest tags of a channel were answered, and what they were."""

    def __init__(self) -> None:
        self._keys = array("q", bytes(8 * ANSWERS_REMEMBERED))
        self._kinds = bytearray(ANSWERS_REMEMBERED)
        self.last_tag = 0

    def publish(self, key: int) -> int:
        """The tag of what is published now."""
        self.last_tag += 1
        self._keys[self.last_tag % ANSWERS_REMEMBERED] = key
        return self.last_tag

    def is_remembered(self, tag: int) -> bool:
        return 0 < tag <= self.last_tag < tag + ANSWERS_REMEMBERED

    def answer(self, tag: int, kind: Kind) -> None:
        if self.is_remembered(tag):
            self._kinds[tag % ANSWERS_REMEMBERED] = kind

    def of(self, tag: int) -> tuple[int, int]:
        """Key and kind of an answer that is remembered."""
        slot = tag % ANSWERS_REMEMBERED
        return self._keys[slot], self._kinds[slot]


class Publisher:
    """What one publisher has published, what it knows of it, and what follows.

    It is told what happens, with the time, records it, and is asked what to publish (`next`).
    """

    def __init__(self, options: PublisherOptions, record: Recorder) -> None:
        options.check()
        self._options = options
        self._record = record
        self._places = {queue.index: place for place, queue in enumerate(options.queues)}
        self._flags = Flag.MANDATORY * options.is_mandatory | Flag.TRANSIENT * (not options.is_persistent)
        #: Since when messages are intended, and the first of them: one for each time that it was held. None before
        #: `begin`.
        self._schedules: list[tuple[int, int]] = []
        #: Zero while there is none.
        self._channel = 0
        self._answers = _Answers()
        #: Tag -> key, ascending.
        self._outstanding: dict[int, int] = {}
        #: Outstanding key -> tag, of mandatory messages: a return names no tag.
        self._tags: dict[int, int] = {}
        #: Outstanding tags that were returned.
        self._returned: set[int] = set()
        #: (not before, key of the next attempt), by time.
        self._again: deque[tuple[int, int]] = deque()
        #: New messages so far.
        self._begun = 0
        #: Since when no new messages are published; None: they are.
        self._held_us: int | None = None
        self._is_over = False
        self.is_blocked = False
        self.published = 0
        self.confirmed = 0
        #: Attempts.
        self.refused = 0
        self.given_up = 0

    # --- what it is told

    def begin(self, now_us: int) -> None:
        """The schedule starts now, or goes on after `hold` where it was. Told again, nothing changes."""
        if not self._schedules:
            self._schedules.append((now_us, 0))
        elif self._held_us is not None:
            # What was due already is as late as it was then.
            start_us = self._due_us(self._begun) + now_us - self._held_us if self._options.rate_per_s else now_us
            self._schedules.append((start_us, self._begun))
        self._held_us = None

    def hold(self, now_us: int) -> None:
        """Publish no new messages; those that were begun are brought to their end."""
        if self._held_us is None:
            self._held_us = now_us

    def channel_opened(self, channel: int, node: int, since_us: int, now_us: int) -> None:
        assert not self._channel, "one channel after the other"
        assert not self._is_over, "nothing comes behind the end"
        self._channel = channel
        self._answers = _Answers()
        self._record.note(Kind.CHANNEL_OPEN, now_us, channel=channel, node=node, number=now_us - since_us)

    def answered(self, tag: int, is_multiple: bool, is_taken: bool, now_us: int) -> None:
        """basic.ack (``is_taken``) or basic.nack came."""
        outstanding = self._outstanding
        if not is_multiple:
            covered = [tag] if tag in outstanding else []
        elif tag:
            covered = self._up_to(tag)
        else:
            covered = list(outstanding)
        if not covered or tag > self._answers.last_tag:
            self._stray(tag, is_taken, now_us)
        kind = Kind.CONFIRM if is_taken else Kind.REFUSE
        flags = Flag.MULTIPLE if is_multiple else 0
        for each in covered:
            key = outstanding.pop(each)
            self._record.add(kind, now_us, key, self._channel, each, flags)
            self._answers.answer(each, kind)
            is_returned = each in self._returned
            self.refused += not is_taken
            if is_taken and not is_returned:
                self.confirmed += 1
            else:
                self._attempt_again(key, now_us, now_us + self._options.retry_pause_ms * 1000)
            if self._tags:
                self._tags.pop(key, None)
                self._returned.discard(each)

    def _up_to(self, tag: int) -> list[int]:
        covered = []
        for each in self._outstanding:
            if each > tag:
                break
            covered.append(each)
        return covered

    def _stray(self, tag: int, is_taken: bool, now_us: int) -> None:
        if not 0 < tag <= self._answers.last_tag:
            self._record.note(Kind.STRAY, now_us, channel=self._channel, tag=tag, number=Stray.UNKNOWN)
        elif not self._answers.is_remembered(tag):
            self._record.note(Kind.STRAY, now_us, channel=self._channel, tag=tag, number=Stray.TWICE, detail=FORGOTTEN)
        else:
            key, kind = self._answers.of(tag)
            number = Stray.TWICE if (kind == Kind.CONFIRM) == is_taken else Stray.CONTRADICTION
            self._record.note(Kind.STRAY, now_us, message=key, channel=self._channel, tag=tag, number=number)

    def returned(self, key: int, now_us: int) -> None:
        """basic.return came, with a body that has this key."""
        tag = self._tags.get(key)
        if tag is None:
            number = Stray.CONTRADICTION if self._was_published(key) else Stray.UNKNOWN
            self._record.note(Kind.STRAY, now_us, message=key, channel=self._channel, number=number)
        elif tag in self._returned:
            self._record.note(Kind.STRAY, now_us, message=key, channel=self._channel, tag=tag, number=Stray.TWICE)
        else:
            self._returned.add(tag)
            self._record.add(Kind.RETURN, now_us, key, self._channel, tag)

    def _was_published(self, key: int) -> bool:
        if not key:
            return False
        parts = unpack(key)
        is_ours = parts.publisher == self._options.publisher and parts.queue in self._places
        return is_ours and self._ordinal(parts) < self._begun

    def blocked(self, is_blocked: bool, now_us: int) -> None:
        """connection.blocked or connection.unblocked came."""
        self.is_blocked = is_blocked
        self._record.note(Kind.BLOCKED if is_blocked else Kind.UNBLOCKED, now_us, channel=self._channel)

    def channel_over(self, ending: Ending, detail: str, since_us: int, now_us: int) -> None:
        """It went between the two times, and nothing of what is outstanding will be answered."""
        assert self._channel, "a channel that is over was there"
        for tag, key in self._outstanding.items():
            self._record.note(Kind.UNRESOLVED, now_us, since_us, message=key, channel=self._channel, tag=tag)
        self._record.note(Kind.CHANNEL_OVER, now_us, since_us, channel=self._channel, number=int(ending), detail=detail)
        cut_off, self._outstanding = list(self._outstanding.values()), {}
        self._tags.clear()
        self._returned.clear()
        self._channel = 0
        self.is_blocked = False
        waiting, self._again = self._again, deque()
        for key in cut_off:
            self._attempt_again(key, now_us, now_us)
        self._again.extend(waiting)

    def connect_failed(self, node: int, detail: str, now_us: int) -> None:
        self._record.note(Kind.CONNECT_FAILED, now_us, node=node, detail=detail)

    def end(self, now_us: int) -> None:
        """No channel will be opened any more. May be told again."""
        assert not self._channel, "who ends has closed its channel"
        self._is_over = True
        for _, key in self._again:
            # The attempt that is not made was never published: it is the one before that is told of.
            self._give_up(key - 1, now_us)
        self._again.clear()

    def _attempt_again(self, key: int, now_us: int, due_us: int) -> None:
        attempt = key & ATTEMPTS_MAX
        if attempt >= self._options.attempts_max:
            self._give_up(key, now_us)
        else:
            self._again.append((due_us, key + 1))

    def _give_up(self, key: int, now_us: int) -> None:
        self.given_up += 1
        self._record.add(Kind.GIVEN_UP, now_us, key)

    # --- what it wants

    def next(self, now_us: int) -> Publication | None:
        """What is to be written now, or nothing: see `wait_us`. It is recorded as published already."""
        if not self._channel or self.is_blocked or not self._schedules:
            return None
        if self._again and self._again[0][0] <= now_us:
            key = self._again.popleft()[1]
            parts = unpack(key)
            place = self._places[parts.queue]
            due_us = self._due_us(self._ordinal(parts)) if self._options.rate_per_s else now_us
        else:
            if not self._may_begin():
                return None
            due_us = self._due_us(self._begun) if self._options.rate_per_s else now_us
            if due_us > now_us:
                return None
            sequence, place = divmod(self._begun, len(self._options.queues))
            queue = self._options.queues[place].index
            key = MessageKey(queue, self._options.publisher, sequence + 1, 1).pack()
            self._begun += 1
        tag = self._answers.publish(key)
        self._outstanding[tag] = key
        if self._options.is_mandatory:
            self._tags[key] = tag
        self.published += 1
        late_us = now_us - due_us
        if late_us > 0:
            self._record.note(Kind.PUBLISH, now_us, None, key, self._channel, tag, self._flags, number=late_us)
        else:
            self._record.add(Kind.PUBLISH, now_us, key, self._channel, tag, self._flags)
        return Publication(key, place)

    def wait_us(self, now_us: int) -> int | None:
        """Until `next` may have something without being told anything; None: not before."""
        if not self._channel or self.is_blocked or not self._schedules:
            return None
        moments = [self._again[0][0]] if self._again else []
        if self._may_begin():
            moments.append(self._due_us(self._begun) if self._options.rate_per_s else now_us)
        return max(0, min(moments) - now_us) if moments else None

    def _may_begin(self) -> bool:
        options = self._options
        return (
            self._held_us is None
            and len(self._outstanding) + len(self._again) < options.window
            and (not options.messages_max or self._begun < options.messages_max)
        )

    def _ordinal(self, parts: MessageKey) -> int:
        """Which message of this publisher it is, from 0."""
        return (parts.sequence - 1) * len(self._options.queues) + self._places[parts.queue]

    def _due_us(self, ordinal: int) -> int:
        start_us, first = next(each for each in reversed(self._schedules) if each[1] <= ordinal)
        return start_us + int((ordinal - first) * US_PER_S / self._options.rate_per_s)

    # --- how it stands

    @property
    def outstanding(self) -> int:
        """Attempts without an answer."""
        return len(self._outstanding)

    @property
    def waiting(self) -> int:
        """Messages that are to be attempted again."""
        return len(self._again)

    @property
    def is_drained(self) -> bool:
        """No new message is to come, and all that were begun have come to their end."""
        options = self._options
        has_begun_all = self._held_us is not None or (0 < options.messages_max <= self._begun)
        return has_begun_all and not self._outstanding and not self._again

    def lag_us(self, now_us: int) -> int:
        """How long ago the next new message was intended; zero if it is not due, or there is no schedule."""
        options = self._options
        if not self._schedules or self._held_us is not None or not options.rate_per_s:
            return 0
        if options.messages_max and self._begun >= options.messages_max:
            return 0
        return max(0, now_us - self._due_us(self._begun))

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        assert len(self._outstanding) + len(self._again) <= self._options.window, "the window bounds both together"
        assert self._begun == self.confirmed + self.given_up + len(self._outstanding) + len(self._again), (
            "each message is confirmed, given up, outstanding or to be attempted again"
        )
        tags = list(self._outstanding)
        assert tags == sorted(tags), "what is outstanding ascends"
        assert not tags or tags[-1] <= self._answers.last_tag, "only what was published is outstanding"
        assert self._channel or not self._outstanding, "without a channel nothing is outstanding"
        assert self._returned <= self._outstanding.keys(), "what was returned waits for its answer"
        assert not self._is_over or (not self._again and not self._channel), "nothing is left at the end"
