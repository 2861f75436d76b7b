"""As in `test_planted`, of what the broker says to clients, of what it does not say, and of what it keeps for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands

from chaos.sim.run import run_schedule
from chaos.sim.scenarios.catalogue import draw
from chaos.sim.schedule import Schedule
from cluster.mirroring.master import MirroredQueue
from cluster.runtime.queue_deletions import QueueDeletions
from cluster.sessions.consumers import ChannelConsumers
from cluster.sessions.host import MasterSession
from node.amqp.channel import ChannelMachine
from node.amqp.connection import ConnectionMachine
from node.errors import ChannelError
from node.queues.queue_flow import QueueFlow
from node.queues.queue_process import QueueProcess
from node.topology.records import QueueRecord
from tests.support.simulated import publish, schedule


def said(tried: Schedule) -> str:
    """All violations."""
    return "\n".join(map(str, run_schedule(tried).violations))


#: Two workers of two queues, who get and settle, and open their channels anew.
WORK = schedule(
    (100, "work", 0, [0, 1]),
    (150, "work", 1, [0]),
    *(publish(at_ms) for at_ms in range(200, 1_800, 100)),
    (700, "worker_does", 0, "get", 1),
    (900, "worker_does", 0, "settle_all"),
    (1_000, "worker_does", 0, "reopen"),
    (1_200, "worker_does", 1, "cancel", 0),
    (1_400, "worker_does", 1, "consume", 0),
    (1_600, "worker_does", 0, "settle_all"),
    workers=2,
    queues=2,
    consumers=0,
)


def test_workers_of_a_sound_cluster_find_nothing() -> None:
    outcome = run_schedule(WORK)
    assert outcome.violations == []
    for reached in ("some were acknowledged together", "a channel was closed and opened again"):
        assert reached in outcome.sightings


def test_rivals_of_who_consumes_alone_try_to_the_end() -> None:
    """Of a dozen clients some are always on their way, and are refused as all of them leave."""
    rivals = [(100 + 2 * number, "consume", number, 0) for number in range(12)]
    slow: dict[str, Any] = {"link_delay_ms": (5.0, 6.0)}
    assert said(schedule(*rivals, lasts_ms=500, consumers=12, consumer_kinds=("exclusive",), **slow)) == ""


def test_an_alarm_of_whose_end_a_client_is_not_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm = schedule((100, "memory_alarm", "n1"), publish(1_500), (2_000, "memory_alarm_end", "n1"))
    assert said(alarm) == ""
    monkeypatch.setattr(ConnectionMachine, "unblocked", lambda _self: None)
    assert "clients that were not told that an alarm is over: p0" in said(alarm)


def test_a_request_without_an_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    send: Any = ChannelMachine._send

    def send_most(self: ChannelMachine, method: Any, *arguments: Any) -> None:
        if method is not commands.Basic.CancelOk:
            send(self, method, *arguments)

    cancelled = schedule((100, "consume", 0, 0), publish(500), (800, "cancel", 0, 0))
    assert said(cancelled) == ""
    monkeypatch.setattr(ChannelMachine, "_send", send_most)
    assert "clients without an answer: c0" in said(cancelled)


def test_an_error_without_a_reason_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients come again, and get what they want."""
    ask: Callable[..., Any] = QueueProcess.consume
    asked: list[object] = []

    def consume(self: QueueProcess, *arguments: Any) -> Any:
        asked.append(self)
        if len(asked) == 1:
            raise ChannelError(404, "no queue 'q0' in vhost '/'")
        return ask(self, *arguments)

    consumed = schedule((100, "consume", 0, 0), publish(500))
    assert said(consumed) == ""
    monkeypatch.setattr(QueueProcess, "consume", consume)
    assert "missing: c0 hears from" in said(consumed)
    assert len(asked) > 1


def test_what_a_master_takes_out_of_order_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = MirroredQueue.fetch
    behind = schedule(publish(100), (500, "consume", 0, 0))
    assert said(behind) == ""
    monkeypatch.setattr(MirroredQueue, "fetch", lambda *arguments: fetch(*arguments)[::-1])
    assert "the master of queue 0 in epoch 1 has handed out (0, 0, 5, 1) before (0, 0, 4, 1)" in said(behind)


def test_a_queue_that_goes_though_its_consumer_may_return_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    unused = QueueDeletions.unused

    def unused_for_good(self: QueueDeletions, queue: QueueRecord, may_return: bool) -> None:
        unused(self, queue, may_return=False)

    seed = draw(8, scenario="keepers")
    assert said(seed) == ""
    monkeypatch.setattr(QueueDeletions, "unused", unused_for_good)
    assert "kept: k" in said(seed)


#: A queue that is left by everybody, of which some could not consume: it is another's alone.
LEFT = schedule(
    (100, "consume", 0, 0),
    (200, "consume", 1, 0),
    *(publish(at_ms) for at_ms in range(300, 900, 100)),
    (900, "restart_consumer", 1, 0),
    consumers=2,
    consumer_kinds=("exclusive",),
)


def test_clients_leave_nothing_behind_in_a_sound_node() -> None:
    assert said(LEFT) == ""


@pytest.mark.parametrize(
    ("owner", "method", "remains"),
    [
        (MasterSession, "channel_closed", "channels of the session of"),
        (QueueFlow, "end", "credit of queue"),
        (ChannelConsumers, "given_up", "early deliveries of its channels"),
    ],
)
def test_what_clients_leave_behind_in_a_node_is_found(
    owner: type, method: str, remains: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, lambda *_: None)
    assert remains in said(LEFT)
