"""What a verification finds, on directories that the real storage made and the test damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from node.ids import QueueId, QueueName
from node.inspection.findings import Findings, Kind, Problem
from node.inspection.inspection import inspect
from node.inspection.references import References, Referrer
from node.inspection.verification import verify
from node.store.disk.disk import RealDisk
from node.store.disk.guarded import WRITE_EVERY_MS
from node.store.formats.record import (
    JOURNAL_FORMAT,
    RECORD_HEADER_BYTES,
    SEGMENT_FORMAT,
    SHARED_STORE_FORMAT,
    Slot,
    pack_holes_note,
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
    fill,
    snapshot,
    write_v1_queue,
    write_vhost_file,
)

#: Every byte would take half a minute. All remainders of 8 come up, so every bit of a byte is flipped somewhere.
FLIP_STEP = 3


@pytest.fixture
def node(tmp_path: Path) -> NodeOnDisk:
    node = NodeOnDisk(tmp_path / "n1")
    fill(node)
    return node


@pytest.fixture
def stopped(node: NodeOnDisk) -> NodeOnDisk:
    node.stop()
    return node


@pytest.fixture
def crashed(node: NodeOnDisk, tmp_path: Path) -> NodeOnDisk:
    """Killed after a sync; the copy takes the place of the directory, which the old process cannot touch any more."""
    copy = node.killed(tmp_path / "crashed")
    node.stop()
    shutil.rmtree(node.directory)
    copy.rename(node.directory)
    return node


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


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


# -- what is whole


def test_a_clean_stop_and_a_crash_leave_nothing_wrong(crashed: NodeOnDisk) -> None:
    assert problems(crashed.directory) == []
    crashed.start()
    crashed.open()
    crashed.open(BILLS, BILLS_NAME)
    crashed.stop()
    assert problems(crashed.directory) == []


def test_each_part_can_be_verified_alone(stopped: NodeOnDisk) -> None:
    for directory in (stopped.directory, stopped.vhost, stopped.queue(), stopped.shared):
        assert problems(directory) == []
    assert verify(str(stopped.vhost)).queues == 2
    assert verify(str(stopped.shared)).queues == 0


def test_nothing_changes(crashed: NodeOnDisk) -> None:
    flip(crashed.shared / "0.rdq", 100)
    flip(crashed.queue() / "0.qi", 64 + 2 * 32 + 9)
    before = snapshot(crashed.directory)
    assert problems(crashed.directory)
    assert snapshot(crashed.directory) == before


# -- flipped bits


def is_in_the_name(path: Path, offset: int) -> bool:
    """The queue's name in ``queue.json`` has no checksum, and no other place to compare it with."""
    content = path.read_bytes()
    start = content.find(b'"queue": "') + len(b'"queue": "')
    return path.name == "queue.json" and start <= offset < content.find(b'"', start)


def flipped(directory: Path) -> Iterator[tuple[Path, int]]:
    """A dense sample of places, one after the other with one bit flipped."""
    count = 0
    for path in files_below(directory):
        content = path.read_bytes()
        for offset in range(count % FLIP_STEP, len(content), FLIP_STEP):
            if not is_in_the_name(path, offset):
                flip(path, offset, offset % 8)
                yield path, offset
                path.write_bytes(content)
        count += len(content)


def test_every_flipped_bit_is_reported_after_a_clean_stop(stopped: NodeOnDisk) -> None:
    """Also in slots and records that nobody needs any more; as damage where anything is live."""
    count = 0
    for path, offset in flipped(stopped.directory):
        found = problems(stopped.directory)
        assert found, f"{path} at {offset}"
        # The record of a settled entry in a .qs file is the only thing of no consequence.
        if any(problem.kind is Kind.DAMAGE for problem in found):
            continue
        assert path.name in ("0.qs", "1.qs"), f"{path} at {offset}: {found}"
        assert found[0].consequence == "none: they go with the file", f"{path} at {offset}"
        count += 1
    assert count > 5


def test_every_flipped_bit_is_reported_after_a_crash(crashed: NodeOnDisk) -> None:
    for path, offset in flipped(crashed.directory):
        assert problems(crashed.directory), f"{path} at {offset}"


