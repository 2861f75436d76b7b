"""What a healed and drained cluster has of what nobody owns is found, and what is meant to stay is not."""

from __future__ import annotations

import pytest

from chaos.sim.client import Channel
from chaos.sim.insides import vhost_stores
from chaos.sim.leaks import what_is_left, why_not_given_back
from chaos.sim.machine import DATA_DIR
from chaos.sim.run import run_schedule
from node.ids import MsgId
from node.queues.vhost_store import VhostStore, vhost_directory
from node.store.disk.simulated import SimulatedFile
from node.store.queue_storage import STUB_NAME
from tests.support.sim_lab import Lab
from tests.support.simulated import schedule

LARGE = bytes(20_000)


@pytest.fixture
def lab(founded_lab: Lab) -> Lab:
    founded_lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    founded_lab.declare("n1", "q")
    founded_lab.use_channel("n1", publish_large)
    founded_lab.pass_time(1)
    founded_lab.until_converged()
    return founded_lab


async def publish_large(channel: Channel) -> None:
    await channel.confirm_select()
    for _ in range(3):
        channel.publish("q", LARGE)
    await channel.declare("q", passive=True)


def store_of(lab: Lab, name: str) -> VhostStore:
    [store] = vhost_stores(lab.cluster.nodes[name])
    return store


def test_what_queues_own_is_no_leak(lab: Lab) -> None:
    persistent = store_of(lab, "n2")._stores.persistent
    assert persistent.status().messages == 3
    assert why_not_given_back(lab.cluster) == ""


def test_a_reference_too_many_is_found_and_who_is_to_count_it(lab: Lab) -> None:
    persistent = store_of(lab, "n2")._stores.persistent
    msg_id = next(msg_id for msg_id, _ in persistent._table.items())
    assert persistent.retain(msg_id)
    assert f"n2: in the store of persistent messages nobody owns {msg_id.hex()} (2 references, 1 of them owned)" in (
        why_not_given_back(lab.cluster)
    )
    persistent.count_anew()
    assert why_not_given_back(lab.cluster).endswith("which the next start is to count")
    persistent.release(msg_id)
    assert why_not_given_back(lab.cluster) == ""


def test_so_is_a_message_that_no_queue_has(lab: Lab) -> None:
    store_of(lab, "n3")._stores.transient.write_batch([(MsgId(bytes(16)), bytes(100))])
    assert "n3: in the store of transient messages nobody owns 0000" in why_not_given_back(lab.cluster)


def test_a_file_in_which_nothing_lives_is_found_unless_it_is_written_to(lab: Lab) -> None:
    persistent = store_of(lab, "n2")._stores.persistent
    persistent.write_batch([(MsgId(bytes(16)), bytes(100))])
    persistent.release(MsgId(bytes(16)))
    assert persistent._files.summaries[persistent._files.current or 0].valid_bytes == 0
    assert why_not_given_back(lab.cluster) == ""
    persistent._files.roll()
    assert "files of persistent messages in which nothing lives" in why_not_given_back(lab.cluster)
    lab.pass_time(2)
    assert why_not_given_back(lab.cluster) == ""


def test_what_is_left_of_a_deleted_queue_is_found(lab: Lab) -> None:
    store = store_of(lab, "n1")
    lab.cluster.machines["n1"].disk.mkdir(f"{store.directory}/deleting/9.1")
    assert why_not_given_back(lab.cluster) == "n1: of deleted queues there is still 9.1"


def test_so_is_the_directory_of_a_queue_that_does_not_exist(lab: Lab) -> None:
    store = store_of(lab, "n1")
    lab.cluster.machines["n1"].disk.mkdir(f"{store.directory}/queues/99")
    assert why_not_given_back(lab.cluster) == "n1: there are directories of queues that are not open: 99"


def test_also_in_a_vhost_that_its_node_does_not_open(lab: Lab) -> None:
    lab.ask("n1", lambda admin: admin.add_vhost("v"))
    disk, directory = lab.cluster.machines["n1"].disk, vhost_directory(DATA_DIR, "v")
    disk.mkdir(f"{directory}/queues/99")
    assert why_not_given_back(lab.cluster) == "n1: there are directories of queues that are not open: 99"


def test_a_copy_that_is_kept_owns_what_it_names(lab: Lab) -> None:
    """Its node comes back when there are as many mirrors as the policy wants: an operator may want what it has."""
    lab.cluster.kill("n3")
    lab.pass_time(8)
    lab.set_policy("n1", {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"})
    lab.pass_time(2)
    lab.start("n3")
    lab.pass_time(5)
    record = lab.record("n1", "q")
    assert record is not None
    assert "n3" not in (record.master, *record.mirrors)
    store = store_of(lab, "n3")
    assert lab.cluster.machines["n3"].disk.list(f"{store.directory}/queues") != []
    assert store._stores.persistent.status().messages == 3
    assert why_not_given_back(lab.cluster) == ""


def test_files_are_found_that_are_open_and_should_not_be(lab: Lab) -> None:
    disk, directory = lab.cluster.machines["n2"].disk, store_of(lab, "n2").directory
    disk.mkdir(f"{directory}/deleting/7.1")
    nameless, stray, twice = (
        disk.create(f"{directory}/nameless"),
        disk.create(f"{directory}/deleting/7.1/0.qi"),
        disk.open("/data/raft/log"),
    )
    disk.unlink(nameless.path)
    disk.create(f"{directory}/dropped").append(b"x")
    found = set()
    for file in (None, nameless, twice, stray):
        if file is not None:
            file.abandon()
        lines = [line for line in what_is_left(lab.cluster) if "deleted queues" not in line]
        found |= {line.partition(":")[2].strip() for line in lines}
    assert found == {
        f"files were dropped without being closed: {directory}/dropped",
        f"files are open that have no name any more: {directory}/nameless",
        "files are open more than once: /data/raft/log",
        f"files are open whose owners are closed: {directory}/deleting/7.1/0.qi",
    }


def test_a_run_in_which_a_descriptor_is_not_given_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with the name of a queue that is not durable is abandoned, as nobody syncs it."""
    visit = (300, "guest", 0, "paged")
    assert run_schedule(schedule(visit, guests=1)).violations == []
    abandon = SimulatedFile.abandon
    monkeypatch.setattr(
        SimulatedFile, "abandon", lambda file: file.close() if file.path.endswith(STUB_NAME) else abandon(file)
    )
    outcome = run_schedule(schedule(visit, guests=1))
    assert [violation.kind for violation in outcome.violations] == ["leak"] * len(outcome.violations) != []
    assert "dropped without being closed" in outcome.violations[0].text
