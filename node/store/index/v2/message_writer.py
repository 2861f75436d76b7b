"""How an index of version 2 writes messages: bodies to their places first, slots last.

A small message goes to the end of the segment's ``.qs`` file, a big one to a shared store; then its slot is written
into the ``.qi`` file, and only then the entry is live. A full disk may refuse any of it: what is in its place already
is remembered (`node.store.index.v2.refused_slots`) and not written again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from zlib import crc32

from node.errors import DiskFullError, StorageError
from node.store.formats.record import (
    CRC,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_MARK,
    SEQ_ID_CRC_MASK,
    SLOT_BODY,
    SLOT_BYTES,
    SLOT_PERSISTENT,
    SLOT_SHARED,
    STATUS_PRESENT,
    slot_offset,
)
from node.store.index.live_bits import runs
from node.store.index.live_entries import LiveEntries
from node.store.index.v2.refused_slots import RefusedSlots, by_seq_id, is_persistent, is_shared
from node.store.index.v2.segment import SegmentV2
from node.store.index.v2.segment_files import SegmentFilesV2


class MessageWriter:
    """See the module text."""

    def __init__(
        self,
        files: SegmentFilesV2,
        entries: LiveEntries[SegmentV2],
        refused: RefusedSlots,
        *,
        is_durable: bool,
        embed_below_bytes: int,
    ) -> None:
        """``is_durable``: of the queue. Messages smaller than ``embed_below_bytes`` go to the ``.qs`` file."""
        self._files = files
        self._entries = entries
        self._refused = refused
        self._is_durable = is_durable
        self._embed_below_bytes = embed_below_bytes

    def write(self, segment: SegmentV2, seq_ids: Sequence[int]) -> int:
        """Write pending messages of one segment, ascending: they are live then.

        Returns how many of them are persistent. Raises `StorageError`; after a `DiskFullError` none is live.
        """
        refused = self._refused
        # Before anything is put into a shared store: it may find no descriptor.
        index_file, queue_store_file = self._files.files(segment)
        if refused.slots:
            slots, shared, transient = self._put_refused(segment, seq_ids)
        else:
            slots, shared, transient = self._put(segment, seq_ids)
        segment_entries = segment.entries
        try:
            at = 0
            for first, count in runs(seq_ids):
                end = at + count * SLOT_BYTES
                index_file.pwrite(slots[at:end], slot_offset(first, segment_entries))
                at = end
        except StorageError as error:
            # After any other error they are kept for their references only: the queue is given up.
            refused.keep(seq_ids, by_seq_id(seq_ids, slots))
            if isinstance(error, DiskFullError):
                refused.find_strays(segment.number, index_file, seq_ids)
            raise
        if refused.slots:
            refused.written(segment.number, seq_ids)
        segment.add_members(seq_ids, shared, transient)
        if len(transient) < len(seq_ids):
            embedded = (queue_store_file,) if len(shared) < len(seq_ids) else ()
            self._files.mark_dirty(segment, index_file, *embedded)
        return len(seq_ids) - len(transient)

    def _put_refused(self, segment: SegmentV2, seq_ids: Sequence[int]) -> tuple[bytes, Sequence[int], Sequence[int]]:
        """The same as `_put` where the messages of some may be in their places already."""
        known = dict(self._refused.slots)
        due = [seq_id for seq_id in seq_ids if seq_id not in known]
        if due:
            known.update(by_seq_id(due, self._put(segment, due)[0]))
        shared = [seq_id for seq_id in seq_ids if is_shared(known[seq_id])]
        transient = [seq_id for seq_id in seq_ids if not is_persistent(known[seq_id])]
        return b"".join([known[seq_id] for seq_id in seq_ids]), shared, transient

    def _put(self, segment: SegmentV2, seq_ids: Sequence[int]) -> tuple[bytes, Sequence[int], Sequence[int]]:
        """Put messages into their places. Returns their slots, which are now to be written, and which of them are in a
        shared store, and which are transient."""
        pending, envelopes = self._entries.pending, self._entries.envelopes
        embed_below_bytes, slot_mask = self._embed_below_bytes, segment.entries - 1
        offset = segment.queue_store_end
        records: list[bytes] = []
        slots: list[bytes] = []
        shared: list[int] = []
        transient: list[int] = []
        is_durable = self._is_durable
        pack_record_header, pack_body, pack_crc = RECORD_HEADER.pack, SLOT_BODY.pack, CRC.pack
        for seq_id in seq_ids:
            message = pending[seq_id]
            body_bytes = len(message.body)
            flags = SLOT_PERSISTENT
            if not (is_durable and message.persistent):
                flags = 0
                transient.append(seq_id)
            if body_bytes + len(message.properties) < embed_below_bytes:
                envelope = envelopes.get(seq_id) if envelopes else None
                if envelope is None:
                    envelope = message.envelope()
                size = len(envelope)
                key = seq_id & slot_mask
                records += (pack_record_header(size, crc32(envelope, key), key, RECORD_MARK), envelope)
                body = pack_body(STATUS_PRESENT, flags, size - body_bytes, message.msg_id, offset, body_bytes)
                offset += RECORD_HEADER_BYTES + size
            else:
                shared.append(seq_id)
                body = pack_body(STATUS_PRESENT, flags | SLOT_SHARED, 0, message.msg_id, 0, body_bytes)
            slots += (body, pack_crc(crc32(body, seq_id & SEQ_ID_CRC_MASK)))
        data = b"".join(slots)
        if records:
            _, queue_store_file = self._files.files(segment)
            queue_store_file.pwrite(b"".join(records), segment.queue_store_end)
            segment.queue_store_end = offset
        if shared:
            missing = set(shared)
            try:
                self._put_shared(missing, frozenset(transient))
            except StorageError:
                placed = [seq_id for seq_id in seq_ids if seq_id not in missing]
                self._refused.keep(placed, by_seq_id(seq_ids, data))
                raise
        return data, shared, transient

    def _put_shared(self, missing: set[int], transient: Collection[int]) -> None:
        """Hand big messages to the shared stores. What is there is taken out of ``missing``."""
        pending, envelopes = self._entries.pending, self._entries.envelopes
        for is_transient in (False, True):
            chosen = sorted([seq_id for seq_id in missing if (seq_id in transient) == is_transient])
            if chosen:
                items = [
                    (pending[seq_id].msg_id, envelopes.get(seq_id) or pending[seq_id].envelope()) for seq_id in chosen
                ]
                self._entries.stores[not is_transient].write_batch(items)
                missing.difference_update(chosen)
