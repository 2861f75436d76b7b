"""Faults that a schedule asks for: each does what its name says, and the cluster keeps its promises under it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from chaos.history import Kind
from chaos.sim.cluster import SimulatedCluster
from chaos.sim.loop import simulated_loop
from chaos.sim.run import Outcome, run_schedule
from cluster.runtime.identity import IDENTITY_FILE
from node.errors import StorageError
from node.store.disk.disk import write_durably
from node.store.disk.simulated import SimulatedCrashError
from tests.support.amounts import few_fast, slow
from tests.support.sim_lab import Lab
from tests.support.simulated import SAFE_POLICY, personality, publish, schedule

TRAFFIC = [publish(at_ms, 4) for at_ms in range(100, 3000, 200)]


def kept(*steps: tuple[Any, ...], **changes: Any) -> Outcome:
    """What came of some traffic with these faults: no violation."""
    outcome = run_schedule(schedule(*TRAFFIC, (50, "consume", 0, 0), *steps, **changes))
    assert outcome.violations == []
    return outcome


@pytest.mark.parametrize(
    ("end", "operations"),
    few_fast(((end, count) for end in ("kill", "drop", "subset", "tear") for count in (1, 13, 5, 2)), 2),
)
def test_a_node_may_end_in_the_midst_of_an_operation_of_its_disk(end: str, operations: int) -> None:
    steps = [(1000, "crash", node, operations, end) for node in ("n1", "n2", "n3")]
    outcome = kept(*steps, *((2000, "start", node) for node in ("n1", "n2", "n3")), lasts_ms=4000)
    assert sum("in an operation of its disk" in line for line in outcome.story) == 3
    assert "a node ended in the midst of an operation" in outcome.sightings


def test_what_ends_in_the_midst_of_its_turn_does_nothing_more() -> None:
    """What it was writing just then is half done; what it goes on to do reaches no disk and no other node."""
    cluster = SimulatedCluster(simulated_loop(), personality(), seed=1)
    machine = cluster.machines["n1"]
    machine.disk.mkdir("/data")
    process = machine.start_process()
    reached: list[str] = []

    def write(name: str) -> None:
        with suppress(SimulatedCrashError, StorageError):
            machine.disk.create(f"/data/{name}").append(b"something")
            reached.append(name)

    def turn() -> None:
        for name in "abc":
            write(name)
        cluster.network.connect(process, "n1", ("n2", 1), lambda _end: None, lambda _error: None)

    process.call_soon(turn)
    cluster.crash("n1", 4, "kill")
    cluster.loop.run_until(1)
    assert reached == ["a"]
    assert machine.disk.snapshot() == {"/data/a": b"something", "/data/b": b"something"}
    assert machine.process is None


@pytest.mark.parametrize("end", few_fast(("power", "kill", "pause"), 1))
def test_a_master_may_end_just_when_a_client_hears_of_a_confirm(end: str) -> None:
    """The moment in which a confirm that came too early does harm."""
    outcome = kept((1000, "ambush", 0, "confirm", end, 1000), (2500, "ambush_end", 0), lasts_ms=4000)
    assert "a master ended as a client heard of it" in outcome.sightings


def test_a_shortage_of_memory_blocks_publishers_until_it_is_over() -> None:
    outcome = kept((1000, "memory_alarm", "n2"), (2000, "memory_alarm_end", "n2"))
    assert {"an alarm was raised", "a client was told of an alarm", "a client was told that an alarm is over"} <= set(
        outcome.sightings
    )


def test_a_client_gives_up_a_node_that_it_does_not_hear_any_more() -> None:
    """Half open: the node hears the client, so only the client's own heartbeat helps it. What it did not hear of it
    publishes again."""
    steps = [(1000, "cut", node, "p0") for node in ("n1", "n2", "n3")]
    steps += [(20_000, "cut_end", node, "p0") for node in ("n1", "n2", "n3")]
    outcome = kept(*steps, lasts_ms=21_000)
    assert "a client gave up a silent connection" in outcome.sightings
    assert any(event.kind == Kind.PUB_UNKNOWN for event in outcome.events)


def test_a_disk_that_refuses_to_write_takes_copies_out_and_a_restart_brings_them_back() -> None:
    outcome = kept((1000, "fail_writes", "n3", "/queues/"), (1500, "fail_writes_end", "n3"))
    assert "a copy went out of service" in outcome.sightings


def test_snapshots_of_the_metadata_come_early_if_a_personality_wants_them() -> None:
    policies = [(at_ms, "policy", {"ha-mode": "all", "ha-sync-mode": "automatic"}) for at_ms in range(600, 2500, 50)]
    stops = [(500, "kill", "n2"), (2500, "start", "n2")]
    outcome = kept(*stops, *policies, log_entries_kept=5)
    assert {"the log was cut off behind a snapshot", "a snapshot was installed"} <= set(outcome.sightings)


def test_a_synchronisation_is_cancelled_midway() -> None:
    """What has arrived by then is kept; the mirrors go on unsynchronised, as the policy lets them."""
    steps = [publish(100, 40), (500, "policy", {"ha-mode": "nodes", "ha-params": ["n1"]})]
    steps += [(1500, "policy", {"ha-mode": "all", "ha-sync-mode": "manual", "ha-sync-batch-size": 1})]
    steps += [(1700, "sync", 0), (1900, "cancel_sync", 0)]
    outcome = run_schedule(schedule(*steps, consumers=0, body_bytes_max=50, sync_throughput_bytes=1_000))
    assert outcome.violations == []
    assert "a synchronisation was cancelled midway" in outcome.sightings


def test_who_cancels_what_the_policy_wants_has_it_go_on_in_the_end() -> None:
    """Mirrors whose links are up are not filled by themselves after that."""
    alone, filled = {"ha-mode": "nodes", "ha-params": ["n1"]}, {**SAFE_POLICY, "ha-sync-batch-size": 1}
    steps = [publish(100, burst=60), (400, "policy", filled), (500, "cancel_sync", 0)]
    outcome = run_schedule(schedule(*steps, policy=alone, consumers=0, sync_throughput_bytes=300))
    assert outcome.violations == []
    assert "a synchronisation was cancelled midway" in outcome.sightings


# --- the workload


def test_what_no_queue_takes_is_returned_before_it_is_confirmed() -> None:
    outcome = kept((500, "nowhere", 0))
    kinds = [event.kind for event in outcome.events if event.queue_id == -1]
    assert kinds == [Kind.PUB_INVOKE, Kind.RETURN, Kind.CONFIRM]


def test_a_limit_drops_the_oldest_and_the_judge_knows_which() -> None:
    outcome = run_schedule(schedule(publish(100, 12), overflow="drop-head", length_max=5, consumers=0))
    assert outcome.violations == []
    dropped = [event.seq for event in outcome.events if event.kind == Kind.DROP]
    assert dropped == [1, 2, 3, 4, 5, 6, 7]


def test_a_limit_refuses_what_is_too_much_and_a_publisher_gives_up() -> None:
    outcome = run_schedule(schedule(publish(100, 12), overflow="reject-publish", length_max=5, consumers=0))
    assert outcome.violations == []
    delivered = [event.seq for event in outcome.events if event.kind == Kind.DELIVER and event.pub_id == 0]
    assert delivered == [1, 2, 3, 4, 5]
    assert "a publish was refused" in outcome.sightings


def test_a_transaction_is_delivered_whole_or_not_at_all() -> None:
    steps = [(100, "transaction", 0, 0, 4, 100, 1, 1), (200, "transaction", 0, 0, 3, 100, 1, 0)]
    outcome = run_schedule(schedule(*steps, transactors=1, consumers=0))
    assert outcome.violations == []
    assert [event.seq for event in outcome.events if event.kind == Kind.DELIVER and event.pub_id == 100] == [1, 2, 3, 4]


def test_what_is_recovered_comes_again_with_the_flag() -> None:
    outcome = kept((1500, "recover", 0, 0), hold_percent=100)
    assert "a channel recovered its deliveries" in outcome.sightings
    assert any(event.kind == Kind.DELIVER and event.redelivered for event in outcome.events)


def test_a_consumer_that_turns_to_another_queue_takes_what_still_comes_for_what_it_is() -> None:
    """Deliveries of the old queue are on their way when it decides; they were once recorded as those of the new one."""
    turns = [(at_ms, "consume", 0, at_ms // 50 % 2) for at_ms in range(400, 2900, 50)]
    other = [publish(at_ms + 20, 4, queue=1) for at_ms in range(100, 3000, 100)]
    kept(*turns, *other, queues=2, link_delay_ms=(5, 40), prefetch=100)


@pytest.mark.parametrize("kind", [slow("exclusive"), "auto_delete"])
def test_queues_that_come_and_go(kind: str) -> None:
    outcome = kept((300, "guest", 0, kind), (700, "kill", "n2"), (900, "guest", 0, kind), guests=1)
    assert f"an {kind.replace('_', '-')} queue was used" in outcome.sightings


@pytest.mark.parametrize("condition", ["unused", slow("empty")])
def test_a_deletion_may_have_a_condition(condition: str) -> None:
    """Not drawn yet; the step is there."""
    kept((1500, "delete_if", 0, condition))


def test_a_master_that_stood_still_may_hand_out_what_its_successor_has_settled() -> None:
    """It cannot know: it is cut off, and not yet so old that it pauses."""
    links = [(one, other) for node in ("n1", "n2") for one, other in ((node, "n3"), ("n3", node))]
    outcome = run_schedule(
        schedule(
            publish(100, 1),
            (300, "policy", {"ha-mode": "nodes", "ha-params": ["n3"]}),
            (800, "policy", {"ha-mode": "all", "ha-sync-mode": "automatic"}),
            (1300, "pause", "n3"),
            *((1310, "cut", *link) for link in links),
            (1400, "policy", {"ha-mode": "nodes", "ha-params": ["n1"]}),
            *((at_ms, "get_in_transaction", 0, 0) for at_ms in (1800, 1900, 2000)),  # sessions begin
            *((at_ms, "get_in_transaction", 0, 1) for at_ms in (2200, 2210, 2220)),
            (2500, "pause_end", "n3"),
            *((at_ms, "get_in_transaction", 0, 0) for at_ms in (2520, 2530, 2540, 2550)),
            *((3500, "cut_end", *link) for link in links),
            consumers=0,
        )
    )
    assert "an acknowledgement was proven" in outcome.sightings
    of_it = [event.kind for event in outcome.events if event.pub_id == 0 and event.seq == 1]
    assert Kind.DELIVER in of_it[of_it.index(Kind.ACK_SENT) :], "by the old master"
    assert outcome.violations == []


def test_a_committed_acknowledgement_may_be_lost_on_its_way_to_the_master() -> None:
    """``commit-ok`` waits for what was published, not for settlements, as in RabbitMQ; it was once taken for proof."""
    links = [("n1", "n2"), ("n1", "n3"), ("n2", "n3")]
    outcome = run_schedule(
        schedule(
            *(publish(at_ms, 1) for at_ms in range(100, 900, 40)),
            *((at_ms, "get_in_transaction", 0, 1) for at_ms in range(1000, 2000, 100)),
            *((at_ms, "reset", *link, "both", 0) for at_ms in range(1037, 2000, 100) for link in links),
            consumers=0,
            link_delay_ms=(1, 3),
        )
    )
    assert "an acknowledgement was proven" in outcome.sightings
    kinds: dict[int | None, list[str]] = {}
    for event in outcome.events:
        kinds.setdefault(event.seq, []).append(event.kind)
    acked = [of_it[of_it.index(Kind.ACK_SENT) :] for of_it in kinds.values() if Kind.ACK_SENT in of_it]
    assert any(Kind.DELIVER in of_it for of_it in acked)
    assert outcome.violations == []


def test_what_cannot_start_is_started_again_not_without_a_pause(lab: Lab) -> None:
    """Else a node that fails for good goes through thousands of lives, in no time of the cluster and much of ours."""
    lab.found()
    lab.cluster.kill("n1")
    write_durably(lab.cluster.machines["n1"].disk, f"/data/{IDENTITY_FILE}", b"damaged")
    lab.cluster.heal()
    lab.pass_time(4.5)
    ends = lab.ends_of("n1")
    assert all("cannot start" in end for end in ends)
    assert len(ends) == 5
