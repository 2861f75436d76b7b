"""Which references of the shared store of persistent messages a queue still holds that is closed without its terms.

A start counts references from the files (`node.store.shared.msg_store`), so of a queue that has not been open since,
or was closed cleanly, every entry in the files holds one: nothing need be kept. A queue that was *abandoned* on a
running node, because it failed or its disk was full, is another matter: acks had their references given back, and are
in no file. Its index knows the difference when it is given up, as sets of positions: that is what stays here until it
is opened again, or deleted, in the same life.

- *Held*: the file's record of this position is the message of which the reference is held. Who opens the queue again
  takes it over; who deletes it gives it back.
- Not held: the reference was given back. Who opens the queue again, and finds an entry there, takes one more, and
  notes it: an opening that comes to nothing is followed by another.
- *Loose*: held for messages that perhaps no record names; given back when the queue is open, for that may find some.

So no reference is given back twice, and none is kept, but for what cannot be told: entries that cannot be read any
more, and messages of a write that failed half way. Their references stay until the next start counts, and so do all of
files that turn out to be damaged, of which a record may be an older one than the set speaks of.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from node.ids import MsgId
from node.store.shared.port import SharedStore

#: One entry of the files: its position, and the message that it names.
Named = tuple[int, MsgId]


class HeldReferences:
    """See the module text. An entry that a conversion has in both versions of the index has a reference in each."""

    __slots__ = ("_entries", "_held", "loose")

    def __init__(self, segment_entries: Mapping[int, int]) -> None:
        """``segment_entries``: how many a segment has, by version of the index."""
        self._entries = segment_entries
        #: Version of the index -> segment -> set of positions.
        self._held: dict[int, dict[int, int]] = {version: {} for version in segment_entries}
        self.loose: list[MsgId] = []

    def hold(self, version: int, segment: int, bits: int) -> None:
        """These entries of a segment hold their references."""
        if bits:
            segments = self._held[version]
            segments[segment] = segments.get(segment, 0) | bits

    def holds(self, version: int, seq_id: int) -> bool:
        """True if the entry at this position does."""
        segment, at = divmod(seq_id, self._entries[version])
        return bool(self._held[version].get(segment, 0) >> at & 1)

    def add(self, version: int, seq_id: int) -> None:
        """The entry at this position has taken a reference."""
        segment, at = divmod(seq_id, self._entries[version])
        self.hold(version, segment, 1 << at)

    def distrust(self) -> None:
        """A record may be an older one of its position: nothing that was found so is held."""
        for segments in self._held.values():
            segments.clear()

    def take(self, version: int, named: Sequence[Named]) -> list[MsgId]:
        """Messages of those of these entries that hold a reference. It is the caller's then, to be given back."""
        taken: list[MsgId] = []
        for seq_id, msg_id in named:
            if self.holds(version, seq_id):
                segment, at = divmod(seq_id, self._entries[version])
                self._held[version][segment] ^= 1 << at
                taken.append(msg_id)
        return taken


def takes_over(
    held: HeldReferences | None,
    unfound: Collection[MsgId],
    version: int,
    seq_id: int,
    msg_id: MsgId,
    store: SharedStore,
) -> bool:
    """Whether an entry that was found has its message and a reference to it, perhaps from now on. ``held`` ``None``: it
    has one if the message is there, and is none of those that were ``unfound`` when references were counted: what is
    there of these is another queue's."""
    if held is None:
        return msg_id not in unfound and store.contains(msg_id)
    if held.holds(version, seq_id):
        return store.contains(msg_id)
    if not store.retain(msg_id):
        return False
    held.add(version, seq_id)
    return True
