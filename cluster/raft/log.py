"""The replicated log as one node sees it in memory.

```
   base           snapshot      handed_out      last
    |  retained      |    applied <= stable <= handed_out
----+----------------+------------------+---------+
    compacted        |   entries ...              |
```

``base``        the entry before the first one kept (index and term known, content compacted away).
``snapshot``    newest snapshot; its index is at or above ``base``: the entries between serve slow followers.
``handed_out``  entries up to here were given to the shell to be written.
``stable``      entries up to here are durable on this node.
``commit``      entries up to here are decided by the cluster; may exceed ``stable``.
``applied``     entries up to here were given to the state machine; never above ``commit`` or ``stable``.

A truncation while writes are on their way is the delicate case: the confirmation of an older write must not
make an entry count as stable that was written, cut off, and appended again. `note_stable` therefore ignores the
confirmations of all `Ready` objects handed out before the one that carries the truncation; that one, which
always carries entries as well, covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cluster.raft.messages import Entry, EntryKind, Snapshot, Voter
from node.ids import NodeName

#: Entries kept behind a snapshot, so that a follower slower by that many needs no snapshot. Metadata commands are
#: rare (declares, failovers), so this is minutes of history and at most some MB.
RETAINED_ENTRIES = 1000


class _Configuration(NamedTuple):
    """Who votes, by the entry ``(made_at, made_in_term)``."""

    made_at: int
    made_in_term: int
    voters: tuple[Voter, ...]

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Configuration:
        """Where the snapshot does not say which entry it was, its end stands for it, which is not before."""
        if snapshot.configuration_index:
            return cls(snapshot.configuration_index, snapshot.configuration_term, snapshot.configuration)
        return cls(snapshot.index, snapshot.term, snapshot.configuration)


class RaftLog:
    """Entries, their durability and the configuration they imply."""

    __slots__ = (
        "_configurations",
        "_cut_at_ready",
        "_entries",
        "applied",
        "base_index",
        "base_term",
        "commit",
        "handed_out",
        "snapshot",
        "stable",
        "voters",
    )

    def __init__(self, snapshot: Snapshot, entries: Iterable[Entry] = (), commit: int = 0) -> None:
        """A log as read from disk. Entries at or below ``snapshot.index`` are dropped: slow followers get the
        snapshot in their place."""
        kept = list(entries)
        self.snapshot = snapshot
        self.base_index = snapshot.index
        self.base_term = snapshot.term
        if kept and kept[0].index <= snapshot.index:
            kept = [entry for entry in kept if entry.index > snapshot.index]
        self._entries = kept
        self.handed_out = self.stable = self.last_index
        self.commit = max(snapshot.index, min(commit, self.last_index))
        self.applied = snapshot.index
        #: Ascending; the first is that of the entry ``base_index``, and may be much older.
        self._configurations = [_Configuration.of(snapshot)]
        #: Names of those who vote: the newest configuration in the log, committed or not.
        self.voters: tuple[NodeName, ...] = snapshot.voters
        #: Number of the `Ready` that carries the newest truncation; confirmations of earlier ones say nothing.
        self._cut_at_ready = 0
        self._follow_configuration(kept)

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    @property
    def quorum(self) -> int:
        """How many voters are a majority."""
        return len(self.voters) // 2 + 1

    @property
    def configuration_index(self) -> int:
        """Index of the entry that made `voters`."""
        return self._configurations[-1].made_at

    @property
    def configuration_term(self) -> int:
        """Term of that entry."""
        return self._configurations[-1].made_in_term

    @property
    def configuration(self) -> tuple[Voter, ...]:
        """`voters` with their identities."""
        return self._configurations[-1].voters

    def identity_of(self, voter: NodeName) -> str | None:
        """Under which identity it votes; empty if any will do (see `Voter`), ``None`` if it does not vote."""
        return next((identity for name, identity in self.configuration if name == voter), None)

    def may_lead(self, node: NodeName) -> bool:
        """It votes, or was removed by an entry of which it does not know that it is committed: then perhaps nobody else
        has that, and whoever has less cannot be elected without its vote."""
        if node in self.voters:
            return True
        return self.configuration_index > self.commit and any(
            node == voter.name for voter in self._configuration_at(self.configuration_index - 1).voters
        )

    def _configuration_at(self, index: int) -> _Configuration:
        """Who votes as of the entry ``index``."""
        return next(step for step in reversed(self._configurations) if step.made_at <= index)

    def term_at(self, index: int) -> int | None:
        """Term of an entry, ``None`` if it was compacted away or does not exist."""
        if index == self.base_index:
            return self.base_term
        if self.base_index < index <= self.last_index:
            return self._entries[index - self.base_index - 1].term
        return None

    def matches(self, index: int, term: int) -> bool:
        """True if the log has the entry ``(index, term)``."""
        return self.term_at(index) == term

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """True if a log that ends like that may lead this one (Raft paper, 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def slice(self, first: int, end: int, max_bytes: int) -> tuple[Entry, ...]:
        """Entries from ``first`` up to ``end`` (exclusive), at least one if there is one, about ``max_bytes``."""
        assert first > self.base_index, "compacted entries cannot be read"
        taken = self._entries[first - self.base_index - 1 : max(first, end) - self.base_index - 1]
        size = 0
        for count, entry in enumerate(taken):
            size += len(entry.payload)
            if size > max_bytes and count:
                return tuple(taken[:count])
        return tuple(taken)

    def first_index_of_term(self, index: int) -> int:
        """First index in the run of entries with the term of ``index``, not below the first entry kept."""
        term = self.term_at(index)
        while index > self.base_index + 1 and self.term_at(index - 1) == term:
            index -= 1
        return index

    def conflict_at(self, index: int) -> tuple[int, int]:
        """Why an entry before ``index`` cannot follow: (first index of the term we have there, that term).

        The term is 0 if the log ends before ``index``; the index is then the one behind the end.
        """
        term = self.term_at(index)
        if term is None:
            return self.last_index + 1, 0
        return self.first_index_of_term(index), term

    def possible_agreement(self, refused_index: int, conflict_index: int, conflict_term: int) -> int:
        """Highest index at which the log of a follower that answered `conflict_at` may still equal this one.

        Below ``refused_index`` always. It lies before the run of the follower's term, or inside it at our last entry
        of a term that is not higher.
        """
        index = min(conflict_index, refused_index) - 1
        if conflict_term == 0:
            return index
        ours = min(refused_index - 1, self.last_index)
        while ours > self.base_index and (self.term_at(ours) or 0) > conflict_term:
            ours -= 1
        return max(index, ours)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries after the last one (the leader's way)."""
        assert entries[0].index == self.last_index + 1, "a log has no holes"
        self._entries.extend(entries)
        self._follow_configuration(entries)

    def merge(self, entries: Sequence[Entry], next_ready: int) -> None:
        """Take entries from the leader; the first that differs from ours cuts off our tail (the follower's way).

        ``next_ready`` is the number of the `Ready` that will carry the truncation to the disk.
        """
        for position, entry in enumerate(entries):
            if self.matches(entry.index, entry.term):
                continue
            if entry.index <= self.last_index:
                self._truncate_to(entry.index - 1, next_ready)
            self.append(entries[position:])
            return

    def _truncate_to(self, index: int, next_ready: int) -> None:
        assert index >= self.commit, "committed entries are never cut off"
        del self._entries[index - self.base_index :]
        while len(self._configurations) > 1 and self._configurations[-1].made_at > index:
            self._configurations.pop()
        self._take_newest_configuration()
        self.handed_out = min(self.handed_out, index)
        self.stable = min(self.stable, index)
        self._cut_at_ready = next_ready

    def _follow_configuration(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.kind not in (EntryKind.ADD_VOTER, EntryKind.REMOVE_VOTER):
                continue
            changed = Voter.unpack(entry.payload)
            configuration = tuple(voter for voter in self.configuration if voter.name != changed.name)
            if entry.kind is EntryKind.ADD_VOTER:
                configuration = (*configuration, changed)
            self._configurations.append(_Configuration(entry.index, entry.term, configuration))
            self._take_newest_configuration()

    def _take_newest_configuration(self) -> None:
        self.voters = tuple(voter.name for voter in self.configuration)

    def take_unwritten(self) -> tuple[Entry, ...]:
        """Entries not yet given to the shell; they count as given from now on."""
        unwritten = tuple(self._entries[self.handed_out - self.base_index :])
        self.handed_out = self.last_index
        return unwritten

    def note_stable(self, index: int, ready_number: int) -> None:
        """The write of a `Ready` that ended with ``index`` is durable."""
        if ready_number < self._cut_at_ready:
            return
        self.stable = max(self.stable, min(index, self.handed_out))

    def take_committed(self) -> tuple[Entry, ...]:
        """Entries to apply now: decided by the cluster and durable here. They count as applied from now on."""
        end = min(self.commit, self.stable)
        entries = tuple(self._entries[self.applied - self.base_index : end - self.base_index])
        self.applied = end
        return entries

    def reset_to(self, snapshot: Snapshot, next_ready: int) -> None:
        """Forget everything and start from a snapshot received from the leader."""
        assert snapshot.index > self.commit, "a snapshot never takes back what is committed"
        self.snapshot = snapshot
        self.base_index, self.base_term = snapshot.index, snapshot.term
        self._entries = []
        self._configurations = [_Configuration.of(snapshot)]
        self._take_newest_configuration()
        self.commit = self.applied = self.handed_out = self.stable = snapshot.index
        self._cut_at_ready = next_ready

    def snapshot_of(self, index: int, data: bytes, *, says_configuration: bool = True) -> Snapshot:
        """``data`` is the state after the applied entry ``index``.

        ``says_configuration``: which entry made the configuration is to be in it; earlier releases cannot read such a
        one (`cluster.raft.storage`).
        """
        assert self.snapshot.index < index <= self.applied, "only what is applied can be in a snapshot"
        term = self.term_at(index)
        assert term is not None, "an applied entry above the last snapshot is still in the log"
        made_index, made_term, voters = self._configuration_at(index)
        made_by = (made_index, made_term) if says_configuration else (0, 0)
        names = tuple(voter.name for voter in voters)
        identities = tuple(voter.identity for voter in voters)
        return Snapshot(index, term, names, data, identities if any(identities) else (), *made_by)

    def compact(self, snapshot: Snapshot, retained_entries: int = RETAINED_ENTRIES) -> None:
        """Replace the prefix by a snapshot of this log (`snapshot_of`), keep ``retained_entries`` before its end."""
        index = snapshot.index
        assert self.snapshot.index < index <= self.applied, "only what is applied can be in a snapshot"
        self.snapshot = snapshot
        new_base = max(self.base_index, index - retained_entries)
        base_term = self.term_at(new_base)
        assert base_term is not None, "the new base is an entry we have"
        del self._entries[: new_base - self.base_index]
        self.base_index, self.base_term = new_base, base_term
        current = self._configuration_at(new_base)
        self._configurations = [current, *(step for step in self._configurations if step.made_at > new_base)]

    def check_invariants(self) -> None:
        assert self.base_index <= self.snapshot.index, "what is compacted is in the snapshot"
        assert self.snapshot.index <= self.last_index, "a snapshot is of entries that exist"
        assert self.applied <= self.commit, "only what is committed is applied"
        assert self.applied <= self.stable, "only what is durable here is applied"
        assert self.stable <= self.handed_out <= self.last_index, "durable comes after written"
        assert self.commit <= self.last_index, "nothing unknown counts as committed"
        assert self.voters == tuple(voter.name for voter in self.configuration), "the newest configuration counts"
        assert len(set(self.voters)) == len(self.voters), "nobody votes under two identities"
        made_at = [step.made_at for step in self._configurations]
        assert made_at[0] <= self.base_index, "who votes as of the first entry is known"
        assert made_at == sorted(set(made_at)), "each configuration follows from an entry of its own"
        terms = [entry.term for entry in self._entries]
        assert terms == sorted(terms), "terms never fall along the log"
        indexes = [entry.index for entry in self._entries]
        assert indexes == list(range(self.base_index + 1, self.last_index + 1)), "a log has no holes"
