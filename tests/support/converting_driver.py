"""`tests.support.index_driver` for an index that is converted from one version to the other while it works."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence

from node.ids import MsgId
from node.store.index.conversion import ConvertingIndex, split_terms
from node.store.index.index import QueueIndex
from tests.support.index_driver import DIRECTORY, QUEUE_ID, IndexDriver, IndexKind, random_steps


class ConvertingDriver(IndexDriver):
    """Begins with the old version; `begin` and all later starts convert."""

    def __init__(self, old: IndexKind, new: IndexKind) -> None:
        super().__init__(old)
        self.new_kind = new
        self.old: QueueIndex = self.index
        self.new: QueueIndex | None = None
        #: Where the ack of a settled position goes; none if it goes to both.
        self._ack_goes_to_new: dict[int, bool] = {}

    @property
    def overwrites(self) -> bool:
        return True

    def begin(self) -> None:
        """The policy changes."""
        self.flush()
        self.old = self.index
        self.new = self.new_kind.make(
            self.disk, self.group_commit, self.persistent_store, self.transient_store, self.config
        )
        self._wrap()

    def _wrap(self) -> None:
        assert self.new is not None
        self.index = ConvertingIndex(
            self.old,
            self.new,
            disk=self.disk,
            directory=DIRECTORY,
            queue_id=QUEUE_ID,
            group_commit=self.group_commit,
            next_seq_id=self.next_seq_id,
        )

    @property
    def converting(self) -> ConvertingIndex:
        assert isinstance(self.index, ConvertingIndex)
        return self.index

    def step(self, count_max: int) -> bool:
        self.flush()
        return self.converting.step(count_max)

    def finish(self) -> None:
        """Convert to the end."""
        steps = 0
        while self.step(3):
            self.sync()
            steps += 1
            assert steps < 1000, "a conversion ends"

    def references_of(self, seq_id: int) -> int:
        return 2 if isinstance(self.index, ConvertingIndex) and self.index.is_in_both(seq_id) else 1

    def _note_acks(self, seq_ids: Collection[int]) -> None:
        for seq_id in seq_ids:
            self._ack_goes_to_new.pop(seq_id, None)
            if isinstance(self.index, ConvertingIndex) and not self.index.is_in_both(seq_id):
                assert self.new is not None
                self._ack_goes_to_new[seq_id] = self.new.is_live(seq_id)

    def settle(self, seq_ids: Sequence[int]) -> None:
        self._note_acks(seq_ids)
        super().settle(seq_ids)

    def settle_range(self, first: int, end: int, keep: Collection[int] = ()) -> None:
        self._note_acks([seq_id for seq_id in self.live if first <= seq_id < end and seq_id not in keep])
        super().settle_range(first, end, keep)

    def ack_path(self, seq_id: int) -> str:
        if self.new is None:
            return super().ack_path(seq_id)
        goes_to_new = self._ack_goes_to_new.pop(seq_id, None)
        if goes_to_new is None:
            return f"{DIRECTORY}/nowhere"
        if goes_to_new:
            return self.new_kind.ack_path(self.new, seq_id)
        return self.kind.ack_path(self.old, seq_id)

    def count_references(self) -> Counter[MsgId]:
        references = self.kind.count_references(self.disk, DIRECTORY)
        references.update(self.new_kind.count_references(self.disk, DIRECTORY))
        return references

    def open(self, terms: bytes | None) -> None:
        if self.new is None:
            super().open(terms)
            self.old = self.index
            return
        stores = (self.persistent_store, self.transient_store)
        self.old = self.kind.make(self.disk, self.group_commit, *stores, self.config)
        self.new = self.new_kind.make(self.disk, self.group_commit, *stores, self.config)
        old_terms, new_terms = (None, None) if terms is None else split_terms(terms)
        if terms is None or old_terms is not None:
            self.kind.recover(self.old, self.report, old_terms)
        self.new_kind.recover(self.new, self.report, new_terms)
        self._wrap()
        # Entries in both were counted twice.
        self.report.messages = self.index.count_live(0, 1 << 40)


def fill(driver: ConvertingDriver, count: int) -> None:
    """Enough for a conversion that takes its time."""
    for _ in range(count // 10):
        driver.publish(6)
        driver.publish(4, big=True)
        driver.sync()


def convert_randomly(driver: ConvertingDriver, rng: random.Random, steps: int) -> None:
    """Work as before, with the conversion beginning after a third, and its steps in between."""
    for number in range(steps):
        if number == steps // 6:
            fill(driver, 40)
            driver.begin()
        random_steps(driver, rng, 1)
        if driver.new is not None and rng.random() < 0.4:
            driver.step(rng.randint(1, 2))