def test_damage_is_what_recovery_calls_damage(
    crashed: NodeOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judgement between damage and unfinished writes is that of the next start."""
    # Hundreds of starts, and the machine stays on.
    monkeypatch.setattr(os, "fsync", lambda _fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    copy = tmp_path / "copy"
    verdicts: set[bool] = set()
    for path, offset in flipped(crashed.directory):
        # Recovery looks neither at settled records nor at what has no checksum of its own.
        if path.suffix not in (".qi", ".qs", ".rdq") or offset % 5:
            continue
        found = problems(crashed.directory)
        if all(problem.consequence.startswith("none") or "that no entry names" in problem.what for problem in found):
            continue
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(crashed.directory, copy)
        again = NodeOnDisk(copy)
        reports = [again.open().recovery_report, again.open(BILLS, BILLS_NAME).recovery_report]
        corrupt = sum(report.corrupt for report in reports if report) + len(again.store.store_recovery.corrupt)
        again.stop()
        is_damage = any(problem.kind is Kind.DAMAGE for problem in found)
        assert is_damage == bool(corrupt), f"{path} at {offset}: {found}, recovery: {reports}"
        verdicts.add(is_damage)
    assert verdicts == {True, False}


@pytest.mark.parametrize("stops_cleanly", [True, False])
def test_every_flipped_bit_is_reported_in_version_1(tmp_path: Path, stops_cleanly: bool) -> None:
    write_vhost_file(tmp_path / "v")
    directory = write_v1_queue(tmp_path / "v", stops_cleanly=stops_cleanly)
    assert problems(tmp_path / "v") == []
    for path, offset in flipped(directory):
        found = problems(directory)
        assert found, f"{path} at {offset}"
        is_damage = any(problem.kind is Kind.DAMAGE for problem in found)
        # After a crash the last record of a file may be an unfinished write, and so may the small files.
        is_last = path.name in ("seq.bounds", "queue.json") or any("unfinished" in problem.what for problem in found)
        assert is_damage or (is_last and not stops_cleanly), f"{path} at {offset}: {found}"


# -- files that are cut, missing or new


@pytest.mark.parametrize("name", ["0.qi", "0.qs", "clean.terms", "seq.bounds"])
def test_a_cut_file_after_a_clean_stop_is_damage(stopped: NodeOnDisk, name: str) -> None:
    path = stopped.queue() / name
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        cut(path, size)
        assert Kind.DAMAGE in {problem.kind for problem in problems(stopped.directory)}, f"{name} cut to {size}"
        path.write_bytes(content)


@pytest.mark.parametrize("name", ["0.rdq", "clean.tables"])
def test_a_cut_store_after_a_clean_stop_is_damage(stopped: NodeOnDisk, name: str) -> None:
    path = stopped.shared / name
    content = path.read_bytes()
    for size in range(0, len(content), 7):
        cut(path, size)
        assert Kind.DAMAGE in {problem.kind for problem in problems(stopped.directory)}, f"{name} cut to {size}"
        path.write_bytes(content)


def test_a_cut_tail_after_a_crash_is_an_unfinished_write(crashed: NodeOnDisk) -> None:
    """What was cut off was never synced, for all that anybody can tell: no length was noted yet."""
    for path in (crashed.queue() / "1.qs", crashed.shared / "0.rdq"):
        content = path.read_bytes()
        for lost in (1, 20, 60):
            cut(path, len(content) - lost)
            result = verify(str(crashed.directory))
            assert result.findings.counts[Kind.TORN], f"{path} without {lost} bytes"
            assert not result.has_damage, result.findings.problems
            path.write_bytes(content)


def test_a_cut_tail_is_damage_once_the_length_was_noted(node: NodeOnDisk, tmp_path: Path) -> None:
    """Even at the border of two records; and each part finds its own files."""
    node.store.maintain(WRITE_EVERY_MS)
    node.sync()
    copy = node.killed(tmp_path / "crashed")
    vhost = copy / node.vhost.relative_to(node.directory)
    queue, shared = vhost / "queues" / str(ORDERS), vhost / "msg_store_persistent"
    assert problems(copy) == []
    for path, own in ((queue / "1.qs", queue), (queue / "0.qi", queue), (shared / "0.rdq", shared)):
        content = path.read_bytes()
        for lost in range(1, len(content), 13):
            cut(path, len(content) - lost)
            what = f"{lost} durable bytes are missing at the end, {len(content) - lost} of {len(content)} are left"
            for directory in (copy, vhost, own):
                assert what in [problem.what for problem in problems(directory)], directory
            if own == queue:
                assert what not in [problem.what for problem in problems(copy, BILLS_NAME.name)]
        path.write_bytes(content)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("name", ["0.qi", "0.qs", "seq.bounds", "queue.json"])
def test_a_missing_file_after_a_clean_stop_is_damage(stopped: NodeOnDisk, name: str) -> None:
    remove(stopped.queue() / name)
    found = [problem for problem in problems(stopped.directory) if problem.path.endswith(f"/{name}")]
    assert [problem.kind for problem in found][:1] == [Kind.DAMAGE]
    assert "is missing" in found[0].what


def test_a_missing_store_file_breaks_every_reference(stopped: NodeOnDisk) -> None:
    remove(stopped.shared / "0.rdq")
    found = problems(stopped.directory)
    assert "the tables say" in found[0].what
    missing = [problem for problem in found if "does not have" in problem.what]
    assert len(missing) == 4
    assert "position 0 names message" in missing[0].what or "position 13" in missing[0].what
    # The tables cannot be used, so the next start scans.
    assert missing[0].consequence == "dropped at the next start, counted as torn"


def test_a_missing_store_is_damage(stopped: NodeOnDisk) -> None:
    shutil.rmtree(stopped.shared)
    assert the_problem(stopped.directory).what == "is missing: 4 messages should be there"
    alone = verify(str(stopped.queue()))
    assert (alone.findings.problems, alone.unchecked_references) == ([], 3)


LEFTOVERS: list[tuple[str, Callable[[NodeOnDisk], Path]]] = [
    ("temporary file of a queue", lambda node: node.queue() / "clean.terms.tmp"),
    ("records without an index", lambda node: node.queue() / "9.qs"),
    ("temporary file of compaction", lambda node: node.shared / "5.rdq.tmp"),
    ("note of a file that is gone", lambda node: node.shared / "5.holes"),
]


@pytest.mark.parametrize(("path_of"), [path_of for _, path_of in LEFTOVERS], ids=[name for name, _ in LEFTOVERS])
def test_leftovers_are_no_damage(crashed: NodeOnDisk, path_of: Callable[[NodeOnDisk], Path]) -> None:
    path = path_of(crashed)
    path.write_bytes(b"")
    problem = the_problem(crashed.directory)
    assert (problem.kind, problem.path) == (Kind.LEFTOVER, str(path))


def test_a_queue_that_is_not_durable_is_not_looked_at(node: NodeOnDisk) -> None:
    """Its directory goes at the next start, whatever is in it."""
    queue = node.store.open_queue(QueueId(10), QueueName("/", "brief"), durable=False)
    queue.set_lazy(True)
    queue.publish(publications(31, 3))
    queue.engine.maintain()
    node.sync()
    flip(node.queue(QueueId(10)) / "0.qi", 70)
    problem = the_problem(node.directory)
    assert (problem.kind, problem.consequence) == (Kind.LEFTOVER, "removed at the next start")


def test_the_note_of_an_interrupted_compaction(crashed: NodeOnDisk) -> None:
    """What it names is passed over, damaged or not; one that is not whole excuses nothing."""
    size = RECORD_HEADER_BYTES + 41 + len(BIG_BODY)
    flip(crashed.shared / "0.rdq", 64 + 20)
    assert verify(str(crashed.directory)).has_damage
    note = crashed.shared / "0.holes"
    note.write_bytes(pack_holes_note(0, (64, 64 + size)))
    result = verify(str(crashed.directory))
    assert result.findings.counts == {Kind.LEFTOVER: 1, Kind.TORN: 1}
    assert "names 1 ranges that compaction was filling" in result.findings.problems[0].what
    flip(note, 70)
    assert "is not whole" in problems(crashed.directory)[0].what
    assert verify(str(crashed.directory)).has_damage


def test_a_second_copy_is_garbage(crashed: NodeOnDisk) -> None:
    """Copying compaction died between the rename and the deletion of the old file."""
    content = (crashed.shared / "0.rdq").read_bytes()
    (crashed.shared / "1.rdq").write_bytes(SHARED_STORE_FORMAT.header(1, 0) + content[64:])
    problem = the_problem(crashed.directory)
    assert (problem.kind, problem.what) == (Kind.LEFTOVER, "has second copies of 4 messages")


# -- what does not fit together


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
    remove(stopped.queue(BILLS) / "clean.terms")
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
