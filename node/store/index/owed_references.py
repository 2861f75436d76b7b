"""What settled entries of a queue still owe to the shared stores.

A purge settles by range and looks at nothing, for reading the records of a million messages and giving as many
references back takes seconds. So it only notes what is owed, and every flush of the index gives some of it back.

What names the messages is in files, and must not go before it was read. The generations differ in how they see to that:
version 1 lets files live until nothing in them is owed (`v1.owed_records`), version 2 overwrites and deletes as usual
and copies what it needs just before (`v2.owed_slots`). Each such place is a *source*; this account knows the sources,
the pace, and what becomes of the rest when a queue is deleted.

A crash loses the account together with all references: a start counts what the files say of live entries. A clean stop
gives back all that is left; the deletion of a queue takes the account over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from node.ids import MsgId
from node.store.shared.port import Releases, SharedStore, release_in_pieces, release_references

#: References given back at a time: three or four milliseconds.
OWED_PER_FLUSH = 1024
#: For giving back everything.
ALL = 1 << 62


class OwedSource(Protocol):
    """A place where settled entries can be read that still hold their references. Two that are equal are one place."""

    @property
    def memory_bytes(self) -> int:
        """Held for nothing but this account; the same from the beginning to the end."""

    @property
    def has_owed(self) -> bool:
        """True if anything is owed."""

    def owed(self) -> Sequence[int]:
        """Entries that owe, by a number that only the source understands."""

    def read(self, entries: Sequence[int]) -> Iterable[tuple[bool, MsgId]]:
        """For each of these whether its message is persistent, and its id; one that is damaged may be missing. Raises
        `StorageError`."""

    def forget(self, entries: Sequence[int]) -> None:
        """These owe nothing any more: the first of `owed`, or any if the source says that it can."""


class OwedReferences:
    """See the module text. What reads raises `StorageError`."""

    def __init__(self, stores: Mapping[bool, SharedStore]) -> None:
        """``stores``: the shared stores, by whether a message is persistent."""
        self._stores = stores
        #: Those that owe something; the first is next.
        self._sources: dict[OwedSource, None] = {}
        #: Held by the sources.
        self.memory_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._sources)

    def knows(self, source: OwedSource) -> bool:
        """True if this source owes something."""
        return source in self._sources

    def owe(self, source: OwedSource, *, is_next: bool = False) -> None:
        """This source owes something, known or not; ``is_next``: if it was not known, it comes before the others."""
        if source in self._sources:
            return
        self.memory_bytes += source.memory_bytes
        if is_next:
            self._sources = {source: None, **self._sources}
        else:
            self._sources[source] = None

    def give_back(self, count: int | None = None) -> None:
        """Give up to ``count`` references back, or as many as one flush may."""
        left = OWED_PER_FLUSH if count is None else count
        while self._sources and left > 0:
            source = next(iter(self._sources))
            entries = source.owed()[:left]
            self.give_back_from(source, entries)
            left -= len(entries)

    def give_back_from(self, source: OwedSource, entries: Sequence[int]) -> None:
        """Give back the references of these entries of one source, before their turn."""
        self._release(source, entries)
        source.forget(entries)
        if not source.has_owed:
            self.memory_bytes -= source.memory_bytes
            del self._sources[source]

    def give_back_in_pieces(self) -> Releases:
        """Give all back, one piece per item. What cannot be read keeps its references until the store counts anew."""
        for source in self._sources:
            yield from release_in_pieces(source.owed(), partial(self._release, source), self._count_anew)

    def _release(self, source: OwedSource, entries: Sequence[int]) -> None:
        found = list(source.read(entries))
        if len(found) < len(entries):
            self._count_anew()
        release_references(self._stores, found)

    def _count_anew(self) -> None:
        # What is in the other store ends with this life.
        self._stores[True].count_anew()

    def take_all(self) -> OwedReferences:
        """Another account with all that is here; here is nothing then."""
        taken = OwedReferences(self._stores)
        taken._sources, taken.memory_bytes = self._sources, self.memory_bytes
        self._sources, self.memory_bytes = {}, 0
        return taken

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        assert self.memory_bytes == sum([source.memory_bytes for source in self._sources]), "bytes are counted"
        for source in self._sources:
            assert source.has_owed, "a source that is known owes something"
