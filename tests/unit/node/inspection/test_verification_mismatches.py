"""What a verification says where every file is whole, or nearly, and they do not fit together."""

from __future__ import annotations

import shutil
from pathlib import Path
from zlib import crc32

import pytest

from node.inspection.findings import Findings, Kind, Problem
from node.inspection.inspection import inspect
from node.inspection.references import References, Referrer
from node.inspection.verification import verify
from node.store.disk.disk import RealDisk
from node.store.formats.record import (
    JOURNAL_FORMAT,
    SEGMENT_FORMAT,
    SHARED_STORE_FORMAT,
    Slot,
    pack_slot,
    unpack_slot,
)
from node.store.index.conversion import CURSOR_FORMAT
from node.store.index.v1.format import ACK_PAYLOAD, KIND_ACK, checksum_seed, pack_record
from node.store.queue_storage import read_stub
from tests.support.messages import msg_id_of, publications
from tests.support.storage_on_disk import (
    BIG_BODY,
    BILLS,
    BILLS_NAME,
    ORDERS,
    ORDERS_NAME,
    NodeOnDisk,
    cut,
    flip,
    problems,
    the_problem,
    write_v1_queue,
    write_vhost_file,
)


def test_a_record_of_another_message(crashed: NodeOnDisk) -> None:
    """Slots 2 and 3 swap the places of their records: everything has its checksum, but not the right msg_id."""
    path = crashed.queue() / "0.qi"
    content = bytearray(path.read_bytes())
    slots: list[Slot] = []
    for seq_id in (2, 3):
        slot = unpack_slot(seq_id, bytes(content[64 + seq_id * 32 : 96 + seq_id * 32]))
        assert slot is not None
        slots.append(slot)
    for seq_id, own, other in ((2, slots[0], slots[1]), (3, slots[1], slots[0])):
        content[64 + seq_id * 32 : 96 + seq_id * 32] = pack_slot(seq_id, own._replace(offset=other.offset))
    path.write_bytes(content)
    found = problems(crashed.directory)
    assert [(problem.kind, problem.offset) for problem in found] == [
        (Kind.DAMAGE, slots[1].offset),
        (Kind.DAMAGE, slots[0].offset),
    ]
    assert "damaged or cut off" in found[0].what


def test_two_positions_with_the_same_record(crashed: NodeOnDisk) -> None:
    path = crashed.queue() / "0.qi"
    content = bytearray(path.read_bytes())
    slot = unpack_slot(2, bytes(content[128:160]))
    assert slot is not None
    content[64:96] = pack_slot(0, slot)
    path.write_bytes(content)
    texts = [problem.what for problem in problems(crashed.directory)]
    assert any("positions 0 and 2 have the same message" in text for text in texts)
    assert any("positions 0 and 2 name the same bytes" in text for text in texts)


def test_a_queue_that_came_from_elsewhere(stopped: NodeOnDisk) -> None:
    """Its directory was renamed: every header says whose file it is."""
    stopped.queue().rename(stopped.queue().with_name("70"))
    found = problems(stopped.vhost / "queues" / "70")
    assert "names queue 7 in the directory of 70" in found[0].what
    assert any("owner 7" in problem.what for problem in found)


def test_terms_that_are_older_than_the_slots(stopped: NodeOnDisk, tmp_path: Path) -> None:
    """Somebody put back the terms of an earlier stop."""
    terms = stopped.queue() / "clean.terms"
    old = terms.read_bytes()
    stopped.start()
    orders = stopped.open()
    stopped.open(BILLS, BILLS_NAME)
    orders.publish(publications(21, 3))
    orders.ack([delivery.seq_id for delivery in orders.fetch(1, ack_required=True)])
    stopped.stop()
    assert problems(stopped.directory) == []
    terms.write_bytes(old)
    texts = "\n".join(problem.what for problem in problems(stopped.directory))
    assert "the next position is 16, but 18 has an entry" in texts
    assert "1 positions (2) should be live, but have no readable entry" in texts
    assert "2.qi" in "\n".join(problem.path for problem in problems(stopped.directory))


def test_reference_counts_that_do_not_fit(stopped: NodeOnDisk) -> None:
    """A queue's directory was removed by hand after a clean stop."""
    shutil.rmtree(stopped.queue(BILLS))
    found = problems(stopped.directory)
    assert {problem.kind for problem in found} == {Kind.DAMAGE}
    texts = [problem.what for problem in found]
    assert sum("has 2 references, the queues have 1" in text for text in texts) == 3
    assert sum("no queue refers to message" in text for text in texts) == 1


