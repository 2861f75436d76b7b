"""What the watch of the records makes of what single nodes know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.history import ProcKind
from chaos.sim.loop import SimulatedLoop, simulated_loop
from chaos.sim.record_watch import RecordWatch
from chaos.sim.workload import MemoryHistory
from cluster.metadata.commands import MoveMaster
from cluster.metadata.events import MastershipChanged, MemberChanged
from cluster.metadata.records import MastershipRecord, MemberRecord
from node.ids import Epoch, Incarnation, NodeName, QueueId
from node.topology.records import QueueRecord

N1, N2, QUEUE = NodeName("n1"), NodeName("n2"), QueueId(17)
Q0 = QueueRecord(QUEUE, "/", "q0", durable=True, exclusive_owner=None, auto_delete=False, arguments={})


def knowing(
    index: int, record: MastershipRecord | None, *, queues: Sequence[QueueRecord] = (), is_serving: bool = False
) -> Any:
    """A node that has applied so much."""
    topology = SimpleNamespace(all_queues=lambda: queues)
    masterships = {} if record is None else {QUEUE: record}
    state = SimpleNamespace(masterships=masterships, topology=topology, applied_index=index, is_changing=False)
    return SimpleNamespace(
        runtime=SimpleNamespace(metadata=SimpleNamespace(state=state)),
        clients=SimpleNamespace(is_serving=is_serving),
    )


def seen(*known: tuple[str, int, MastershipRecord]) -> list[str]:
    violations: list[str] = []
    log = MemoryHistory(simulated_loop()).process(ProcKind.OBSERVER)
    watch = RecordWatch(log, lambda _name: None, lambda kind, _text: violations.append(kind))
    for name, index, record in known:
        watch.look(name, 1, knowing(index, record))
    return violations


def watch_of_queues(loop: SimulatedLoop) -> RecordWatch:
    log = MemoryHistory(loop).process(ProcKind.OBSERVER)
    return RecordWatch(log, lambda name: int(name[1:]), lambda _kind, _text: None)


def record(epoch: int, master: NodeName, *, is_down: bool = False) -> MastershipRecord:
    return MastershipRecord(QUEUE, Epoch(epoch), master, complete=(master,), is_down=is_down, in_service=not is_down)


def test_an_epoch_has_one_master_whoever_looks() -> None:
    assert seen(("n1", 5, record(3, N1)), ("n2", 6, record(3, N2))) == ["two masters"]
    assert seen(("n1", 5, record(3, N1)), ("n2", 6, record(4, N2))) == []


def test_who_is_waited_for_is_no_master() -> None:
    """While a queue is down its record names a copy that it waits for, and may come to name another."""
    assert seen(("n1", 5, record(3, N1, is_down=True)), ("n2", 6, record(3, N2, is_down=True))) == []


def test_an_epoch_never_falls_on_one_node() -> None:
    assert seen(("n1", 5, record(3, N1)), ("n1", 6, record(2, N1))) == ["epoch"]


def test_a_queue_that_went_while_a_node_served_nobody_is_missed_when_it_serves_again() -> None:
    watch = watch_of_queues(simulated_loop())
    watch.look("n1", 1, knowing(5, record(1, N1), queues=[Q0], is_serving=True))
    watch.look("n1", 1, knowing(6, None))
    assert watch.ignorance == {}
    watch.look("n1", 1, knowing(6, None, is_serving=True))
    assert [each.node for each in watch.ignorance[0]] == ["n1"]


def test_a_queue_may_be_missed_from_the_first_piece_of_the_command_that_deletes_it() -> None:
    """Whoever asks between two pieces hears that it is gone, before the last of them is carried out anywhere."""
    loop = simulated_loop()
    watch = watch_of_queues(loop)
    node = knowing(5, record(1, N1), queues=[Q0], is_serving=True)
    watch.look("n1", 1, node)
    state = node.runtime.metadata.state
    state.topology, state.is_changing = SimpleNamespace(all_queues=lambda: []), True
    for second in (1, 2):
        loop.run_until(second)
        watch.look("n1", 1, node)
    loop.run_until(3)
    state.masterships, state.applied_index, state.is_changing = {}, 6, False
    watch.look("n1", 1, node)
    assert [(each.from_us, each.until_us) for each in watch.ignorance[0]] == [(1_000_001, 3_000_001)]


def test_a_node_counts_as_dead_until_it_is_up_again() -> None:
    """Who hears late that it is down may act on that when it has long said that it lives."""
    loop = simulated_loop()
    log = MemoryHistory(loop).process(ProcKind.OBSERVER)
    watch = RecordWatch(log, lambda _name: None, lambda _kind, _text: None)
    state: Any = None
    member = MemberRecord(N1, "n1:1", "n1:2", Incarnation(1), is_up=True)
    watch._decided(state, state, MemberChanged(N1, member))
    assert not watch.was_down("n1", 0), "it has come up for the first time"
    loop.run_until(1)
    watch._decided(state, state, MemberChanged(N1, replace(member, is_up=False)))
    assert watch.was_down("n1", 5_000_000)
    loop.run_until(2)
    watch._decided(state, state, MemberChanged(N1, member))
    assert watch.was_down("n1", 1_500_000)
    assert not watch.was_down("n1", 2_500_000)
    assert not watch.was_down("n2", 0)


@pytest.mark.parametrize(
    ("is_lost", "complete", "found"),
    [(True, (N2, N1), ["promotion"]), (True, (N2,), []), (False, (N2, N1), [])],
)
def test_who_hands_over_with_a_failed_disk_is_complete_no_longer(
    is_lost: bool, complete: tuple[NodeName, ...], found: list[str]
) -> None:
    violations: list[str] = []
    log = MemoryHistory(simulated_loop()).process(ProcKind.OBSERVER)
    watch = RecordWatch(log, lambda _name: None, lambda kind, _text: violations.append(kind))
    old = replace(record(1, N1), mirrors=(N2,), synchronised=(N2,), following=(N2,), complete=(N1, N2))
    new = replace(old, epoch=Epoch(2), master=N2, mirrors=(N1,), synchronised=(), following=(), complete=complete)
    state: Any = SimpleNamespace(topology=SimpleNamespace(queue_by_id=lambda _queue_id: Q0))
    request: Any = SimpleNamespace(command=MoveMaster(QUEUE, old.epoch, N2, is_old_lost=is_lost))
    watch._decided(state, request, MastershipChanged(QUEUE, old, new, "moved"))
    assert violations == found
