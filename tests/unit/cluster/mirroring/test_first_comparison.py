"""The first mirror of a queue that had none for long: nothing of its messages has been compared yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

import node.queues.digests
import node.queues.local_replica
from cluster.metadata.records import MastershipRecord
from cluster.mirroring.master import MirroredQueue, recovered
from cluster.mirroring.messages import Attach, AttachRefused, MirrorMessage, Ops, OpsAck
from cluster.mirroring.mirror import MirrorReplica
from cluster.mirroring.progress import MirrorState
from cluster.mirroring.reports import ReportMirrorStalled
from cluster.mirroring.settings import MirroringSettings
from node.ids import Epoch, SeqId
from node.queues.local_replica import LocalReplica
from node.queues.replica import SeqRange
from node.store.shared.config import StoreConfig
from tests.support.digests import expected_digests
from tests.support.messages import msg_id_of, publications
from tests.support.mirror_pair import N1, N2, N3, QUEUE
from tests.support.stores import StoreHarness

#: Positions of a digest segment here.
ENTRIES = 16
SEGMENTS = 40
RECORD = MastershipRecord(QUEUE, Epoch(1), N1, (N2,), ())


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (node.queues.digests, node.queues.local_replica):
        monkeypatch.setattr(module, "DIGEST_SEGMENT_ENTRIES", ENTRIES)
    monkeypatch.setattr("node.queues.stages.LOAD_MESSAGES", ENTRIES)
    monkeypatch.setattr(node.queues.local_replica, "PREPARED_ENTRIES", 4 * ENTRIES)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def harness(request: pytest.FixtureRequest) -> StoreHarness:
    harness = StoreHarness(
        StoreConfig(
            queue_version=request.param, v1_segment_entries=16, v1_journal_entries_max=16, v2_segment_entries=16
        )
    )
    harness.open_queue().publish(publications(1, SEGMENTS * ENTRIES))
    return harness


def opened(harness: StoreHarness) -> tuple[LocalReplica, MirroredQueue]:
    """Read from disk, when its mirror is down."""
    local = harness.restart()
    return local, recovered(N1, local, RECORD)


def attach_in(master: MirroredQueue) -> Attach | None:
    sent = master.take_messages()
    if not sent:
        assert master.wants_turn, "it goes on as time passes"
        return None
    [(node, attach)] = sent
    assert node == N2
    assert isinstance(attach, Attach)
    return attach


def assert_describes(attach: Attach, positions: Iterable[int]) -> None:
    """Messages whose numbers are their positions and one."""
    assert list(attach.digests) == expected_digests({at: msg_id_of(at + 1) for at in positions}, ENTRIES)


def test_no_turn_reads_all_that_is_on_disk(harness: StoreHarness) -> None:
    local, master = opened(harness)
    master.mirror_link_up(N2)
    reads: list[int] = []
    attach = None
    while attach is None:
        before = harness.disk.reads
        attach = attach_in(master)
        reads.append(harness.disk.reads - before)
    assert max(reads) < sum(reads) / 4
    assert_describes(attach, range(SEGMENTS * ENTRIES))
    local.check_invariants()
    master.check_invariants()


def test_no_turn_hashes_all_that_is_in_memory() -> None:
    """Nothing is read for these, and still it is work for each."""
    local = StoreHarness().open_queue()
    local.publish(publications(1, SEGMENTS * ENTRIES))
    master = MirroredQueue(N1, local, RECORD)
    master.mirror_link_up(N2)
    turns = 1
    while (attach := attach_in(master)) is None:
        turns += 1
    assert turns >= SEGMENTS / 5, "four segments, and one in which the bound is passed"
    assert_describes(attach, range(SEGMENTS * ENTRIES))


def test_what_changes_meanwhile_is_described_as_it_is_then(harness: StoreHarness) -> None:
    local, master = opened(harness)
    master.mirror_link_up(N2)
    assert attach_in(master) is None
    local.remove([SeqRange(SeqId(0), SeqId(20)), SeqRange(SeqId(600), SeqId(620))])
    master.publish(publications(SEGMENTS * ENTRIES + 1, 5))
    while (attach := attach_in(master)) is None:
        pass
    assert_describes(attach, [*range(20, 600), *range(620, SEGMENTS * ENTRIES + 5)])
    local.check_invariants()


def test_a_queue_that_changes_all_the_time_is_described_all_the_same(harness: StoreHarness) -> None:
    """Each segment is looked at once."""
    local, master = opened(harness)
    master.mirror_link_up(N2)
    for turn in range(SEGMENTS):
        if (attach := attach_in(master)) is not None:
            break
        local.remove([SeqRange(SeqId(at + turn), SeqId(at + turn + 1)) for at in range(0, SEGMENTS * ENTRIES, ENTRIES)])
    assert attach is not None
    assert_describes(attach, [at for at in range(SEGMENTS * ENTRIES) if at % ENTRIES >= turn])


def test_a_mirror_that_comes_again_is_prepared_for_anew(harness: StoreHarness) -> None:
    """What was computed for its link of before may have changed since."""
    local, master = opened(harness)
    master.mirror_link_up(N2)
    while attach_in(master) is None and not local._digests.knows(SEGMENTS - 5):
        pass
    master.mirror_link_down(N2)
    local.remove([SeqRange(SeqId(at), SeqId(at + 1)) for at in range(0, SEGMENTS * ENTRIES, ENTRIES)])
    master.mirror_link_up(N2)
    before = harness.disk.reads
    turns = 1
    while (attach := attach_in(master)) is None:
        turns += 1
    assert harness.disk.reads > before
    assert turns >= SEGMENTS / 5
    assert_describes(attach, [at for at in range(SEGMENTS * ENTRIES) if at % ENTRIES])


def test_a_mirror_is_not_called_silent_while_its_master_prepares(harness: StoreHarness) -> None:
    """It has been asked nothing yet."""
    master = recovered(N1, harness.restart(), RECORD, MirroringSettings(stall_ms=300))
    master.mirror_link_up(N2)
    now_ms = 0
    while attach_in(master) is None:
        now_ms += 100
        master.tick(now_ms)
        assert not master.take_reports()
    assert now_ms > 300
    for passed_ms in range(100, 500, 100):
        master.tick(now_ms + passed_ms)
    assert master.take_reports() == [ReportMirrorStalled(N2)], "now it has"


def test_a_mirror_that_leaves_the_record_and_comes_again_is_prepared_for_anew(harness: StoreHarness) -> None:
    local, master = opened(harness)
    master.mirror_link_up(N2)
    while attach_in(master) is None and not local._digests.knows(SEGMENTS - 5):
        pass
    master.set_record(replace(RECORD, mirrors=()))
    local.remove([SeqRange(SeqId(at), SeqId(at + 1)) for at in range(0, SEGMENTS * ENTRIES, ENTRIES)])
    master.set_record(RECORD)
    turns = 1
    while attach_in(master) is None:
        turns += 1
    assert turns >= SEGMENTS / 5


# --- the mirror's side ---


class Meeting:
    """A master and a mirror that both have it all, and of which neither has compared anything."""

    def __init__(self, harness: StoreHarness) -> None:
        self.local, self.master = opened(harness)
        self.here = StoreHarness(harness.config)
        self.here.open_queue().publish(publications(1, SEGMENTS * ENTRIES))
        self.mirror = MirrorReplica(QUEUE, self.here.restart(), Epoch(1))
        self.reads_before = self.here.disk.reads
        self.master.mirror_link_up(N2)
        while (attach := attach_in(self.master)) is None:
            pass
        self.mirror.receive(N1, attach)

    def turn(self) -> list[MirrorMessage]:
        sent = [message for _, message in self.mirror.take_messages()]
        self.mirror.check_invariants()
        return sent

    def answers(self) -> list[MirrorMessage]:
        """All that comes of it by itself."""
        said: list[MirrorMessage] = []
        while self.mirror.has_more:
            said += self.turn()
        return said + self.turn()


def test_no_turn_of_a_mirror_reads_all_that_is_on_disk(harness: StoreHarness) -> None:
    meeting = Meeting(harness)
    reads = [0, meeting.here.disk.reads - meeting.reads_before]
    said: list[MirrorMessage] = []
    while not said:
        said = meeting.turn()
        reads.append(meeting.here.disk.reads - meeting.reads_before)
    in_turns = [after - before for before, after in pairwise(reads)]
    assert max(in_turns) < sum(in_turns) / 4
    assert not meeting.mirror.has_more
    for answer in said:
        meeting.master.receive(N2, answer)
    assert meeting.master.mirror_states() == {N2: MirrorState.FILLING}, "it is told that nothing is missing"
    meeting.local.check_invariants()


def test_what_a_master_says_meanwhile_is_heard_behind_its_attach(harness: StoreHarness) -> None:
    meeting = Meeting(harness)
    assert meeting.mirror.has_more
    meeting.master.publish(publications(SEGMENTS * ENTRIES + 1, 5))
    meeting.master.drop(20)
    for _, message in meeting.master.take_messages():
        meeting.mirror.receive(N1, message)
    meeting.answers()
    assert list(meeting.mirror.local.digests()) == list(meeting.local.digests())


def test_an_attach_that_waits_ends_with_its_link(harness: StoreHarness) -> None:
    meeting = Meeting(harness)
    meeting.mirror.link_lost()
    assert not meeting.mirror.has_more
    assert meeting.turn() == []
    meeting.master.mirror_link_up(N2)
    while (attach := attach_in(meeting.master)) is None:
        pass
    meeting.mirror.receive(N1, attach)
    [answer] = meeting.answers()
    assert isinstance(answer, OpsAck)
    assert answer.attach_id == attach.attach_id


def test_a_master_is_refused_as_soon_as_a_later_one_attaches(harness: StoreHarness) -> None:
    meeting = Meeting(harness)
    meeting.answers()
    later = recovered(N3, meeting.local, replace(RECORD, master=N3, epoch=Epoch(2)))
    later.mirror_link_up(N2)
    meeting.mirror.local.remove([SeqRange(SeqId(at), SeqId(at + 1)) for at in range(0, SEGMENTS * ENTRIES, ENTRIES)])
    while (attach := attach_in(later)) is None:
        pass
    meeting.mirror.receive(N3, attach)
    assert meeting.mirror.has_more, "it is at work"
    meeting.mirror.receive(N1, Ops(QUEUE, Epoch(1), 1, 2, ()))
    assert AttachRefused(QUEUE, Epoch(1), Epoch(2)) in meeting.turn()


def test_what_waits_is_forgotten_by_a_mirror_that_may_have_been_none(harness: StoreHarness) -> None:
    meeting = Meeting(harness)
    meeting.mirror.records_skipped()
    assert not meeting.mirror.has_more
    assert meeting.turn() == []
