"""What a verification finds, on directories that the real storage made and the test damaged."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from node.errors import StorageError
from node.ids import QueueId, QueueName
from node.inspection.findings import Kind
from node.inspection.verification import verify
from node.store.disk.guarded import WRITE_EVERY_MS
from node.store.formats.record import (
    RECORD_HEADER_BYTES,
    SHARED_STORE_FORMAT,
    pack_holes_note,
)
from tests.support.amounts import slow
from tests.support.messages import publications
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
    snapshot,
    the_problem,
    write_v1_queue,
    write_vhost_file,
)

#: Every byte would take half a minute, every third ten seconds. All remainders of 8 come up, so every bit of a byte is
#: flipped somewhere.
FLIP_STEPS = [19, slow(3)]


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


@pytest.fixture(params=FLIP_STEPS)
def step(request: pytest.FixtureRequest) -> int:
    """Between two bytes of which a bit is flipped."""
    found: int = request.param
    return found


def is_in_the_name(path: Path, offset: int) -> bool:
    """The queue's name in ``queue.json`` has no checksum, and no other place to compare it with."""
    content = path.read_bytes()
    start = content.find(b'"queue": "') + len(b'"queue": "')
    return path.name == "queue.json" and start <= offset < content.find(b'"', start)


def flipped(directory: Path, step: int) -> Iterator[tuple[Path, int]]:
    """A dense sample of places, one after the other with one bit flipped."""
    count = 0
    for path in files_below(directory):
        content = path.read_bytes()
        for offset in range(count % step, len(content), step):
            if not is_in_the_name(path, offset):
                flip(path, offset, offset % 8)
                yield path, offset
                flip(path, offset, offset % 8)
        count += len(content)


def test_every_flipped_bit_is_reported_after_a_clean_stop(stopped: NodeOnDisk, step: int) -> None:
    """Also in slots and records that nobody needs any more; as damage where anything is live."""
    count = 0
    for path, offset in flipped(stopped.directory, step):
        found = problems(stopped.directory)
        assert found, f"{path} at {offset}"
        # The record of a settled entry in a .qs file is the only thing of no consequence.
        if any(problem.kind is Kind.DAMAGE for problem in found):
            continue
        assert path.name in ("0.qs", "1.qs"), f"{path} at {offset}: {found}"
        assert found[0].consequence == "none: they go with the file", f"{path} at {offset}"
        count += 1
    assert count > 15 // step


def test_every_flipped_bit_is_reported_after_a_crash(crashed: NodeOnDisk, step: int) -> None:
    for path, offset in flipped(crashed.directory, step):
        assert problems(crashed.directory), f"{path} at {offset}"


def test_damage_is_what_recovery_calls_damage(crashed: NodeOnDisk, step: int, tmp_path: Path) -> None:
    """The judgement between damage and unfinished writes is that of the next start."""
    copy = tmp_path / "copy"
    verdicts: set[bool] = set()
    for path, offset in flipped(crashed.directory, step):
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
def test_every_flipped_bit_is_reported_in_version_1(tmp_path: Path, stops_cleanly: bool, step: int) -> None:
    write_vhost_file(tmp_path / "v")
    directory = write_v1_queue(tmp_path / "v", stops_cleanly=stops_cleanly)
    assert problems(tmp_path / "v") == []
    for path, offset in flipped(directory, step):
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
    for size in reversed(range(0, path.stat().st_size, 7)):
        cut(path, size)
        assert Kind.DAMAGE in {problem.kind for problem in problems(stopped.directory)}, f"{name} cut to {size}"


@pytest.mark.parametrize("name", ["0.rdq", "clean.tables"])
def test_a_cut_store_after_a_clean_stop_is_damage(stopped: NodeOnDisk, name: str) -> None:
    path = stopped.shared / name
    for size in reversed(range(0, path.stat().st_size, 7)):
        cut(path, size)
        assert Kind.DAMAGE in {problem.kind for problem in problems(stopped.directory)}, f"{name} cut to {size}"


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


