"""What a queue has refused (overflow ``reject-publish``), so that it is not taken for accepted when it is sent again.

A refusal may be lost with the link to the publisher's node, which sends the publish again. By then the queue may have
accepted later ones of the same origin, whose high-water mark (`node.queues.origins`) covers it: taken for a duplicate
it would be confirmed, and be nowhere. A queue process knows what it refused itself; what an earlier master has refused
nobody knows, so a replica that is promoted decides by content (`cluster.mirroring.promotion`).

**Who sends again.** A publish that has a token, until it is answered: the node of its channel keeps it for the next
session. Not one without (nobody waits for it, a master was given it once, and nobody keeps it), and nothing of a
channel that was closed. A channel is one origin.

**How much an origin may not have heard of.** Its channel sends no more than its credit ahead of what the queue has
processed, and in every drain a queue says what it has refused before it grants more. So who sends on has heard of what
was refused one credit before.

**What is forgotten** is never taken for accepted. There are bounds for one origin, for all of them together, and for
their number; beyond the first two it is merely remembered from where to where an origin was refused, and what comes
again of that stretch is decided on anew, though some of it may have been accepted. Beyond the third nothing is left of
the origin that was refused least recently, and from then on no counter is believed of any origin that is not here. The
price is that of `Origins`, when it forgets: what was accepted, not confirmed, and is sent again, is there twice, with
the flag; or is refused, if there is no room.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from node.ids import ChannelKey, MsgId, OriginId, split_msg_id

#: Of one origin: twice the credit between nodes (`node.flow.credit`), and what a blocked channel still lets through.
#: Eight bytes each.
OF_ORIGIN_MAX = 8_192
#: Of all origins together: two megabytes, thirty publishers that send into a full queue as fast as they may.
REFUSED_MAX = 262_144
#: As many as `Origins` has, a megabyte or two; more channels at a time are rare.
ORIGINS_MAX = 4_096


class _Refused:
    """What was refused of one origin: ``counters``, and some of what is above ``after``, up to ``upto``."""

    __slots__ = ("after", "channel", "counters", "upto")

    def __init__(self) -> None:
        #: The last that it was refused to.
        self.channel: ChannelKey | None = None
        #: Ascending.
        self.counters = array("Q")
        self.after = self.upto = 0

    def __bool__(self) -> bool:
        return bool(self.counters) or self.after < self.upto

    def add(self, counters: Sequence[int]) -> None:
        """``counters`` ascend; mostly they follow those that are here."""
        mine = self.counters
        if not mine or mine[-1] < counters[0]:
            mine.extend(counters)
        else:
            self.counters = array("Q", sorted({*mine, *counters}))
        if (excess := len(self.counters) - OF_ORIGIN_MAX) > 0:
            self.blur(excess)

    def blur(self, count: int) -> None:
        """Of the first so many, and what is between, remember only that some of it was refused."""
        counters = self.counters
        if not count:
            return
        before_first = counters[0] - 1
        self.after = min(self.after, before_first) if self.after < self.upto else before_first
        self.upto = max(self.upto, counters[count - 1])
        del counters[: bisect_right(counters, self.upto)]

    def take(self, counter: int) -> bool:
        """See `Refusals.take`. Those of one origin come in growing order."""
        if self.after < counter <= self.upto:
            self.after = counter
            return True
        counters = self.counters
        at = bisect_left(counters, counter)
        if at == len(counters) or counters[at] != counter:
            return False
        del counters[at]
        return True

    def forget_from(self, counter: int) -> None:
        """Whatever was refused from this one on."""
        del self.counters[bisect_left(self.counters, counter) :]
        self.upto = min(self.upto, counter - 1)


class Refusals:
    """Publishes that were refused and have not come again since. See the module text."""

    __slots__ = ("_blurred", "_count", "_exact", "_is_any_forgotten", "_origin_of")

    def __init__(self) -> None:
        #: Origins of which all refusals are here, or the last so many; the least recently refused first.
        self._exact: dict[OriginId, _Refused] = {}
        #: Those of which only a stretch is; the first to be so first.
        self._blurred: dict[OriginId, _Refused] = {}
        self._origin_of: dict[ChannelKey, OriginId] = {}
        #: Of counters in `_exact`.
        self._count = 0
        #: There was an origin of which nothing is left here.
        self._is_any_forgotten = False

    def add(self, channel: ChannelKey, msg_ids: Iterable[MsgId]) -> None:
        """These are refused to a channel; those of one origin are ascending."""
        by_origin: dict[OriginId, list[int]] = {}
        for msg_id in msg_ids:
            origin, counter = split_msg_id(msg_id)
            by_origin.setdefault(origin, []).append(counter)
        for origin, counters in by_origin.items():
            refused = self._find(origin) or self._begun(counters[0])
            self._drop(origin)
            refused.channel = channel
            refused.add(counters)
            self._exact[origin] = refused
            self._origin_of[channel] = origin
            self._count += len(refused.counters)
        self._keep_bounds()

    def take(self, msg_id: MsgId) -> bool:
        """This one comes, and is decided on anew. True if it was refused before, or may have been."""
        origin, counter = split_msg_id(msg_id)
        refused = self._find(origin)
        if refused is None:
            return self._is_any_forgotten
        before = len(refused.counters)
        is_refused = refused.take(counter)
        self._count += len(refused.counters) - before
        return is_refused

    def forget_from(self, msg_id: MsgId) -> None:
        """Nothing from this one on was accepted: all of that is new, whatever was refused."""
        origin, counter = split_msg_id(msg_id)
        refused = self._find(origin)
        if refused is not None:
            before = len(refused.counters)
            refused.forget_from(counter)
            self._count += len(refused.counters) - before

    def channel_closed(self, channel: ChannelKey) -> None:
        """It sends nothing again."""
        origin = self._origin_of.get(channel)
        if origin is not None:
            self._drop(origin)

    def _begun(self, counter: int) -> _Refused:
        """An origin is refused this one of which nothing is here; what it was refused before may be forgotten."""
        refused = _Refused()
        if self._is_any_forgotten:
            refused.upto = counter - 1
        return refused

    def _find(self, origin: OriginId) -> _Refused | None:
        refused = self._exact.get(origin)
        return self._blurred.get(origin) if refused is None else refused

    def _drop(self, origin: OriginId) -> None:
        refused = self._exact.pop(origin, None)
        if refused is None:
            refused = self._blurred.pop(origin, None)
        if refused is None:
            return
        self._count -= len(refused.counters)
        assert refused.channel is not None, "it was refused to somebody"
        if self._origin_of.get(refused.channel) == origin:
            del self._origin_of[refused.channel]

    def _keep_bounds(self) -> None:
        while self._count > REFUSED_MAX:
            origin, refused = next(iter(self._exact.items()))
            del self._exact[origin]
            self._count -= len(refused.counters)
            refused.blur(len(refused.counters))
            self._blurred[origin] = refused
        while len(self._exact) + len(self._blurred) > ORIGINS_MAX:
            origin, refused = next(iter((self._blurred or self._exact).items()))
            self._is_any_forgotten |= bool(refused)
            self._drop(origin)

    def __bool__(self) -> bool:
        return bool(self._exact or self._blurred)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if there are too many, or they are counted wrongly."""
        assert self._count <= REFUSED_MAX, "what is remembered is bounded"
        assert self._count == sum(len(each.counters) for each in self._exact.values()), "and counted"
        assert not self._exact.keys() & self._blurred.keys(), "an origin has one place"
        assert len(self._exact) + len(self._blurred) <= ORIGINS_MAX, "remembered origins are bounded"
        assert not any(each.counters for each in self._blurred.values()), "of these only a stretch is known"
        for refused in self._exact.values():
            assert len(refused.counters) <= OF_ORIGIN_MAX, "no origin takes the place of all others"
        for channel, origin in self._origin_of.items():
            refused_to = self._find(origin)
            assert refused_to is not None, "a channel is known as long as its origin is"
            assert refused_to.channel == channel, "by what it was refused"
