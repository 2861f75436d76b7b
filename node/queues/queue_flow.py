"""A queue's place in the credit flow (`node.flow.credit`): what its channels are owed, and whom it waits for itself.

Upwards there is a `Tally` per publishing channel, on whatever node that channel is. Downwards the store and the mirrors
are measured once per drain. While one of them is behind, grants are withheld; they are all due at the drain after.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from node.flow.credit import MIRROR_BYTES, FlowControl, MeasuredHop, Tally
from node.flow.stage import HopView, Stage
from node.ids import ChannelKey, NodeName
from node.queues.backing_queue import MirrorInFlight


class _MirrorHops:
    """The hops towards one mirror: its memory in messages and in bytes, and its disk."""

    __slots__ = ("applied", "durable", "transferred")

    def __init__(self, node: NodeName, flow: FlowControl) -> None:
        self.applied = MeasuredHop(f"mirror {node}", flow.between_nodes)
        self.transferred = MeasuredHop(f"mirror {node} (bytes)", MIRROR_BYTES)
        self.durable = MeasuredHop(f"mirror {node} -> store", flow.store)

    def __iter__(self) -> Iterator[MeasuredHop]:
        yield self.applied
        yield self.transferred
        yield self.durable


class QueueFlow:
    """See the top of this module."""

    __slots__ = ("_due", "_flow", "_mirrors", "_owed", "_store", "stage")

    def __init__(self, flow: FlowControl) -> None:
        self._flow = flow
        self.stage = Stage(flow)
        self._store = MeasuredHop("store", flow.store)
        self._mirrors: dict[NodeName, _MirrorHops] = {}
        self._owed: dict[ChannelKey, Tally] = {}
        #: Channels that are owed a grant at least.
        self._due: dict[ChannelKey, None] = {}

    # --- upwards ---

    def begin(self, channel: ChannelKey, more_after: int) -> None:
        """The channel begins to publish, or begins anew: nothing of it is in flight."""
        self._owed[channel] = Tally(more_after)
        self._due.pop(channel, None)

    def end(self, channel: ChannelKey) -> None:
        """The channel is gone."""
        self._owed.pop(channel, None)
        self._due.pop(channel, None)

    def processed(self, channel: ChannelKey, messages: int) -> None:
        """The queue took so many messages of the channel."""
        tally = self._owed.get(channel)
        if tally is not None:
            tally.pending += messages
            if tally.is_due:
                self._due[channel] = None

    def tally(self, channel: ChannelKey) -> Tally | None:
        """What counts for the channel now, until it begins anew."""
        return self._owed.get(channel)

    def processed_late(self, channel: ChannelKey, messages: int, tally: Tally | None) -> bool:
        """As `processed`, of messages that came when ``tally`` counted. False if the channel began anew since, or went:
        it has sent them again, or will, and pays again."""
        is_current = tally is self._owed.get(channel)
        if is_current:
            self.processed(channel, messages)
        return is_current

    def take(self, channel: ChannelKey) -> int:
        """What the channel may be granted now: 0 while the queue is blocked itself."""
        if channel not in self._due or self.stage.is_blocked:
            return 0
        del self._due[channel]
        return self._owed[channel].take()

    def take_all(self) -> list[tuple[ChannelKey, int]]:
        """What every channel may be granted now."""
        if not self._due or self.stage.is_blocked:
            return []
        return [(channel, self.take(channel)) for channel in list(self._due)]

    # --- downwards ---

    def observe(self, in_store: int, in_mirrors: Sequence[MirrorInFlight]) -> None:
        """So much is given to the store and to each mirror, and not processed there."""
        self._measure(self._store, in_store)
        for mirror in in_mirrors:
            hops = self._mirrors.get(mirror.node)
            if hops is None:
                hops = self._mirrors[mirror.node] = _MirrorHops(mirror.node, self._flow)
            self._measure(hops.applied, mirror.unapplied)
            self._measure(hops.transferred, mirror.unapplied_bytes)
            self._measure(hops.durable, mirror.undurable)
        if len(self._mirrors) > len(in_mirrors):
            known = {mirror.node for mirror in in_mirrors}
            for node in [node for node in self._mirrors if node not in known]:
                for hop in self._mirrors.pop(node):
                    self._measure(hop, 0)

    def _measure(self, hop: MeasuredHop, in_flight: int) -> None:
        if hop.measure(in_flight):
            self.stage.note(hop)

    def _hops(self) -> Iterator[MeasuredHop]:
        yield self._store
        for hops in self._mirrors.values():
            yield from hops

    def slowest(self, memory_ms: int) -> HopView | None:
        """The hop that is blocked with the least balance, or was blocked last; else the one nearest to it, if any."""
        slow = self.stage.slow_hops(memory_ms) or [hop for hop in self._hops() if hop.in_flight]
        if not slow:
            return None
        return self.stage.view(min(slow, key=lambda hop: hop.balance / hop.credit.initial), memory_ms)

    def check_invariants(self) -> None:
        self.stage.check_invariants()
        for hop in self._hops():
            hop.check_invariants()
        assert self._due.keys() == {channel for channel, tally in self._owed.items() if tally.is_due}, (
            "exactly those channels are due that are owed a grant"
        )
