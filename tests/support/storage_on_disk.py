"""Directories as nodes leave them, made by the real storage on the operating system's files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from node.ids import QueueId, QueueName
from node.inspection.findings import Problem
from node.inspection.verification import verify
from node.message import Message
from node.queues.local_replica import LocalReplica
from node.queues.vhost_store import FORMAT, VhostStore
from node.store.disk.disk import RealDisk, write_durably
from node.store.disk.group_commit import GroupCommit
from node.store.index.terms import SeqBounds, Terms
from node.store.index.v1.index import QueueIndexV1
from node.store.shared.config import StoreConfig
from node.store.shared.msg_store import MessageStore
from tests.support.messages import make_message, publications
from tests.support.stores import run_sync_round

#: A few messages fill a segment and a journal; bodies of `BIG_BODY` go to the shared store.
SMALL = StoreConfig(embed_below_bytes=60, v1_segment_entries=8, v1_journal_entries_max=12, v2_segment_entries=8)
BIG_BODY = b"b" * 90
ORDERS, ORDERS_NAME = QueueId(7), QueueName("/", "orders")
BILLS, BILLS_NAME = QueueId(8), QueueName("/", "bills")
V1_ID = QueueId(9)


class NodeOnDisk:
    """The storage of one vhost of a node at work."""

    #: Set by `fill`.
    orders: LocalReplica
    bills: LocalReplica

    def __init__(self, directory: Path, config: StoreConfig = SMALL) -> None:
        self.directory = directory
        self.config = config
        self.start()

    def start(self) -> None:
        self.disk = RealDisk()
        self.group_commit = GroupCommit()
        self.store = VhostStore(self.disk, str(self.directory), "/", self.group_commit, self.config)

    def open(self, queue_id: QueueId = ORDERS, name: QueueName = ORDERS_NAME) -> LocalReplica:
        return self.store.open_queue(queue_id, name, durable=True)

    @property
    def vhost(self) -> Path:
        return Path(self.store.directory)

    def queue(self, queue_id: QueueId = ORDERS) -> Path:
        return self.vhost / "queues" / str(queue_id)

    @property
    def shared(self) -> Path:
        return self.vhost / "msg_store_persistent"

    def sync(self) -> None:
        run_sync_round(self.group_commit)

    def stop(self) -> None:
        self.store.close()

    def killed(self, copy: Path) -> Path:
        """What a SIGKILL would leave now, as a copy."""
        shutil.copytree(self.directory, copy)
        return copy


def fill(node: NodeOnDisk) -> None:
    """Two queues.

    *orders*: 12 small messages (positions 0 to 11), of which 0 and 1 are settled; 4 big ones (12 to 15), of which 12 is
    settled. *bills*: the same 4 big ones at 0 to 3, and nothing settled.
    """
    orders, bills = node.orders, node.bills = node.open(), node.open(BILLS, BILLS_NAME)
    orders.publish(publications(1, 12))
    big = publications(13, 4, body=BIG_BODY)
    orders.publish(big)
    bills.publish(big)
    node.sync()
    deliveries = orders.fetch(13, ack_required=True)
    orders.ack([deliveries[position].seq_id for position in (0, 1, 12)])
    orders.requeue_all()
    node.sync()


def write_v1_queue(vhost: Path, *, stops_cleanly: bool, config: StoreConfig = SMALL) -> Path:
    """A queue with an index of version 1: 20 messages, every third of them in the shared store; 0 to 2 are settled.

    A node that crashed leaves the last of them in journals.
    """
    disk, group_commit = RealDisk(), GroupCommit()
    directory = vhost / "queues" / str(V1_ID)
    disk.mkdir(str(directory))
    stores = {
        name: MessageStore(disk, str(vhost / name), group_commit, config, {}, is_transient="transient" in name)
        for name in ("msg_store_persistent", "msg_store_transient")
    }
    index = QueueIndexV1(
        disk,
        str(directory),
        V1_ID,
        is_durable=True,
        group_commit=group_commit,
        persistent_store=stores["msg_store_persistent"],
        transient_store=stores["msg_store_transient"],
        config=config,
    )
    stub = b'{\n  "vhost": "/",\n  "queue": "first generation",\n  "durable": true,\n  "queue_id": 9\n}\n'
    write_durably(disk, str(directory / "queue.json"), stub)
    bounds = SeqBounds(disk, str(directory / "seq.bounds"), V1_ID, group_commit)
    bounds.renew(0)
    messages = [_v1_message(position) for position in range(20)]
    for first in range(0, 20, 5):
        index.publish({position: messages[position] for position in range(first, first + 5)})
        index.flush(first + 5)
        run_sync_round(group_commit)
    index.settle([0, 1, 2], messages[:3])
    index.flush(20)
    run_sync_round(group_commit)
    if stops_cleanly:
        index.close(20)
        terms = Terms(20, 3, 0, {}, index.version, index.terms())
        terms.write(disk, str(directory / "clean.terms"), V1_ID)
        for store in stores.values():
            store.close()
    return directory


def _v1_message(position: int) -> Message:
    return make_message(position + 1, body=BIG_BODY if position % 3 == 2 else b"small")


def write_vhost_file(vhost: Path, config: StoreConfig = SMALL) -> None:
    """``vhost.json`` of vhost ``/`` without a store at work."""
    fields = {
        "vhost": "/",
        "format": FORMAT,
        "v1_segment_entries": config.v1_segment_entries,
        "v2_segment_entries": config.v2_segment_entries,
    }
    vhost.mkdir(parents=True)
    (vhost / "vhost.json").write_text(json.dumps(fields, indent=2) + "\n")


def snapshot(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Modification time and content of everything below."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(directory.rglob("*"))
    }


def stay_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine does not lose power: hundreds of starts need not wait for its disk."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)


def problems(directory: Path, queue_name: str | None = None) -> list[Problem]:
    return verify(str(directory), queue_name=queue_name).findings.problems


def the_problem(directory: Path) -> Problem:
    (problem,) = problems(directory)
    return problem


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
