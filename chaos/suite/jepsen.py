"""A record as a history that Jepsen's ``total-queue`` checker reads.

One operation for each attempt to publish (``:enqueue``) and for each delivery (``:dequeue``); what was found at the end
is a ``:drain``. The value is the message's key. A process of Jepsen does one thing at a time, and ours have many under
way; so each operation that is under way has a process of its own, the lowest number that is free. A process whose
operation ended as ``:info`` is never used again, as Jepsen has it.

Source: jepsen.checker/total-queue, and the format of its histories (EDN, one map a line).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from chaos.record.kinds import Kind
from chaos.record.schema import Event

_ENDS = {Kind.CONFIRM: ":ok", Kind.REFUSE: ":fail", Kind.RETURN: ":fail", Kind.UNRESOLVED: ":info"}
NS_PER_US = 1000


class _Processes:
    """Numbers of those that are free."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._count = 0

    def take(self) -> int:
        if self._free:
            return heappop(self._free)
        self._count += 1
        return self._count - 1

    def give_back(self, process: int) -> None:
        heappush(self._free, process)


def history(events: Iterable[Event]) -> Iterator[str]:
    """Lines of EDN. ``events``: of all processes, by time."""
    processes = _Processes()
    #: Attempts under way, by key: their processes.
    under_way: dict[int, int] = {}
    left: list[int] = []
    index, last_us, began_us = 0, 0, None

    def line(kind: str, function: str, value: str, process: int, at_us: int) -> str:
        nonlocal index, last_us, began_us
        began_us = at_us if began_us is None else began_us
        last_us = max(at_us, last_us)
        told = (
            f"{{:index {index}, :type {kind}, :f {function}, :value {value}, :process {process}, "
            f":time {(last_us - began_us) * NS_PER_US}}}"
        )
        index += 1
        return told

    for event in events:
        if event.kind == Kind.PUBLISH:
            under_way[event.message] = processes.take()
            yield line(":invoke", ":enqueue", str(event.message), under_way[event.message], event.t_lo_us)
        elif event.kind in _ENDS and event.message in under_way:
            process, kind = under_way.pop(event.message), _ENDS[Kind(event.kind)]
            yield line(kind, ":enqueue", str(event.message), process, event.t_hi_us)
            if kind != ":info":
                processes.give_back(process)
        elif event.kind == Kind.DELIVER and event.message:
            process = processes.take()
            yield line(":invoke", ":dequeue", "nil", process, event.t_lo_us)
            yield line(":ok", ":dequeue", str(event.message), process, event.t_hi_us)
            processes.give_back(process)
        elif event.kind == Kind.LEFT and event.message:
            left.append(event.message)
    for key, process in sorted(under_way.items()):
        yield line(":info", ":enqueue", str(key), process, last_us)
    process = processes.take()
    yield line(":invoke", ":drain", "nil", process, last_us)
    yield line(":ok", ":drain", f"[{' '.join(map(str, left))}]", process, last_us)
