"""What an index needs of a shared message store (`node.store.shared.msg_store`)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from node.errors import OpenFilesError, StorageError
from node.ids import MsgId

#: A position, or a msg_id.
_Entry = TypeVar("_Entry")
_Piece = TypeVar("_Piece")
#: Gives references back: a piece per item, or nothing for want of a descriptor, which is tried again with the next.
Releases = Iterator[OpenFilesError | None]

#: Entries whose references one step gives back: some milliseconds of reading and counting.
REFERENCES_PER_STEP = 2048
#: A step comes ten times a second: some minutes, but a stop does not wait for ever.
RELEASE_TRIES_MAX = 2_000


class SharedStore(Protocol):
    """A key-value store from msg_id to envelope that counts references. All but `contains`, `retain` and `count_anew`
    raise `StorageError`."""

    def write_batch(self, items: Sequence[tuple[MsgId, bytes]]) -> None:
        """Take one reference to each message, and write those that are new."""

    def release_many(self, msg_ids: Sequence[MsgId]) -> None:
        """Give one reference to each back."""

    def read_many(self, msg_ids: Sequence[MsgId]) -> list[bytes]:
        """Envelopes, in the given order."""

    def contains(self, msg_id: MsgId) -> bool:
        """True if the message is here."""

    def retain(self, msg_id: MsgId) -> bool:
        """Take one reference more to a message; false if it is not here."""

    def count_anew(self) -> None:
        """There are references that nobody will give back: the next start shall count."""


def release_references(stores: Mapping[bool, SharedStore], references: Iterable[tuple[bool, MsgId]]) -> None:
    """Give references back: for each whether the message is persistent, which says in which store it is, and its id."""
    msg_ids: dict[bool, list[MsgId]] = {True: [], False: []}
    for is_persistent, msg_id in references:
        msg_ids[is_persistent].append(msg_id)
    for is_persistent, chosen in msg_ids.items():
        if chosen:
            stores[is_persistent].release_many(chosen)


def release_in_pieces(
    entries: Sequence[_Entry], release: Callable[[Sequence[_Entry]], None], on_unreleased: Callable[[], None]
) -> Releases:
    """Call ``release`` with so many of the entries at a time; what it cannot read keeps its references, and
    ``on_unreleased`` hears of it. For want of descriptors it is tried again for a while."""
    for at in range(0, len(entries), REFERENCES_PER_STEP):
        yield from try_in_pieces(partial(release, entries[at : at + REFERENCES_PER_STEP]), on_unreleased)
        yield None


def try_in_pieces(
    attempt: Callable[[], None], on_failed: Callable[[], None]
) -> Generator[OpenFilesError | None, None, bool]:
    """Do something that raises `StorageError` if it has not been done; for want of descriptors it is tried again for a
    while. False if it came to nothing, which ``on_failed`` is told."""
    for _ in range(RELEASE_TRIES_MAX):
        try:
            attempt()
        except OpenFilesError as error:
            yield error
        except StorageError:
            break
        else:
            return True
    on_failed()
    return False


def each_piece(pieces: Callable[[], Iterator[_Piece]]) -> Iterator[_Piece | OpenFilesError | None]:
    """What an iterator reads that ``pieces`` makes. For want of descriptors another one is made, for a while, which
    must have the same: what was given is not given again. The other items are turns in which nothing came.

    Raises `StorageError`.
    """
    given = 0
    for left in reversed(range(RELEASE_TRIES_MAX)):
        try:
            for number, piece in enumerate(pieces()):
                if number == given:
                    given += 1
                    yield piece
                else:
                    yield None
        except OpenFilesError as error:
            if not left:
                raise
            yield error
        else:
            return
