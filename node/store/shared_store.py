"""What an index needs of a shared message store (`node.store.msg_store`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from node.ids import MsgId


class SharedStore(Protocol):
    """A key-value store from msg_id to envelope that counts references. All but `contains` raise `StorageError`."""

    def write_batch(self, items: Sequence[tuple[MsgId, bytes]]) -> None:
        """Take one reference to each message, and write those that are new."""

    def release_many(self, msg_ids: Sequence[MsgId]) -> None:
        """Give one reference to each back."""

    def read_many(self, msg_ids: Sequence[MsgId]) -> list[bytes]:
        """Envelopes, in the given order."""

    def contains(self, msg_id: MsgId) -> bool:
        """True if the message is here."""