def test_one_queue_that_did_not_stop_cleanly_spoils_the_tables(stopped: NodeOnDisk) -> None:
    (stopped.queue(BILLS) / "clean.terms").unlink()
    problem = the_problem(stopped.directory)
    assert (problem.kind, problem.path) == (Kind.LEFTOVER, str(stopped.shared / "clean.tables"))


def test_a_queue_by_name(stopped: NodeOnDisk) -> None:
    flip(stopped.queue() / "0.qi", 64 + 2 * 32 + 9)
    assert problems(stopped.directory, "bills") == []
    assert problems(stopped.directory, "orders")
    assert verify(str(stopped.directory), queue_name="none").unknown_queue


def test_damage_that_an_earlier_start_reported_is_no_news(crashed: NodeOnDisk) -> None:
    """The damaged record stays in its file; the copy in quarantine/ says that it is known."""
    flip(crashed.shared / "0.rdq", 64 + 200)
    assert verify(str(crashed.directory)).has_damage
    crashed.start()
    crashed.open()
    crashed.open(BILLS, BILLS_NAME)
    crashed.stop()
    problem = the_problem(crashed.directory)
    assert problem.kind is Kind.LEFTOVER
    assert "known since an earlier start" in problem.consequence
    # The record begins at 207; more of it is wrong now than what was kept.
    flip(crashed.shared / "0.rdq", 64 + 230)
    assert verify(str(crashed.directory)).has_damage


def test_the_stub_of_the_test_is_read_as_the_storage_reads_it(stopped: NodeOnDisk) -> None:
    stub = read_stub(RealDisk(), str(stopped.queue()))
    assert stub is not None
    assert (stub.queue_id, stub.queue_name) == (ORDERS, ORDERS_NAME)


def test_an_index_under_conversion(crashed: NodeOnDisk) -> None:
    """Entries of the old version below the cursor are copies, whose messages the shared store may have given up."""
    (crashed.shared / "0.rdq").write_bytes(SHARED_STORE_FORMAT.header(0, 0))
    assert len(problems(crashed.directory)) == 4
    cursor = crashed.queue(BILLS) / "conversion.cursor"
    body = (3 << 1 | 1).to_bytes(8, "big")
    content = CURSOR_FORMAT.header(2, BILLS).ljust(512, b"\0") + body + crc32(body).to_bytes(4, "big")
    cursor.write_bytes(content)
    found = problems(crashed.directory)
    assert [problem.path for problem in found if problem.kind is Kind.LEFTOVER] == [str(cursor)]
    missing = [problem.what for problem in found if problem.kind is Kind.TORN]
    # Message 13 was only in this queue; 14 and 15 are in the other one, too, and 16 is above the cursor.
    assert [text.partition(" names")[0] for text in missing] == ["position 13", "position 14", "position 15"]
    assert ["others" in text for text in missing] == [False, False, True]
    flip(cursor, 515)
    assert "one of the two copies is wrong" in "".join(problem.what for problem in problems(crashed.directory))


def test_references_are_counted_by_message() -> None:
    references = References()
    references.begin_queue("/a")
    references.add(msg_id_of(1), 1 << 40 | 5)
    references.add(msg_id_of(2), 6)
    references.begin_queue("/b")
    references.add(msg_id_of(1), 7)
    assert references.get(msg_id_of(1)) == Referrer("/a", 1 << 40 | 5, 2)
    assert references.get(msg_id_of(3)) is None
    assert [references.see(msg_id_of(counter)) for counter in (1, 1, 3)] == [True, False, False]
    assert references.get(msg_id_of(1)) == Referrer("/a", 1 << 40 | 5, 2)
    assert list(references.unseen()) == [(msg_id_of(2), Referrer("/a", 6, 1))]
    assert (len(references), dict(references.items())) == (2, {msg_id_of(1): 2, msg_id_of(2): 1})
    references.check_invariants()


def test_more_problems_than_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.inspection.findings.PROBLEMS_MAX", 2)
    told: list[Problem] = []
    findings = Findings(told.append)
    for offset in range(3):
        findings.damage("/file", offset, "what", "consequence")
    assert (len(findings.problems), findings.counts, len(told)) == (2, {Kind.DAMAGE: 3}, 3)
    findings.check_invariants()


def test_a_slot_with_another_msg_id(crashed: NodeOnDisk) -> None:
    path = crashed.queue() / "0.qi"
    content = bytearray(path.read_bytes())
    slot = unpack_slot(2, bytes(content[128:160]))
    assert slot is not None
    content[128:160] = pack_slot(2, slot._replace(msg_id=msg_id_of(99)))
    path.write_bytes(content)
    problem = the_problem(crashed.directory)
    assert "whole but another message's" in problem.what
    assert (problem.kind, problem.path, problem.offset) == (Kind.DAMAGE, str(path.with_name("0.qs")), slot.offset)