@pytest.mark.parametrize("name", ["0.qi", "0.qs", "seq.bounds", "queue.json"])
def test_a_missing_file_after_a_clean_stop_is_damage(stopped: NodeOnDisk, name: str) -> None:
    (stopped.queue() / name).unlink()
    found = [problem for problem in problems(stopped.directory) if problem.path.endswith(f"/{name}")]
    assert [problem.kind for problem in found][:1] == [Kind.DAMAGE]
    assert "is missing" in found[0].what


def test_a_missing_store_file_breaks_every_reference(stopped: NodeOnDisk) -> None:
    (stopped.shared / "0.rdq").unlink()
    found = problems(stopped.directory)
    assert (found[0].kind, found[0].path) == (Kind.DAMAGE, str(stopped.shared / "0.rdq"))
    assert found[0].what.startswith("is missing: the tables of the clean stop say that it has ")
    missing = [problem for problem in found if "does not have" in problem.what]
    assert len(missing) == 4
    assert "position 0 names message" in missing[0].what or "position 13" in missing[0].what
    assert {problem.kind for problem in missing} == {Kind.DAMAGE}


def remove_store_file(node: NodeOnDisk) -> None:
    (node.shared / "0.rdq").unlink()


def cut_store_file(node: NodeOnDisk) -> None:
    cut(node.shared / "0.rdq", 64)


def remove_store_file_of_a_queue_that_was_killed(node: NodeOnDisk) -> None:
    remove_store_file(node)
    (node.queue() / "clean.terms").unlink()


def remove_store_file_beside_a_cut_index(node: NodeOnDisk) -> None:
    """So that the tables are not read: nothing tells that the file was there."""
    remove_store_file(node)
    cut(node.queue(BILLS) / "0.qi", 300)


def remove_store_file_and_spoil_the_tables(node: NodeOnDisk) -> None:
    remove_store_file(node)
    flip(node.shared / "clean.tables", 70)


def spoil_the_header_of_the_store_file_and_cut_it(node: NodeOnDisk) -> None:
    """Nobody can tell from its length, for it was not noted."""
    flip(node.shared / "0.rdq", 0)
    cut(node.shared / "0.rdq", 64)


LOSSES = [
    remove_store_file,
    cut_store_file,
    remove_store_file_of_a_queue_that_was_killed,
    remove_store_file_beside_a_cut_index,
    remove_store_file_and_spoil_the_tables,
]


def tells_what_the_next_start_does(node: NodeOnDisk) -> Counter[Kind]:
    """Of every entry that names a message which is not there. Returns how many of each kind there were."""
    found = [problem for problem in problems(node.directory) if "names message" in problem.what]
    node.start()
    kinds: Counter[Kind] = Counter()
    for queue_id, name in ((ORDERS, ORDERS_NAME), (BILLS, BILLS_NAME)):
        own = [problem for problem in found if problem.path == str(node.queue(queue_id))]
        kinds.update(problem.kind for problem in own)
        queue = node.open(queue_id, name)
        report = queue.recovery_report
        assert report is not None
        corrupt = report.corrupt - len(report.short_files)
        for problem in own:
            if "counted as torn" in problem.consequence:
                assert (problem.kind, report.torn > 0, corrupt) == (Kind.TORN, True, 0)
            elif "quarantine" in problem.consequence:
                assert (problem.kind, report.torn, corrupt > 0) == (Kind.DAMAGE, 0, True)
            else:
                assert (problem.kind, problem.consequence) == (Kind.DAMAGE, "the queue fails when it comes to it")
                assert report.clean
                with pytest.raises(StorageError, match="has no message"):
                    queue.fetch(20, ack_required=False)
    return kinds


