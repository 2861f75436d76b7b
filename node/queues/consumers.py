"""The consumers of one queue, and whose turn it is.

A consumer can take messages while it has *capacity*: room in its prefetch and in its delivery window. The window is one
of messages and one of bytes; what counts against it is *in flight*, in shares as they were handed out: the bytes of a
share are free again when all of it has been written. (So whoever says what was written need not know sizes.) Those with
capacity stand in the *rotation*, one line per priority. The line with the highest priority is served first; in a line
everybody gets one message per turn. With a single active consumer, only that one may stand in the rotation.

A `Turn` is the unit of dispatch: some consumers from the front of one line and a number of rounds, so that the queue
fetches ``rounds * len(consumers)`` messages at once and deals them out like cards. Taking a turn costs as much as
the consumers in it, and each of them receives a message; so dispatch costs O(deliveries) however many wait.

A consumer on a node whose link is full is passed over when it would come up: it is set *aside*, and back in front of
its line when there is room again. Meanwhile the others are served, those of lower lines, too, as if its prefetch were
used up; but with a single active consumer nobody is served in its place.

There may be ten thousand of them, and all may leave in one turn of the loop. So whoever stands somewhere is found there
without a search, and so is the one who is active next.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate

from node.ids import ChannelKey, NodeName
from node.queues.backing_queue import Delivery, Publication
from node.queues.events import DELIVERY_WINDOW_BYTES, ConsumerSpec


def never_full(_node: NodeName) -> bool:
    """Every consumer can be sent to, whatever waits."""
    return False


class Consumer:
    """One consumer of the queue."""

    __slots__ = (
        "channel",
        "in_flight",
        "in_flight_bytes",
        "in_rotation",
        "is_aside",
        "is_cancelled",
        "prefetch_count",
        "spec",
        "unacked",
        "window",
    )

    def __init__(self, channel: ChannelKey, spec: ConsumerSpec) -> None:
        self.channel = channel
        self.spec = spec
        #: 0 = no limit; always 0 for a consumer without acks.
        self.prefetch_count = 0 if spec.no_ack else spec.prefetch_count
        #: Deliveries not yet settled.
        self.unacked = 0
        #: Deliveries that may still be sent before the channel grants more.
        self.window = spec.window_messages
        #: Shares that were not written yet, in order: messages, and bytes of bodies.
        self.in_flight: deque[tuple[int, int]] = deque()
        self.in_flight_bytes = 0
        #: Kept by `ConsumerSet`: stands in a line and has capacity, or is set aside from there.
        self.in_rotation = False
        self.is_aside = False
        #: Removed; it may still hold unacked deliveries.
        self.is_cancelled = False

    @property
    def capacity(self) -> int:
        """Messages that this consumer can take now."""
        if self.in_flight_bytes >= DELIVERY_WINDOW_BYTES:
            return 0
        if self.prefetch_count:
            return min(self.prefetch_count - self.unacked, self.window)
        return self.window

    def handed_out(self, messages: int, size_bytes: int) -> None:
        """A share is on its way."""
        self.window -= messages
        self.in_flight.append((messages, size_bytes))
        self.in_flight_bytes += size_bytes

    def written(self, messages: int) -> None:
        """So many of those in flight, the first ones, were written to the socket."""
        in_flight = self.in_flight
        while messages and in_flight:
            share, size_bytes = in_flight[0]
            if messages < share:
                in_flight[0] = (share - messages, size_bytes)
                self.window += messages
                return
            in_flight.popleft()
            self.window += share
            self.in_flight_bytes -= size_bytes
            messages -= share


#: In order; from anywhere in it somebody can leave. (A plain dict forgets slowly what was at its front.)
_Line = OrderedDict[Consumer, None]


class Turn:
    """Consumers of one line and one ack mode, each to get up to ``rounds`` messages, dealt one by one, until these make
    ``bytes_max`` bytes."""

    __slots__ = ("bytes_max", "consumers", "no_ack", "rounds")

    def __init__(self, consumers: list[Consumer], rounds: int, no_ack: bool, bytes_max: int) -> None:
        self.consumers = consumers
        self.rounds = rounds
        self.no_ack = no_ack
        #: Even if they all went to one of the consumers they would not exceed its window, but for the last message.
        self.bytes_max = bytes_max

    @property
    def messages(self) -> int:
        return self.rounds * len(self.consumers)


class ConsumerSet:
    """See the top of this module."""

    def __init__(self, single_active: bool, is_full: Callable[[NodeName], bool] = never_full) -> None:
        """``is_full``: nothing can be sent to the consumers of this node now; false for the node itself."""
        self._single_active = single_active
        self._is_full = is_full
        #: All consumers, in the order they came.
        self._all: dict[tuple[ChannelKey, str], Consumer] = {}
        #: Lines of the rotation by negated priority; an empty line may stay until the next `take_turn`.
        self._lines: dict[int, _Line] = {}
        #: Keys of ``_lines``, ascending: the highest priority first.
        self._order: list[int] = []
        #: By node, in the order in which they came up; no node without.
        self._aside: dict[NodeName, _Line] = {}
        #: The one consumer that is served, if only one may be.
        self.active: Consumer | None = None
        #: The others then, by negated priority, oldest first; no priority without.
        self._inactive: dict[int, _Line] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._all.values())

    @property
    def full_nodes(self) -> Collection[NodeName]:
        """Of the consumers that are set aside."""
        return self._aside.keys()

    def find(self, channel: ChannelKey, consumer_tag: str) -> Consumer | None:
        return self._all.get((channel, consumer_tag))

    def has_exclusive(self) -> bool:
        # An exclusive consumer is alone.
        return len(self._all) == 1 and next(iter(self._all.values())).spec.exclusive

    def add(self, consumer: Consumer) -> None:
        key = (consumer.channel, consumer.spec.consumer_tag)
        assert key not in self._all, "a consumer tag is used once at a time in a channel"
        self._all[key] = consumer
        if self._single_active and self.active is not None:
            self._inactive.setdefault(-consumer.spec.priority, OrderedDict())[consumer] = None
            return
        if self._single_active:
            self.active = consumer
        self.refresh(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Take a consumer out; with a single active consumer the next in priority and age takes over."""
        del self._all[consumer.channel, consumer.spec.consumer_tag]
        consumer.is_cancelled = True
        if consumer.in_rotation:
            consumer.in_rotation = False
            self._take_out(consumer)
        if not self._single_active:
            return
        if consumer is not self.active:
            self._take_inactive(consumer)
        elif (line := self._inactive.get(min(self._inactive, default=0))) is None:
            self.active = None
        else:
            self.active = next(iter(line))
            self._take_inactive(self.active)
            self.refresh(self.active)

    def _take_inactive(self, consumer: Consumer) -> None:
        """It is active, or gone."""
        key = -consumer.spec.priority
        del self._inactive[key][consumer]
        if not self._inactive[key]:
            del self._inactive[key]

    def _take_out(self, consumer: Consumer) -> None:
        """Of where it stands."""
        if not consumer.is_aside:
            del self._lines[-consumer.spec.priority][consumer]
            return
        consumer.is_aside = False
        node = consumer.channel.node
        del self._aside[node][consumer]
        if not self._aside[node]:
            del self._aside[node]

    def refresh(self, consumer: Consumer) -> None:
        """The consumer may have gained capacity: put it at the end of its line unless it stands there."""
        if consumer.in_rotation or consumer.is_cancelled or consumer.capacity <= 0:
            return
        if self._single_active and consumer is not self.active:
            return
        consumer.in_rotation = True
        self._line(consumer.spec.priority)[consumer] = None

    def _line(self, priority: int) -> _Line:
        line = self._lines.get(-priority)
        if line is None:
            line = self._lines[-priority] = OrderedDict()
            insort(self._order, -priority)
        return line

    def _take_back(self) -> None:
        """Those that were set aside, if there is room for them: to the front, where they stood."""
        for node in [node for node in self._aside if not self._is_full(node)]:
            for consumer in reversed(self._aside.pop(node)):
                consumer.is_aside = False
                _put_in_front(self._line(consumer.spec.priority), consumer)

    def _set_aside(self, consumer: Consumer) -> None:
        consumer.is_aside = True
        self._aside.setdefault(consumer.channel.node, OrderedDict())[consumer] = None

    def _first_line(self) -> _Line | None:
        """In front of which is somebody who can be sent to."""
        while self._order:
            line = self._lines[self._order[0]]
            while line and self._is_full(next(iter(line)).channel.node):
                self._set_aside(line.popitem(last=False)[0])
            if line:
                return line
            del self._lines[self._order.pop(0)]
        return None

    def take_turn(self, messages: int) -> Turn | None:
        """The next turn for up to ``messages`` (> 0) messages; ``None`` if nobody can take one.

        Its consumers are out of the rotation until `end_turn`.
        """
        if self._aside:
            self._take_back()
        line = self._first_line()
        if line is None:
            return None
        first, _ = line.popitem(last=False)
        no_ack = first.spec.no_ack
        consumers = [first]
        node = first.channel.node
        while line and len(consumers) < messages and next(iter(line)).spec.no_ack == no_ack:
            following, _ = line.popitem(last=False)
            if following.channel.node != node and self._is_full(following.channel.node):
                self._set_aside(following)
            else:
                consumers.append(following)
        rounds = messages // len(consumers)
        if line and next(iter(line)).spec.no_ack != no_ack:
            rounds = 1  # the others of this line are to have their turn before these have a second one
        in_flight_bytes = 0
        for consumer in consumers:
            rounds = min(rounds, consumer.capacity)
            in_flight_bytes = max(in_flight_bytes, consumer.in_flight_bytes)
        return Turn(consumers, rounds, no_ack, DELIVERY_WINDOW_BYTES - in_flight_bytes)

    def end_turn(self, turn: Turn, served: int) -> None:
        """Put the consumers of a turn back, the first ``served`` at the end of the line, the others in front."""
        consumers = turn.consumers
        line = self._lines[-consumers[0].spec.priority]
        for consumer in consumers[:served]:
            if consumer.capacity > 0:
                line[consumer] = None
            else:
                consumer.in_rotation = False
        for consumer in reversed(consumers[served:]):
            _put_in_front(line, consumer)

    def check_invariants(self) -> None:
        standing: list[Consumer] = []
        for key, line in self._lines.items():
            for consumer in line:
                assert consumer.spec.priority == -key, "a consumer stands in the line of its priority"
                assert not consumer.is_aside, "who stands in a line is not set aside"
                standing.append(consumer)
        for node, aside in self._aside.items():
            assert aside, "a node is listed for somebody"
            assert all(consumer.is_aside and consumer.channel.node == node for consumer in aside), "each has its place"
        standing += [consumer for aside in self._aside.values() for consumer in aside]
        assert sorted(self._order) == self._order == sorted(self._lines), "the order lists the lines"
        assert len(set(map(id, standing))) == len(standing), "nobody stands twice"
        if self._single_active:
            assert (self.active is None) == (not self._all), "somebody is active if anybody is there"
            inactive = {consumer for line in self._inactive.values() for consumer in line}
            assert inactive == set(self._all.values()) - {self.active}, "all others may be next"
            assert all(self._inactive.values()), "a priority is listed for somebody"
        for consumer in self._all.values():
            may_be_served = not self._single_active or consumer is self.active
            expected = may_be_served and consumer.capacity > 0
            assert consumer.in_rotation == expected, "in the rotation means: may be served and has capacity"
            assert any(consumer is each for each in standing) == expected, "the flag says where it stands"
            in_flight = sum([messages for messages, _ in consumer.in_flight])
            assert in_flight == consumer.spec.window_messages - consumer.window, "the window is what is not in flight"
            assert consumer.in_flight_bytes == sum([size for _, size in consumer.in_flight]), "and so for bytes"
            assert consumer.window >= 0, "the window is not overdrawn"
            if consumer.prefetch_count:
                assert consumer.unacked <= consumer.prefetch_count, "prefetch is never exceeded"
        assert len(standing) == sum(consumer.in_rotation for consumer in self._all.values()), "only the living stand"


def _put_in_front(line: _Line, consumer: Consumer) -> None:
    line[consumer] = None
    line.move_to_end(consumer, last=False)


def deal(deliveries: Sequence[Delivery], consumers: int, position: int) -> Sequence[Delivery]:
    """The deliveries for the consumer at ``position`` when they are dealt out one by one."""
    return deliveries if consumers == 1 else deliveries[position::consumers]


def until_bytes(publications: list[Publication], bytes_max: int) -> list[Publication]:
    """The first of them, up to the one that makes it ``bytes_max`` bytes of bodies."""
    ends = list(accumulate([len(publication[0].body) for publication in publications]))
    return publications[: bisect_left(ends, bytes_max) + 1]
