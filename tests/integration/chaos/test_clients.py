"""Clients in processes of their own, against a real node: what they record is complete, and true."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.clients.fleet import Fleet, FleetError, Member
from chaos.clients.options import ConsumerOptions, Endpoint, Orders, PublisherOptions, QueueTarget, Role
from chaos.clients.process import Command
from chaos.cluster_under_test.ports import choose_free_ports
from chaos.judge.findings import VIOLATIONS, QueueFacts, RunFacts
from chaos.judge.reference import Reference
from chaos.record.kinds import Ending, Flag, Kind
from chaos.record.message_key import unpack
from chaos.record.process_record import ProcessRecord, RunClock
from chaos.record.reading import read_events
from chaos.record.schema import Event, EventClass
from tests.support.live_cluster import LiveCluster, run_cluster
from tests.support.waiting import DEFAULT_TIMEOUT_S

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

#: Of the test, not of the node: it must not appear anywhere.
PASSWORD = "correct%20horse"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with run_cluster(Path(tmp_path_factory.mktemp("cluster")), node_count=1) as running:
        yield running


class Run:
    """A run with one queue: its roster, and orders for its clients."""

    def __init__(self, directory: Path, url: str, queue: str) -> None:
        self.directory = directory
        self.clock = RunClock()
        self.target = QueueTarget(1, queue)
        self.roster: dict[int, frozenset[int]] = {}
        self._url = url

    def enrol(self, orders: Orders) -> None:
        self.roster[orders.process] = frozenset([orders.publisher.publisher] if orders.publisher else [])

    def publisher(self, publisher: int = 1, **options: Any) -> Orders:
        chosen = PublisherOptions(publisher, (self.target,), **options)
        return self._orders(Role.PUBLISHER, publisher=chosen)

    def consumer(self, **options: Any) -> Orders:
        return self._orders(Role.CONSUMER, consumer=ConsumerOptions((self.target,), **options))

    def _orders(self, role: Role, **options: Any) -> Orders:
        endpoints = (Endpoint(1, "n1", self._url),)
        return Orders(role, 1, "run", self.directory, self.clock.offset_us, endpoints, **options)

    def events(self, *kinds: Kind) -> list[Event]:
        return [event for event in read_events(self.directory) if event.kind in kinds]

    def judge(self) -> Reference:
        return Reference(read_events(self.directory), RunFacts(self.roster, [QueueFacts()]))


@pytest.fixture
def run(cluster: LiveCluster, tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    queue = request.node.name
    with cluster.channel("n1") as channel:
        channel.queue_declare(queue, durable=True)
    return Run(tmp_path, cluster.url("n1"), queue)


def taken_with_flags(cluster: LiveCluster, queue: str, count: int) -> list[bool]:
    """Whether each of the next so many messages counts as delivered before; of fewer if no more come."""
    flags: list[bool] = []
    if not count:
        return flags
    with cluster.channel("n1") as channel:
        for method, _, _ in channel.consume(queue, auto_ack=True, inactivity_timeout=DEFAULT_TIMEOUT_S):
            if method is None:
                break
            flags.append(method.redelivered)
            if len(flags) == count:
                break
    return flags


async def kill_and_restart(cluster: LiveCluster, run: Run, process: int) -> None:
    """The node, and the record of who does it: in between the queue has a new master, the same."""
    run.roster[process] = frozenset()
    with ProcessRecord(run.directory, "run", process, EventClass.CONTROL, run.clock) as record:
        since_us = run.clock.now_us()
        await cluster.local.kill("n1")
        await cluster.local.restart("n1")
        await cluster.local.wait_ready()
        record.note(Kind.PROMOTED, None, since_us, queue=1, node=1, epoch=2)


async def test_nothing_is_missing_in_the_record_of_a_run_whose_node_is_killed(cluster: LiveCluster, run: Run) -> None:
    count = 20_000
    async with Fleet(run.enrol) as fleet:
        publisher = await fleet.begin(run.publisher(messages_max=count, rate_per_s=4_000))
        consumer = await fleet.begin(run.consumer(consumers=2, requeue_share=0.02))
        await fleet.command(Command.START)
        await fleet.wait_counts(publisher, lambda counts: counts.confirmed > count / 4)
        await kill_and_restart(cluster, run, process=100)
        await fleet.wait_counts(publisher, lambda counts: counts.is_drained and counts.confirmed == count)
        await fleet.command(Command.DRAIN, consumer)
        await fleet.wait_counts(consumer, lambda counts: counts.connected == 2)
        await asyncio.to_thread(
            cluster.wait_queue, run.target.name, lambda view: (view.ready, view.unacked) == (0, 0), "empty"
        )
    assert Counter(event.number for event in run.events(Kind.CHANNEL_OVER)) == {Ending.LOST: 3, Ending.BY_CLIENT: 3}
    assert run.events(Kind.UNRESOLVED), "the node was killed while something was outstanding"
    assert {unpack(event.message).sequence for event in run.events(Kind.DELIVER)} == set(range(1, count + 1))
    judge = run.judge()
    assert judge.incomplete == set()
    assert [finding for finding in judge.findings() if finding.name in VIOLATIONS] == []


async def test_an_orderly_end_gives_nothing_back(cluster: LiveCluster, run: Run) -> None:
    """Also not what is delivered between basic.cancel and its answer, which pika itself would reject."""
    count = 5_000
    async with Fleet(run.enrol) as fleet:
        publisher = await fleet.begin(run.publisher(messages_max=count))
        consumer = await fleet.begin(run.consumer(prefetch=400, group=2))
        await fleet.command(Command.START, publisher)
        await fleet.wait_counts(publisher, lambda counts: counts.is_drained)
        await fleet.command(Command.START, consumer)
        await fleet.command(Command.STATUS, consumer)
        await fleet.wait_counts(consumer, lambda counts: counts.connected == 1)
        await fleet.stop()
    delivered = {event.tag for event in run.events(Kind.DELIVER)}
    assert {event.tag for event in run.events(Kind.ACK)} == delivered
    assert {event.tag for event in run.events(Kind.ACK_PROVEN)} == delivered
    assert [event.number for event in run.events(Kind.CHANNEL_OVER)] == [Ending.BY_CLIENT] * 2
    assert len(run.events(Kind.UNSUBSCRIBED)) == 1
    left = taken_with_flags(cluster, run.target.name, count - len(delivered))
    assert left == [False] * (count - len(delivered))


async def test_consumers_hold_release_cease_and_start_again(cluster: LiveCluster, run: Run) -> None:
    count = 1_000
    async with Fleet(run.enrol) as fleet:
        publisher = await fleet.begin(run.publisher(messages_max=count))
        consumer = await fleet.begin(run.consumer(prefetch=100, group=10))
        await fleet.command(Command.HOLD, consumer)
        await fleet.command(Command.START)
        await fleet.wait_counts(publisher, lambda counts: counts.is_drained)
        held = await fleet.wait_counts(consumer, lambda counts: counts.held == 100)
        assert held.acknowledged == 0
        await fleet.command(Command.CEASE, consumer)
        await fleet.command(Command.RELEASE, consumer)
        settled = await fleet.wait_counts(consumer, lambda counts: counts.delivered > 0 == counts.outstanding)
        await fleet.command(Command.START, consumer)
        await fleet.wait_counts(consumer, lambda counts: counts.proven == count)
    assert settled.delivered < count, "who has ceased gets nothing more"
    kinds = [event.kind for event in run.events(Kind.SUBSCRIBED, Kind.UNSUBSCRIBED, Kind.RELEASE)]
    assert kinds == [Kind.SUBSCRIBED, Kind.UNSUBSCRIBED, Kind.SUBSCRIBED, Kind.UNSUBSCRIBED]


async def test_a_cancelled_consumer_comes_back_when_its_queue_does(cluster: LiveCluster, run: Run) -> None:
    async with Fleet(run.enrol) as fleet:
        consumer = await fleet.begin(run.consumer())
        await fleet.command(Command.START)
        await fleet.wait_counts(consumer, lambda counts: counts.connected == 1)
        with cluster.channel("n1") as channel:
            channel.queue_delete(run.target.name)
            await fleet.wait_counts(consumer, lambda counts: counts.connected == 0)
            channel.queue_declare(run.target.name, durable=True)
        await fleet.wait_counts(consumer, lambda counts: counts.connected == 1)
    kinds = [Kind(event.kind) for event in read_events(run.directory)]
    assert kinds.index(Kind.CANCELLED) < kinds.index(Kind.CHANNEL_OVER), "it was cancelled, and tried again"
    assert "404" in run.events(Kind.CHANNEL_OVER)[0].detail
    assert run.events(Kind.CHANNEL_OVER)[0].number == Ending.BY_BROKER
    assert len(run.events(Kind.SUBSCRIBED)) == 2


async def test_what_no_queue_takes_is_returned_published_again_and_given_up(cluster: LiveCluster, run: Run) -> None:
    with cluster.channel("n1") as channel:
        channel.queue_delete(run.target.name)
    async with Fleet(run.enrol) as fleet:
        publisher = await fleet.begin(
            run.publisher(messages_max=2, is_mandatory=True, attempts_max=2, retry_pause_ms=1)
        )
        await fleet.command(Command.START)
        await fleet.wait_counts(publisher, lambda counts: counts.is_drained and counts.given_up == 2)
    attempts = {(1, 1), (1, 2), (2, 1), (2, 2)}
    for kind in (Kind.PUBLISH, Kind.RETURN, Kind.CONFIRM):
        assert {unpack(event.message)[2:] for event in run.events(kind)} == attempts
    assert {event.flags for event in run.events(Kind.PUBLISH)} == {Flag.MANDATORY}
    assert [unpack(event.message)[2:] for event in run.events(Kind.GIVEN_UP)] == [(1, 2), (2, 2)]
    assert run.judge().findings() == []


async def test_a_process_that_dies_is_reported_and_its_record_has_no_end(run: Run) -> None:
    heard: list[int] = []
    fleet = Fleet(run.enrol, on_failure=lambda failure: heard.append(failure.process))
    victim = await fleet.begin(run.consumer())
    other = await fleet.begin(run.consumer())
    victim.child.kill()
    with pytest.raises(FleetError, match="process 1: has ended before"):
        await fleet.wait_counts(victim, lambda _counts: False)
    await fleet.stop_all()
    assert heard == [1]
    assert [(failure.process, failure.reason) for failure in fleet.failures] == [(1, "ended with -9")]
    assert not other.is_running
    assert run.judge().incomplete == {1}


async def test_who_does_not_stop_is_killed_and_reported(run: Run) -> None:
    fleet = Fleet(run.enrol, stop_timeout_s=0.1)
    frozen: Member = await fleet.begin(run.consumer())
    frozen.child.send_signal(signal.SIGSTOP)
    await fleet.stop_all()
    assert [failure.reason for failure in fleet.failures] == ["did not stop in time, and was killed"]
    assert not frozen.is_running


# --- the process by itself


def lonely_orders(directory: Path) -> Orders:
    """Of a consumer whose endpoint nobody listens on."""
    endpoint = Endpoint(3, "n3", f"amqp://guest:{PASSWORD}@127.0.0.1:{choose_free_ports('127.0.0.1', 1)[0]}/%2F")
    options = ConsumerOptions((QueueTarget(1, "q"),))
    return Orders(Role.CONSUMER, 1, "run", directory, 0, (endpoint,), consumer=options, reconnect_pause_ms=1)


def begin(line: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "chaos.clients.process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return child


def answers(said: str) -> list[str]:
    return [json.loads(line)["answer"] for line in said.splitlines()]


@pytest.mark.parametrize("end", ["end of input", "SIGTERM"])
def test_a_process_closes_its_record_however_it_is_ended(tmp_path: Path, end: str) -> None:
    child = begin(lonely_orders(tmp_path).to_json())
    assert child.stdout is not None
    ready = child.stdout.readline()
    while "counts" not in (line := child.stdout.readline()):
        assert line, "it goes on without a broker"
    if end == "SIGTERM":
        child.send_signal(signal.SIGTERM)
        child.wait()
    said, _ = child.communicate()
    assert child.returncode == 0
    assert answers(ready + said)[0] == "ready"
    assert answers(said)[-1] == "ended"
    events = list(read_events(tmp_path))
    assert {Kind(event.kind) for event in events} == {Kind.CONNECT_FAILED, Kind.PROCESS_END}
    assert {event.node for event in events if event.kind == Kind.CONNECT_FAILED} == {3}
    assert Reference(events, RunFacts({1: frozenset()}, [])).incomplete == set()
    told = ready + said + "".join(event.detail for event in events)
    assert "horse" not in told


def test_commands_that_are_none_are_refused(tmp_path: Path) -> None:
    child = begin(lonely_orders(tmp_path).to_json())
    said, _ = child.communicate('nonsense\n{"command": "dance"}\n[]\n')
    assert [answer for answer in answers(said) if answer != "counts"] == ["ready", *["refused"] * 3, "ended"]


@pytest.mark.parametrize("line", ["", '{"role": "publisher"}'])
def test_orders_that_are_none_end_the_process(line: str) -> None:
    child = begin(line)
    said, _ = child.communicate()
    assert answers(said) == ["failed"]
    assert child.returncode == 1


def test_a_number_that_has_recorded_already_is_refused(tmp_path: Path) -> None:
    orders = lonely_orders(tmp_path)
    begin(orders.to_json()).communicate()
    child = begin(orders.to_json())
    said, _ = child.communicate()
    assert json.loads(said.splitlines()[-1])["reason"].startswith("FileExistsError")
    assert child.returncode == 1