@pytest.mark.parametrize("lose", LOSSES)
def test_what_is_lost_after_a_clean_stop_is_what_the_next_start_says(
    stopped: NodeOnDisk, lose: Callable[[NodeOnDisk], None]
) -> None:
    lose(stopped)
    assert verify(str(stopped.directory)).has_damage
    kinds = tells_what_the_next_start_does(stopped)
    assert kinds.total() == 4
    if lose in (remove_store_file, cut_store_file, remove_store_file_and_spoil_the_tables):
        assert kinds == {Kind.DAMAGE: 4}


@pytest.mark.parametrize("lose", [remove_store_file, cut_store_file, spoil_the_header_of_the_store_file_and_cut_it])
def test_what_is_lost_after_a_crash_is_what_the_next_start_says(
    crashed: NodeOnDisk, lose: Callable[[NodeOnDisk], None]
) -> None:
    lose(crashed)
    is_known = lose is spoil_the_header_of_the_store_file_and_cut_it
    assert tells_what_the_next_start_does(crashed) == {Kind.DAMAGE if is_known else Kind.TORN: 4}


def test_a_file_that_was_noted_and_is_gone_is_named(node: NodeOnDisk, tmp_path: Path) -> None:
    """After a crash the next start cannot tell whether it was deleted just then."""
    node.store.maintain(WRITE_EVERY_MS)
    node.sync()
    copy = node.killed(tmp_path / "crashed")
    node.stop()
    (copy / node.shared.relative_to(node.directory) / "0.rdq").unlink()
    found = problems(copy)
    assert [problem.kind for problem in found] == [Kind.TORN] * 4
    assert all("unless it was lost with 0.rdq, which is noted and not there" in one.consequence for one in found)


def test_consequences_of_one_missing_file_are_one_line_with_a_count(node: NodeOnDisk) -> None:
    node.orders.publish(publications(17, 30, body=BIG_BODY))
    node.sync()
    node.stop()
    (node.shared / "0.rdq").rename(node.directory / "kept")
    cause, of_orders, of_bills = problems(node.directory)
    assert cause.path.endswith("/0.rdq")
    assert of_orders.what.startswith(
        "33 positions name messages that msg_store_persistent does not have; one of them: "
    )
    assert (of_bills.kind, of_bills.what.startswith("position 0 names message ")) == (Kind.DAMAGE, True)
    (node.directory / "kept").rename(node.shared / "0.rdq")
    for number in range(10):
        (node.queue() / f"{number}.qi").unlink(missing_ok=True)
    found = problems(node.directory)
    assert found[0].what == "is missing: the terms count on it"
    unreferenced = [problem.what for problem in found if "no queue refers" in problem.what]
    assert len(unreferenced) == 1
    assert unreferenced[0].startswith("30 messages to which no queue refers; one of them: ")


def test_a_missing_store_is_damage(stopped: NodeOnDisk) -> None:
    shutil.rmtree(stopped.shared)
    assert the_problem(stopped.directory).what == "is missing: 4 messages should be there"
    alone = verify(str(stopped.queue()))
    assert (alone.findings.problems, alone.unchecked_references) == ([], 3)


def test_a_missing_file_of_the_vhost_is_made_anew_and_may_not_fit(stopped: NodeOnDisk) -> None:
    path = stopped.vhost / "vhost.json"
    path.unlink()
    problem = the_problem(stopped.directory)
    assert (problem.kind, problem.path, problem.what) == (Kind.DAMAGE, str(path), "is missing")
    assert problem.consequence.startswith("made anew at the next start, with the entries of a segment as configured")
    assert "those of before (8 in version 2, by the length of a file)" in problem.consequence
    stopped.start()
    assert len(stopped.open().fetch(20, ack_required=False)) == 13
    assert path.exists()


def test_a_vhost_that_had_just_come_has_no_file_yet(tmp_path: Path) -> None:
    (tmp_path / "n1" / "vhosts" / ("0" * 24) / "queues").mkdir(parents=True)
    (tmp_path / "n1" / "node_name").write_text("n1")
    problem = the_problem(tmp_path / "n1")
    assert (problem.kind, problem.what) == (Kind.TORN, "is missing")


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
