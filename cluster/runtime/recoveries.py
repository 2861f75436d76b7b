"""Opening queues while the loop turns: what a crash left is read in slices, beside everything else.

What takes no reading (a new queue, one that was closed cleanly) is opened at once. Anything else waits here and is
worked on for `SLICE_S` of a turn, until it is done; syncs are done by a worker meanwhile (`node.store.steps`). So the
node goes on to answer its peers and operators, and to serve its other queues, however long it takes.

**Order.** The shared store of a vhost comes before its queues. When it is open they are asked how large they are, a
few in each slice (ten thousand take a seventh of a second). Among those that are ready the smallest comes first, also
before a big one that has begun. While one waits for a sync the next has its turn, up to `BEGUN_MAX`.

**A queue that is being opened** plays no role on this node yet, as if the record had not come: who masters it has not
taken service, a mirror has not answered the attach. Nobody loses by that but time: to be up and complete does not take
it, and nobody else is elected because of it. `progress` is for those who ask.

Giving one up (`forget`, `close`) leaves its files to the next opening, as a crash would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import Protocol

from node.errors import StorageError
from node.ids import QueueId
from node.queues.local_replica import LocalReplica
from node.store.steps import Job, Steps
from node.topology.records import QueueRecord

#: So much of a turn of the loop is for recovery, and one step more: some milliseconds.
SLICE_S = 0.005
#: Steps without a sync that are taken at once, so that what is small need not wait for a turn.
STEPS_AT_ONCE = 2
#: Queues that have begun and wait for a sync: each holds some open files, and a segment in memory.
BEGUN_MAX = 4

#: Hears of an opened queue, or of the error that hindered it. Does not raise.
OnOpened = Callable[[LocalReplica | Exception], None]
#: Carries a job out beside the loop, and calls back on the loop with what it raised.
RunJob = Callable[[Job, Callable[[BaseException | None], None]], None]


class OpenedInSteps(Protocol):
    """The storage of a node."""

    def vhost_opening(self, vhost: str) -> Steps[None] | None:
        """What must be gone through before queues of this vhost can be opened; ``None`` if nothing. Raises
        `StorageError`."""

    def vhost_failed(self, vhost: str) -> None:
        """Going through it came to nothing: the next attempt begins anew."""

    def vhost_exists(self, vhost: str) -> None:
        """Queues of this vhost are to be opened while it is on its way: it was made anew, if it was deleted before."""

    def queue_opening(
        self,
        queue: QueueRecord,
        index_version: int | None,
        on_progress: Callable[[int, int], None],
        *,
        is_compared: bool = False,
    ) -> Steps[LocalReplica]:
        """Open what the disk holds of this queue, or create it; its vhost is open. ``index_version`` ``None``: as
        configured. ``is_compared``: with the digests that its first comparison with another copy asks for."""

    def queue_file_count(self, queue: QueueRecord) -> int:
        """How much there is to read."""


class _Vhost:
    """The shared store of a vhost, on its way."""

    def __init__(self, name: str, steps: Steps[None]) -> None:
        self.name = name
        self.steps: Steps[object] = steps
        self.waits_for_job = False


class _Queue:
    """A queue on its way."""

    def __init__(
        self, queue: QueueRecord, index_version: int | None, on_opened: OnOpened, *, is_compared: bool
    ) -> None:
        self.queue = queue
        self.index_version = index_version
        self.is_compared = is_compared
        self.on_opened = on_opened
        #: ``None`` until its vhost is open.
        self.steps: Steps[object] | None = None
        self.file_count = 0
        self.waits_for_job = False
        #: Segments read, and altogether.
        self.done, self.total = 0, 0

    def progressed(self, done: int, total: int) -> None:
        self.done, self.total = done, total


class Recoveries:
    """See the module text. ``call_soon`` as of a loop; ``clock`` (seconds) goes on within a turn of it."""

    def __init__(
        self,
        files: OpenedInSteps,
        run_job: RunJob,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        self._files = files
        self._run_job = run_job
        self._call_soon = call_soon
        self._clock = clock
        self._vhosts: dict[str, _Vhost] = {}
        self._queues: dict[QueueId, _Queue] = {}
        #: Those whose vhost has opened since they came: nobody has looked yet how large they are. Some may have been
        #: forgotten, or prepared.
        self._unprepared: deque[_Queue] = deque()
        #: Those whose vhost is open and that have not begun, smallest first; some may have been forgotten.
        self._ready: list[tuple[int, int, _Queue]] = []
        self._ready_count = 0
        self._begun: dict[QueueId, _Queue] = {}
        self._is_scheduled = False

    # --- what is to be opened ---

    def open(
        self, queue: QueueRecord, index_version: int | None, on_opened: OnOpened, *, is_compared: bool = False
    ) -> None:
        """``on_opened`` is called within this call if that takes no time; unless `forget` comes first. ``is_compared``:
        the queue is mirrored, so other copies will be compared with it."""
        assert queue.queue_id not in self._queues, f"queue {queue.queue_id} is being opened already"
        item = self._queues[queue.queue_id] = _Queue(queue, index_version, on_opened, is_compared=is_compared)
        self.open_vhost(queue.vhost)
        if queue.vhost not in self._vhosts and self._is_known(item):
            is_prepared = item.steps is not None or self._prepare(item)
            if is_prepared and len(self._begun) < BEGUN_MAX:
                self._go_on(item, STEPS_AT_ONCE)
        self._schedule()

    def open_vhost(self, vhost: str) -> None:
        """Open the shared store of a vhost, if it is not open."""
        if vhost in self._vhosts:
            self._files.vhost_exists(vhost)
            return
        try:
            steps = self._files.vhost_opening(vhost)
        except Exception as error:
            self._vhost_failed(vhost, error)
            return
        if steps is not None:
            item = self._vhosts[vhost] = _Vhost(vhost, steps)
            self._go_on(item, STEPS_AT_ONCE)
            self._schedule()

    def forget(self, queue_id: QueueId) -> None:
        """Nobody waits for this queue any more."""
        if self._drop(queue_id):
            self._schedule()  # another one can begin in its place

    def close(self) -> None:
        """The node stops."""
        for queue_id in list(self._queues):
            self._drop(queue_id)
        self._unprepared.clear()
        self._ready.clear()
        self._vhosts.clear()  # the storage closes them

    def _drop(self, queue_id: QueueId) -> bool:
        """True if it was on its way."""
        item = self._queues.pop(queue_id, None)
        self._begun.pop(queue_id, None)
        if item is not None and item.steps is not None:
            item.steps.close()
        return item is not None

    def awaits(self, vhost: str) -> bool:
        """True if this vhost, or a queue of it, is on its way."""
        return vhost in self._vhosts or any(item.queue.vhost == vhost for item in self._queues.values())

    def __contains__(self, queue_id: QueueId) -> bool:
        return queue_id in self._queues

    def progress(self, queue_id: QueueId) -> int | None:
        """How much of a queue that is being opened was read, in percent; ``None`` if it is not."""
        item = self._queues.get(queue_id)
        if item is None:
            return None
        return 100 * item.done // item.total if item.total else 0

    # --- the work ---

    def _prepare(self, item: _Queue) -> bool:
        """False if that came to nothing."""
        try:
            with suppress(StorageError):
                item.file_count = self._files.queue_file_count(item.queue)
            item.steps = self._files.queue_opening(
                item.queue, item.index_version, item.progressed, is_compared=item.is_compared
            )
        except Exception as error:
            self._finished(item, error)
            return False
        self._ready_count += 1
        heappush(self._ready, (item.file_count, self._ready_count, item))
        return True

    def _schedule(self) -> None:
        if not self._is_scheduled and self._choose() is not None:
            self._is_scheduled = True
            self._call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        end_s = self._clock() + SLICE_S
        while (item := self._choose()) is not None:
            self._go_on(item, 1)
            if self._clock() >= end_s:
                break
        self._schedule()

    def _choose(self) -> _Vhost | _Queue | None:
        """Whose turn it is; ``None`` if all wait."""
        for vhost in self._vhosts.values():
            if not vhost.waits_for_job:
                return vhost
        unprepared = self._unprepared
        while unprepared:
            if self._is_known(unprepared[0]) and unprepared[0].steps is None:
                return unprepared[0]
            unprepared.popleft()
        ready = self._ready
        while ready and (not self._is_known(ready[0][2]) or ready[0][2].queue.queue_id in self._begun):
            heappop(ready)
        working = [item for item in self._begun.values() if not item.waits_for_job]
        smallest = min(working, key=lambda item: item.file_count, default=None)
        if not ready or len(self._begun) >= BEGUN_MAX or (smallest and smallest.file_count <= ready[0][0]):
            return smallest
        return ready[0][2]

    def _go_on(self, item: _Vhost | _Queue, steps_max: int) -> None:
        """Take so many steps, or as many as come before one that waits for the disk."""
        for _ in range(steps_max):
            if item.waits_for_job or not self._step(item, None):
                return

    def _step(self, item: _Vhost | _Queue, error: BaseException | None) -> bool:
        """``error``: of the job before. False if there is no further step."""
        if isinstance(item, _Queue) and item.steps is None:
            return self._prepare(item)
        steps = item.steps
        assert steps is not None, "what was prepared has steps"
        if isinstance(item, _Queue):
            self._begun[item.queue.queue_id] = item
        try:
            job = next(steps) if error is None else steps.throw(error)
        except StopIteration as end:
            self._finished(item, end.value)
            return False
        except Exception as raised:
            self._finished(item, raised)
            return False
        if job is not None:
            item.waits_for_job = True
            self._run_job(job, lambda error: self._job_done(item, error))
        return True

    def _job_done(self, item: _Vhost | _Queue, error: BaseException | None) -> None:
        if not self._is_known(item):
            return
        item.waits_for_job = False
        if error is not None and not isinstance(error, StorageError):
            error = StorageError(f"a sync failed: {error!r}")
        self._step(item, error)
        self._schedule()

    def _is_known(self, item: _Vhost | _Queue) -> bool:
        if isinstance(item, _Vhost):
            return self._vhosts.get(item.name) is item
        return self._queues.get(item.queue.queue_id) is item

    def _finished(self, item: _Vhost | _Queue, result: object) -> None:
        if isinstance(item, _Queue):
            del self._queues[item.queue.queue_id]
            self._begun.pop(item.queue.queue_id, None)
            assert isinstance(result, LocalReplica | Exception), "an opening ends with a queue or an error"
            item.on_opened(result)
            return
        del self._vhosts[item.name]
        if isinstance(result, Exception):
            self._vhost_failed(item.name, result)
            return
        self._unprepared.extend(self._waiting_for(item.name))

    def _vhost_failed(self, vhost: str, error: Exception) -> None:
        self._files.vhost_failed(vhost)
        for waiting in self._waiting_for(vhost):
            del self._queues[waiting.queue.queue_id]
            waiting.on_opened(error)

    def _waiting_for(self, vhost: str) -> list[_Queue]:
        return [item for item in self._queues.values() if item.steps is None and item.queue.vhost == vhost]

    def check_invariants(self) -> None:
        unprepared = {id(item) for item in self._unprepared}
        for queue_id, item in self._queues.items():
            assert item.queue.queue_id == queue_id, "an opening is filed under its queue"
            if item.queue.vhost in self._vhosts:
                assert item.steps is None, "the shared store comes first"
            elif item.steps is None:
                assert id(item) in unprepared, "what waits for no shared store is looked at"
        assert len(self._begun) <= BEGUN_MAX, "few are under way"
        assert self._begun.keys() <= self._queues.keys(), "what has begun is wanted"
        assert self._is_scheduled or self._choose() is None, "what can go on has a turn coming"
