"""What became of a queue's masters and mirrors, from what its nodes say of it again and again.

A node says what it knows: it may be late, and one that was cut off may say what was so long ago. What is recorded has
to hold all the same, since everything that is excused is excused by it:

- *There was a promotion* when any node names a life of the master that nobody has named before
  (`QueueView.incarnation`, or its epoch). It was between the moment at which that node was last asked and named another
  one, less `LAG_US` for what it may not have heard yet, and the moment of its answer. So a node that did not answer for
  long makes the interval long, and never too short.
- An epoch below one that was named is an old life, however late it is told.

Without an epoch, lives that began and ended between two looks are not seen. With one they are counted.

*Who followed* is compared with the mirrors that were known of the master before, and with which of their nodes run: it
is as it was seen from outside (`chaos.record.kinds.Heir`), and proves nothing.

What *is* so, for whoever has to choose a node now, is what most of those say that answer; of two opinions that as many
have, the newer.
"""

from __future__ import annotations

from collections.abc import Callable

from chaos.clients.ports import Recorder
from chaos.record.kinds import Heir, Kind
from chaos.targets.target import QueueView

#: What a node may lag behind the majority that decides: several heartbeats.
LAG_US = 1_000_000


class MasterWatch:
    """Of one queue: records what is new, and knows the latest view of it."""

    def __init__(
        self, queue: int, record: Recorder, began_us: int, is_running: Callable[[int], bool] = lambda _: True
    ) -> None:
        """``queue``: its index in the run. Nobody has looked before ``began_us``. ``is_running`` tells of nodes."""
        self._is_running = is_running
        self._queue = queue
        self._record = record
        self._began_us = began_us
        #: Lives by the order in which they were first named, from 1.
        self._lives: dict[str, int] = {}
        self._epoch: int | None = None
        #: By node: when it had been asked, the last time that it named a life.
        self._named_us: dict[int, int] = {}
        #: What those say that answer.
        self._said: dict[int, QueueView] = {}
        self._compared_us = began_us
        self._compared: QueueView | None = None
        #: The last that had a master.
        self._served: QueueView | None = None
        #: None while nobody says anything.
        self.current: QueueView | None = None
        #: Promotions after the first master.
        self.failovers = 0

    def said(self, node: int, view: QueueView, asked_us: int, now_us: int) -> None:
        """A node, asked at ``asked_us``, has answered now."""
        # The latest word comes last.
        self._said.pop(node, None)
        self._said[node] = view
        life = _life(view)
        if life and life not in self._lives:
            self._begin_life(node, life, view, now_us)
        if life:
            self._named_us[node] = asked_us
        self.current = self._most_common()
        if self.current.master is not None:
            self._served = self.current
        self._compare(self.current, now_us)
        self._compared, self._compared_us = self.current, asked_us

    def silent(self, node: int) -> None:
        """It does not answer, or does not know of the queue."""
        self._said.pop(node, None)
        if not self._said:
            self.current = None

    def _most_common(self) -> QueueView:
        lives = [_life(view) for view in self._said.values()]
        winner = max(lives, key=lambda life: (lives.count(life), self._lives.get(life, 0)))
        return next(view for view in reversed(self._said.values()) if _life(view) == winner)

    def _begin_life(self, node: int, life: str, view: QueueView, now_us: int) -> None:
        is_first = not self._lives
        before = self._epoch
        if view.epoch is not None and before is not None and view.epoch < before:
            return
        self._lives[life] = len(self._lives) + 1
        self._epoch = view.epoch
        if is_first:
            return
        asked_us = self._named_us.get(node, self._began_us)
        since_us = max(min(asked_us, now_us) - LAG_US, self._began_us)
        skipped = max(view.epoch - before - 1, 0) if view.epoch is not None and before is not None else 0
        last = view.epoch if view.epoch is not None else len(self._lives)
        for number in range(last - skipped, last + 1):
            is_seen = number == last
            self._record.note(
                Kind.PROMOTED,
                now_us,
                since_us,
                queue=self._queue,
                node=view.master or 0 if is_seen else 0,
                epoch=number,
                number=int(Heir.UNKNOWN if skipped else self._heir(view)),
            )
        self.failovers += 1 + skipped

    def _heir(self, view: QueueView) -> Heir:
        before = self._served
        if before is None or view.master in (None, before.master):
            return Heir.UNKNOWN
        possible = [node for node in before.mirrors if node in before.synchronised and self._is_running(node)]
        if not possible:
            return Heir.NONE_SYNCHRONISED
        if view.master == possible[0]:
            return Heir.OLDEST_SYNCHRONISED
        return Heir.SYNCHRONISED if view.master in possible else Heir.WRONG

    def _compare(self, view: QueueView, now_us: int) -> None:
        before = self._compared
        if before is None:
            return
        differences = {
            Kind.MIRROR_JOINED: set(view.mirrors) - set(before.mirrors),
            Kind.MIRROR_LEFT: set(before.mirrors) - set(view.mirrors),
            Kind.SYNC_END: set(view.synchronised) - set(before.synchronised),
        }
        since_us = min(self._compared_us, now_us)
        for kind, nodes in differences.items():
            for node in sorted(nodes):
                self._record.note(kind, now_us, since_us, queue=self._queue, node=node)

    def check_invariants(self) -> None:
        """Raise `AssertionError` if the state contradicts itself."""
        assert self.failovers >= max(len(self._lives) - 1, 0), "every further life is a failover"
        assert (self.current is None) == (not self._said), "what is so is said by somebody"


def _life(view: QueueView) -> str:
    """Names the life of its master; empty if there is none."""
    if view.master is None:
        return ""
    if view.epoch is not None:
        return f"epoch {view.epoch}"
    return view.incarnation or f"n{view.master}"