def test_an_index_file_of_another_length(crashed: NodeOnDisk) -> None:
    path = crashed.queue(BILLS) / "0.qi"
    content = path.read_bytes()
    cut(path, 64 + 4 * 32)
    problem = the_problem(crashed.directory)
    assert (problem.kind, problem.what) == (Kind.TORN, "has 192 bytes instead of 320")
    path.write_bytes(content + bytes(32))
    problem = the_problem(crashed.directory)
    assert (problem.kind, problem.what) == (Kind.DAMAGE, "has 352 bytes instead of 320")


def test_slots_that_are_older_than_the_terms(stopped: NodeOnDisk) -> None:
    slots = stopped.queue() / "0.qi"
    old = slots.read_bytes()
    stopped.start()
    orders = stopped.open()
    stopped.open(BILLS, BILLS_NAME)
    orders.ack([delivery.seq_id for delivery in orders.fetch(1, ack_required=True)])
    stopped.stop()
    slots.write_bytes(old)
    texts = [problem.what for problem in problems(stopped.directory)]
    assert "segment 0: 1 positions (2) have entries, but the terms say settled" in texts


def test_a_store_that_lost_garbage_only(tmp_path: Path) -> None:
    """New records would be written where the terms say, behind a gap."""
    node = NodeOnDisk(tmp_path)
    queue = node.open()
    queue.publish(publications(1, 2))
    node.sync()
    deliveries = queue.fetch(2, ack_required=True)
    queue.ack([deliveries[1].seq_id])
    node.stop()
    path = node.queue() / "0.qs"
    size = path.stat().st_size
    cut(path, size - 5)
    assert f"has {size - 5} bytes, the terms say {size}" in [problem.what for problem in problems(tmp_path)]


def test_a_message_that_damage_took_is_damage(crashed: NodeOnDisk) -> None:
    flip(crashed.shared / "0.rdq", 64 + 20)
    first, second = problems(crashed.directory)
    assert (first.kind, first.offset) == (Kind.DAMAGE, 64)
    assert (second.kind, second.path) == (Kind.DAMAGE, str(crashed.queue(BILLS)))
    assert "position 0 names message" in second.what


def test_terms_and_files_of_version_1(tmp_path: Path) -> None:
    write_vhost_file(tmp_path / "v")
    directory = write_v1_queue(tmp_path / "v", stops_cleanly=True)
    path = directory / "2.idx"
    content = path.read_bytes()
    ack = pack_record(KIND_ACK, False, 16, ACK_PAYLOAD.pack(1), checksum_seed(SEGMENT_FORMAT, 2), len(content))
    path.write_bytes(content + ack)
    texts = [problem.what for problem in problems(directory)]
    assert f"has {len(content) + len(ack)} bytes, the terms say {len(content)}" in texts
    assert any("1 live entries have no readable record" in text for text in texts)
    path.write_bytes(content)
    (directory / "7.jif").write_bytes(JOURNAL_FORMAT.header(7, 9))
    assert the_problem(directory).what == "is a journal, and a clean stop leaves none"


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (2, 1)])
def test_each_version_and_a_conversion_are_whole(
    tmp_path: Path, versions: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped and killed before, in the middle of and after a conversion."""
    monkeypatch.setattr("node.store.queue_storage.CONVERSION_STEP_ENTRIES", 3)
    old, new = versions
    node = NodeOnDisk(tmp_path / "n1")
    queue = node.store.open_queue(ORDERS, ORDERS_NAME, durable=True, version=old)
    queue.publish(publications(1, 12))
    queue.publish(publications(13, 4, body=BIG_BODY))
    node.sync()
    queue.ack([delivery.seq_id for delivery in queue.fetch(3, ack_required=True)])
    node.sync()
    assert problems(node.killed(tmp_path / "before")) == []
    node.stop()
    assert problems(node.directory) == []
    seen: set[tuple[int, ...]] = set()
    for start in range(3):
        node.start()
        node.store.open_queue(ORDERS, ORDERS_NAME, durable=True, version=new)
        for round_number in range(4):
            node.store.maintain(0)
            node.sync()
            copy = node.killed(tmp_path / f"round {start} {round_number}")
            seen.add(tuple(inspect(str(copy)).vhosts[0].queues[0].index_versions))
            assert but_the_cursor(problems(copy)) == []
        node.stop()
        assert but_the_cursor(problems(node.directory)) == []
    assert seen == ({(1,)} if old == new else {(old,), (1, 2), (new,)})


def but_the_cursor(found: list[Problem]) -> list[Problem]:
    """Without the word that a conversion is under way."""
    return [problem for problem in found if not problem.path.endswith("conversion.cursor")]
