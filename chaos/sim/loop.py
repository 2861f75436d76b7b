"""An event loop with virtual time, on which several processes live side by side.

The nodes of a simulated cluster are whole production nodes: they make tasks, timers and futures on the running loop as
they always do. Here that loop is `SimulatedLoop`. It never waits: when nothing is ready, time jumps to the next timer.

**Processes.** Whatever is scheduled belongs to the `Process` on whose behalf it was scheduled. Nobody has to say so: a
callback, a task and a future's callbacks carry their `contextvars.Context` with them, and the process is a variable in
it. So what a node schedules stays the node's, however deep, and what is meant for another process (bytes that arrive)
is scheduled with that one's context (`Process.call_soon`, `Process.call_later`). Code outside of all processes, the
test's own, belongs to the `harness`.

**Turns.** Like asyncio, a process works in turns: what is ready at its beginning runs to the end, then comes the next
turn. A turn costs time, as much as `Process.turn_cost_s` says, and only then may the process go on; others work
meanwhile. So who polls with ``sleep(0)`` does not stop time, and turns of several processes interleave differently
under every seed. The harness takes no time.

**Ends.** `kill` is SIGKILL: nothing of the process runs any more, no ``finally``, no callback. Its objects are kept
until the loop is closed, because a coroutine that is collected would still run its ``finally``. `pause` is SIGSTOP:
what becomes ready waits, timers that expire meanwhile are all late.

**Clocks.** `time` and `now_s` are the true time: a loop's clock is monotonic, and nobody can set it. The wall clock of
a process (`Process.wall_time_s`) can be set, forward and back; no timer goes by it.

**Sameness.** Nothing here depends on addresses, hashes or real time: the order is that of time and then of scheduling.
`fingerprint` sums up which process did how much when; two runs with the same one did the same.

**Speed.** A run schedules tens of thousands of callbacks, so what happens for each is written out: a handle of our own
that knows its process and asks its loop nothing, and `run_until` with the step of the loop in its body.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from array import array
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from heapq import heappop, heappush
from typing import Any, TypeVar, TypeVarTuple, Unpack
from zlib import crc32

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

#: So many turns are summed up at once.
TRACED_TURNS = 1_000
#: When every simulation begins.
EPOCH_S = 1_000_000_000.0

_PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated process")


class SimulationStuckError(Exception):
    """The future that was waited for is not done and nothing will ever happen again."""


def no_cost() -> float:
    return 0.0


class Process:
    """One operating-system process on a `SimulatedLoop`. Made by `SimulatedLoop.start_process`."""

    __slots__ = (
        "busy_until_s",
        "context",
        "is_alive",
        "is_on_agenda",
        "is_paused",
        "loop",
        "name",
        "number",
        "overdue",
        "ready",
        "subject",
        "tasks",
        "turn_cost_s",
        "turns",
        "wall_offset_s",
    )

    def __init__(self, loop: SimulatedLoop, name: str, number: int, turn_cost_s: Callable[[], float]) -> None:
        self.loop = loop
        self.name = name
        #: Distinguishes the lives of a node, too.
        self.number = number
        self.turn_cost_s = turn_cost_s
        self.context = contextvars.Context()
        self.context.run(_PROCESS.set, self)
        self.is_alive = True
        self.is_paused = False
        #: What it runs, for those who look at it after its turns.
        self.subject: object | None = None
        #: Its next turn is on the loop's agenda.
        self.is_on_agenda = False
        self.busy_until_s = 0.0
        #: How much its wall clock is ahead of the true time.
        self.wall_offset_s = 0.0
        self.ready: deque[asyncio.Handle] = deque()
        #: Timers that expired while it was paused.
        self.overdue: list[asyncio.Handle] = []
        #: All of them, so that those of a dead process are not collected before the loop is closed.
        self.tasks: list[asyncio.Task[Any]] = []
        self.turns = 0

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "alive" if self.is_alive else "dead"
        return f"<Process {self.name} number {self.number} {state}>"

    def may_run(self) -> bool:
        return self.is_alive and not self.is_paused

    def call_soon(self, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        """Have the process do this in its next turn."""
        return self.loop.call_soon(callback, *args, context=self.context)

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Have the process do this after a (true) time."""
        return self.loop.call_at_true(self.loop.now_s + delay_s, callback, *args, context=self.context)

    def create_task(self, coroutine: Coroutine[Any, Any, _T], *, name: str | None = None) -> asyncio.Task[_T]:
        """A task of the process."""
        return self.loop.create_task(coroutine, name=name, context=self.context)

    async def carry_out(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Have this process do something for the one that asks, and wait; for ever, if it dies meanwhile."""
        answer: asyncio.Future[_T] = self.loop.create_future()

        def done(task: asyncio.Task[_T]) -> None:
            if answer.done():
                return
            if task.cancelled():
                answer.cancel()
            elif (error := task.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(task.result())

        task = self.create_task(coroutine)
        task.add_done_callback(done, context=contextvars.copy_context())
        try:
            return await answer
        finally:
            self.call_soon(task.cancel)

    def kill(self) -> None:
        """See the module text. What it does in the turn that is under way comes to its end at the next callback."""
        self.is_alive = False
        self.loop.forgotten.extend(self.ready)
        self.ready.clear()
        self.overdue.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        """Go on with everything that has become due."""
        if self.is_paused:
            self.is_paused = False
            self.ready.extend(self.overdue)
            self.overdue.clear()
            self.loop.want_turn(self)

    def jump_clock(self, forward_s: float) -> None:
        """Somebody sets its wall clock, forward or back. Timers go by the monotonic clock: none of them moves."""
        self.wall_offset_s += forward_s

    def wall_time_s(self) -> float:
        """Seconds since the epoch, as far as the process knows."""
        return EPOCH_S + self.loop.now_s + self.wall_offset_s

    def check_invariants(self) -> None:
        assert self.is_alive or not self.ready, "a dead process has nothing to do"
        if self.ready and not self.is_paused:
            assert self.is_on_agenda, "what is ready will have its turn"


class _Handle(asyncio.Handle):
    """A callback. Asyncio's own asks its loop for the debug mode first, of which there is none here."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(asyncio.TimerHandle):
    """``when`` is the true time; its process is kept because a context is slow to ask."""

    __slots__ = ("process",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context,
        process: Process,
    ) -> None:
        self._when = when
        self._scheduled = False
        self._context = context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self.process = process


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module text. Sockets, threads and signals it has none: asking for them raises `NotImplementedError`."""

    def __init__(self) -> None:
        #: The true time, in seconds from the start.
        self.now_s = 0.0
        #: What will happen: (true time, number, a timer or the process whose turn it is).
        self._agenda: list[tuple[float, int, _Timer | Process]] = []
        self._number = 0
        self.harness = Process(self, "harness", 0, no_cost)
        #: All that there ever were.
        self.processes = [self.harness]
        #: What was scheduled for the dead: kept, see `Process`.
        self.forgotten: list[object] = []
        #: What `fingerprint` sums up, three numbers for each turn, and what it has summed up of it.
        self._trace = array("d")
        self._traced = 0
        self.turns = 0
        #: Called after each turn of a process that is not the harness.
        self.after_turn: Callable[[Process], None] = lambda _process: None
        self._exception_handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._is_running = False
        self._is_closed = False
        self._is_stopping = False
        self.current: Process | None = None

    # --- processes ---

    def start_process(self, name: str, turn_cost_s: Callable[[], float] = no_cost) -> Process:
        """A new process with nothing to do yet."""
        process = Process(self, name, len(self.processes), turn_cost_s)
        self.processes.append(process)
        return process

    def want_turn(self, process: Process) -> None:
        """Put the next turn of the process on the agenda if it has something to do and may do it."""
        if process.ready and not process.is_on_agenda and not process.is_paused:
            process.is_on_agenda = True
            now_s, free_s = self.now_s, process.busy_until_s
            self._number = number = self._number + 1
            heappush(self._agenda, (free_s if free_s > now_s else now_s, number, process))

    # --- scheduling ---

    def time(self) -> float:
        return self.now_s

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if context is None:
            context = contextvars.copy_context()
        handle = _Handle(callback, args, self, context)
        process = context.get(_PROCESS, self.harness)
        if process.is_alive:
            process.ready.append(handle)
            if not process.is_on_agenda:
                self.want_turn(process)
        else:
            self.forgotten.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # there are no threads in a simulation

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at_true(self.now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at_true(when, callback, *args, context=context)

    def call_at_true(
        self,
        when_s: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Like `call_at`, by the true time."""
        if context is None:
            context = contextvars.copy_context()
        timer = _Timer(when_s, callback, args, self, context, context.get(_PROCESS, self.harness))
        now_s = self.now_s
        self._number = number = self._number + 1
        heappush(self._agenda, (when_s if when_s > now_s else now_s, number, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[_T]:
        context = contextvars.copy_context() if context is None else context.copy()
        task: asyncio.Task[_T] = asyncio.Task(coro, loop=self, name=name, context=context)
        # The tasks of killed processes are never done, which is no mistake.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        process = context.get(_PROCESS, self.harness)
        process.tasks.append(task)
        return task

    # --- running ---

    def run_until_complete(self, future: Generator[Any, None, _T] | Awaitable[_T]) -> _T:
        """Run until this is done. Raises `SimulationStuckError` if it never will be."""
        assert isinstance(future, Awaitable), "only a future or a coroutine can be done"
        awaited = asyncio.ensure_future(future, loop=self)
        self._run(awaited.done)
        if not awaited.done():
            raise SimulationStuckError(f"nothing is left to do at {self.now_s:.6f} s, and {awaited!r} is not done")
        return awaited.result()

    def run_until(self, when_s: float, is_over: Callable[[], bool] | None = None) -> None:
        """Let everything happen up to this true time, or until ``is_over`` says so, which is asked after each step."""
        agenda, turn = self._agenda, self._turn
        with self._running():
            while agenda and agenda[0][0] <= when_s:
                due_s, _, item = heappop(agenda)
                self.now_s = max(self.now_s, due_s)
                if isinstance(item, Process):
                    turn(item)
                else:
                    self._expire(item)
                if is_over is not None and is_over():
                    return
        self.now_s = max(self.now_s, when_s)

    def run_forever(self) -> None:
        """Until `stop` is called or nothing is left to do."""
        self._run(lambda: self._is_stopping)
        self._is_stopping = False

    def stop(self) -> None:
        self._is_stopping = True

    def _run(self, is_over: Callable[[], bool]) -> None:
        with self._running():
            while self._agenda and not is_over():
                self._step()

    @contextmanager
    def _running(self) -> Iterator[None]:
        assert not self._is_running, "a loop runs once at a time"
        assert not self._is_closed, "its end was its end"
        outer = events._get_running_loop()
        events._set_running_loop(self)
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
            events._set_running_loop(outer)

    def _step(self) -> None:
        when_s, _, item = heappop(self._agenda)
        self.now_s = max(self.now_s, when_s)
        if isinstance(item, Process):
            self._turn(item)
        else:
            self._expire(item)

    def _expire(self, timer: _Timer) -> None:
        process = timer.process
        if timer._cancelled or not process.is_alive:
            return
        if process.is_paused:
            process.overdue.append(timer)
            return
        process.ready.append(timer)
        if process.is_on_agenda:
            return
        agenda, now_s = self._agenda, self.now_s
        if process.busy_until_s <= now_s and (not agenda or agenda[0][0] > now_s):
            self._turn(process)  # it would be the next thing on the agenda
        else:
            self.want_turn(process)

    def _turn(self, process: Process) -> None:
        if not process.is_alive or process.is_paused:
            process.is_on_agenda = False
            return
        process.is_on_agenda = True  # what becomes ready in this turn is for the next one
        ready: deque[Any] = process.ready
        due = len(ready)
        self.current = process
        for _ in range(due):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self._callback_failed(handle, error)
            if not process.may_run():
                break
        self.current = None
        self.turns += 1
        process.turns += 1
        trace = self._trace
        trace.extend((process.number, due, self.now_s))
        if len(trace) >= 3 * TRACED_TURNS:
            self._sum_up()
        if process is not self.harness:
            process.busy_until_s = self.now_s + process.turn_cost_s()
            self.after_turn(process)
        process.is_on_agenda = False
        if ready:
            self.want_turn(process)

    def _callback_failed(self, handle: asyncio.Handle, error: BaseException) -> None:
        self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error, "handle": handle})

    def _sum_up(self) -> None:
        self._traced = crc32(self._trace.tobytes(), self._traced)
        del self._trace[:]

    @property
    def fingerprint(self) -> int:
        """See the module text."""
        self._sum_up()
        return self._traced

    def failed_tasks(self) -> list[tuple[Process, BaseException]]:
        """Tasks whose failure nobody has looked at.

        Asyncio tells of them when they are collected, but here they are kept. To be asked once, at the end.
        """
        return [
            (process, error)
            for process in self.processes
            for task in process.tasks
            if task.done() and not task.cancelled() and task._log_traceback and (error := task.exception()) is not None
        ]

    def close(self) -> None:
        """Drop everything. Coroutines that were never done are closed: what they do then reaches nobody."""
        if self._is_closed:
            return
        self._is_closed = True
        self._agenda.clear()
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for process in self.processes:
                process.kill()
            # What is closed may still begin tasks, which are closed, too.
            while tasks := [task for process in self.processes for task in process.tasks]:
                for process in self.processes:
                    process.tasks = []
                for task in tasks:
                    _drop(task)
                self.forgotten.append(tasks)
        finally:
            events._set_running_loop(outer)
        self.forgotten.clear()

    def is_running(self) -> bool:
        return self._is_running

    def is_closed(self) -> bool:
        return self._is_closed

    async def shutdown_asyncgens(self) -> None:
        """Generators of killed processes stay as they are."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """There is none."""

    # --- what handles, tasks and futures ask of their loop ---

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        if enabled:
            raise NotImplementedError("the debug mode measures real time")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time has come."""

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        return self._exception_handler

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Who is told of what callbacks and forgotten futures of living processes raise."""
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        raise context.get("exception") or RuntimeError(context.get("message"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = self.current or self.harness
        if not process.is_alive or self._is_closed:
            return
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)


def _drop(task: asyncio.Task[Any]) -> None:
    """What it never did is closed, and so is what it would have waited for, if it has not begun."""
    coroutine = task.get_coro()
    if task.done() or not isinstance(coroutine, Coroutine):
        return
    is_new = inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
    awaited = inspect.getcoroutinelocals(coroutine).values() if is_new else ()
    for each in (coroutine, *(value for value in awaited if isinstance(value, Coroutine))):
        with suppress(BaseException):
            each.close()


def simulated_loop() -> SimulatedLoop:
    """A loop at time zero. (What `asyncio.AbstractEventLoop` says of sockets and threads raises.)"""
    return SimulatedLoop()  # type: ignore[abstract]
