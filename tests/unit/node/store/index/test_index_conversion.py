"""How a conversion proceeds, by examples, in both directions. Crashes are in tests/property/node."""

from __future__ import annotations

from itertools import pairwise

import pytest

from node.store.disk.simulated import CrashStyle
from node.store.index.conversion import (
    CURSOR_NAME,
    PIECES_MAX,
    conversion_source,
    remove_cursor,
    split_terms,
    versions_on_disk,
)
from node.store.index.index import IN_SHARED_STORE, PagedMessage, QueueIndex
from tests.support.converting_driver import ConvertingDriver
from tests.support.index_driver import DIRECTORY, V1, V2, IndexKind

VERSIONS = {"v1": 1, "v2": 2}


@pytest.fixture(params=[(V1, V2), (V2, V1)], ids=["1->2", "2->1"])
def driver(request: pytest.FixtureRequest) -> ConvertingDriver:
    kinds: tuple[IndexKind, IndexKind] = request.param
    return ConvertingDriver(*kinds)


def source(driver: ConvertingDriver) -> int:
    return VERSIONS[driver.kind.name]


def target(driver: ConvertingDriver) -> int:
    return VERSIONS[driver.new_kind.name]


def test_a_queue_is_converted_piece_by_piece(driver: ConvertingDriver) -> None:
    driver.publish(20)
    driver.publish(4, big=True)
    driver.sync()
    driver.begin()
    assert driver.index.version == target(driver)
    assert versions_on_disk(driver.disk, DIRECTORY) == {source(driver)}
    driver.step(10)
    assert versions_on_disk(driver.disk, DIRECTORY) == {1, 2}
    assert driver.old.count_live(0, 100) == 24, "settled when the copies are durable and noted"
    assert driver.new is not None
    assert driver.new.count_live(0, 100) == 10
    driver.check()
    driver.finish()
    driver.check()
    assert versions_on_disk(driver.disk, DIRECTORY) == {target(driver)}
    assert CURSOR_NAME not in driver.disk.list(DIRECTORY)
    assert sum(driver.persistent_store.references.values()) == 4, "old gave its references back"
    assert not driver.step(3), "there is nothing left to do"


def test_an_entry_is_settled_in_old_two_rounds_after_it_was_copied(driver: ConvertingDriver) -> None:
    driver.publish(5)
    driver.sync()
    driver.begin()
    counts = []
    for _ in range(3):
        driver.step(5)
        # More steps do not help, only the sync does.
        driver.step(5)
        counts.append((driver.old.count_live(0, 9), conversion_source(driver.disk, DIRECTORY)))
        driver.sync()
    assert counts == [(5, None), (5, source(driver)), (0, None)], "copied; durable, cursor written; settled, ended"
    assert driver.converting.is_finished


def test_without_a_sync_no_more_than_a_few_pieces_are_copied(driver: ConvertingDriver) -> None:
    driver.publish(60)
    driver.sync()
    driver.begin()
    for _ in range(PIECES_MAX + 3):
        assert driver.step(2)
    assert driver.new is not None
    assert driver.new.count_live(0, 60) == 2 * PIECES_MAX
    driver.check()


def test_pieces_that_wait_for_the_cursor_count_as_well(driver: ConvertingDriver) -> None:
    driver.publish(40)
    driver.sync()
    driver.begin()
    driver.step(2)
    driver.sync()
    for _ in range(2 * PIECES_MAX):
        assert driver.step(2)
        driver.check()
    assert driver.new is not None
    assert driver.new.count_live(0, 100) == 2 * PIECES_MAX


def test_new_messages_go_to_the_new_index(driver: ConvertingDriver) -> None:
    driver.publish(3)
    driver.sync()
    driver.begin()
    driver.publish(3)
    driver.flush()
    assert driver.new is not None
    assert (driver.old.count_live(0, 9), driver.new.count_live(0, 9)) == (3, 3)
    driver.check()


def test_what_is_in_both_is_settled_in_both(driver: ConvertingDriver) -> None:
    driver.publish(9, big=True)
    driver.sync()
    driver.begin()
    driver.step(6)
    assert driver.converting.is_in_both(2)
    driver.settle([2, 7])
    driver.settle_range(3, 8, keep=[4])
    driver.check()
    driver.flush()
    # Two references for those in both, one for the others.
    assert sum(driver.persistent_store.references.values()) == 3 * 2 + 1
    driver.finish()
    driver.check()
    assert sorted(driver.live) == [0, 1, 4, 8]


def test_a_transient_message_is_converted_without_waiting(driver: ConvertingDriver) -> None:
    driver.publish(3, persistent=False)
    driver.publish(1, big=True, persistent=False)
    driver.flush()
    driver.begin()
    driver.step(10)
    assert driver.old.count_live(0, 9) == 0
    driver.check()
    assert not driver.step(10), "finished"
    assert len(driver.transient_store.messages) == 1


def test_a_place_in_the_old_index_is_not_taken_for_one_in_the_new(driver: ConvertingDriver) -> None:
    driver.publish(6)
    driver.publish(2, big=True)
    driver.sync()
    entries = driver.index.entries(0, 9, 9)
    driver.begin()
    driver.finish()
    # The old version may have had numbers of its own for the embedded ones.
    entries = [
        (seq_id, paged._replace(place=5) if paged.place != IN_SHARED_STORE else paged) for seq_id, paged in entries
    ]
    assert driver.index.read(entries) == [driver.live[seq_id].envelope() for seq_id, _ in entries]


def test_a_clean_stop_in_between_goes_on_afterwards(driver: ConvertingDriver) -> None:
    driver.publish(20)
    driver.sync()
    driver.begin()
    driver.step(6)
    driver.restart()
    assert driver.report.clean
    assert driver.old.count_live(0, 99) == 14, "what was copied is settled in old by the stop"
    driver.finish()
    driver.check()


def test_terms_tell_whether_a_conversion_was_under_way(driver: ConvertingDriver) -> None:
    driver.publish(20)
    driver.sync()
    driver.begin()
    driver.step(6)
    driver.index.close(driver.next_seq_id)
    assert driver.new is not None
    assert split_terms(driver.index.terms()) == (driver.old.terms(), driver.new.terms())
    assert split_terms(driver.new.terms()) == (None, driver.new.terms())


def test_a_copy_that_was_acked_does_not_come_back_from_the_old_index(driver: ConvertingDriver) -> None:
    """Settling in old is never synced; the cursor is."""
    driver.publish(7)
    driver.sync()
    driver.begin()
    for _ in range(3):
        driver.step(6)
        driver.sync()
    assert list(driver.old.live(0, 9)) == [6]
    driver.settle([0, 1, 2])
    # So many that the acks are synced in either version.
    for _ in range(4):
        driver.publish(8)
        driver.sync()
    assert {0, 1, 2} <= driver.gone
    driver.crash(CrashStyle.DROP, 0)
    found = driver.verify_crash()
    assert set(found) >= {3, 4, 5, 6}


def test_a_conversion_is_under_way_even_if_all_copies_are_gone(driver: ConvertingDriver) -> None:
    """The new version has no file then, but old has more than is live."""
    driver.publish(12)
    driver.sync()
    driver.begin()
    for count_max in (8, 1, 1):
        driver.step(count_max)
        driver.sync()
    driver.settle_range(0, 12, keep=[11])
    driver.next_seq_id = 100
    driver.flush()
    if target(driver) == 2:
        assert not [name for name in driver.disk.list(DIRECTORY) if name.endswith(".qi")]
    found = versions_on_disk(driver.disk, DIRECTORY)
    assert found == {1, 2}
    assert conversion_source(driver.disk, DIRECTORY) == source(driver)
    # An interrupted end: old has no files, but the cursor is still there.
    for name in driver.disk.list(DIRECTORY):
        if name.endswith((".idx", ".jif") if source(driver) == 1 else (".qi", ".qs")):
            driver.disk.unlink(f"{DIRECTORY}/{name}")
    assert versions_on_disk(driver.disk, DIRECTORY) <= {target(driver)}
    remove_cursor(driver.disk, DIRECTORY)
    assert conversion_source(driver.disk, DIRECTORY) is None


def test_after_a_crash_what_is_in_both_still_waits_for_the_cursor(driver: ConvertingDriver) -> None:
    """Else its ack in new could be synced, and a crash bring it back from old."""
    driver.publish(6)
    driver.sync()
    driver.begin()
    driver.step(4)
    driver.sync()
    driver.crash(CrashStyle.DROP, 0)
    driver.after_recovery(driver.verify_crash())
    assert [driver.converting.is_in_both(seq_id) for seq_id in range(6)] == [True] * 4 + [False] * 2
    driver.step(6)
    assert driver.new is not None
    assert driver.new.count_live(0, 9) == 6, "only two were left to copy"
    driver.check()
    assert driver.old.count_live(0, 9) == 6
    driver.finish()
    driver.check()


def test_after_a_crash_the_only_copy_still_waits_for_the_cursor(driver: ConvertingDriver) -> None:
    driver.publish(3)
    driver.sync()
    driver.begin()
    driver.step(1)
    driver.sync()
    driver.crash(CrashStyle.DROP, 0)
    driver.after_recovery(driver.verify_crash())
    assert [driver.converting.is_in_both(seq_id) for seq_id in range(3)] == [True, False, False]


def test_a_start_compares_only_the_segments_of_which_both_have_something(
    driver: ConvertingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old may be large, and little of it was copied."""
    driver.publish(40)
    driver.sync()
    driver.begin()
    driver.step(10)
    driver.sync()
    looked_at: list[tuple[int, int]] = []
    kind = type(driver.old)
    entries = kind.entries

    def watched(index: QueueIndex, first: int, end: int, count_max: int) -> list[tuple[int, PagedMessage]]:
        looked_at.append((first, end))
        return entries(index, first, end, count_max)

    monkeypatch.setattr(kind, "entries", watched)
    driver.crash(CrashStyle.DROP, 0)
    assert looked_at == [(0, 8), (8, 16)]
    assert [driver.converting.is_in_both(seq_id) for seq_id in range(8, 12)] == [True, True, False, False]


@pytest.mark.parametrize("style", CrashStyle)
def test_only_durable_copies_replace_the_original(driver: ConvertingDriver, style: CrashStyle) -> None:
    driver.publish(20)
    driver.sync()
    driver.begin()
    for seed in range(20):
        driver.step(2)
        driver.step(2)
        driver.crash(style, seed)
        driver.after_recovery(driver.verify_crash())
        assert len(driver.live) == 20


def test_the_cursor_has_two_copies(driver: ConvertingDriver) -> None:
    """The lower is overwritten, so that a torn write never takes the cursor back."""
    driver.publish(20)
    driver.sync()
    driver.begin()
    seen = []
    for _ in range(6):
        driver.step(2)
        driver.sync()
        content = driver.disk.snapshot().get(f"{DIRECTORY}/{CURSOR_NAME}", b"")
        seen.append([int.from_bytes(content[offset : offset + 8], "big") >> 1 for offset in (512, 1024)])
    assert seen == [[0, 0], [2, 0], [2, 4], [6, 4], [6, 8], [10, 8]]
    # A new process goes on with the lower one.
    driver.die()
    driver.after_recovery(driver.verify_crash())
    driver.step(2)
    driver.sync()
    driver.step(2)
    content = driver.disk.snapshot()[f"{DIRECTORY}/{CURSOR_NAME}"]
    assert int.from_bytes(content[512:520], "big") >> 1 == 10
    assert int.from_bytes(content[1024:1032], "big") >> 1 > 10


def test_deleting_gives_all_references_back(driver: ConvertingDriver) -> None:
    driver.publish(9, big=True)
    driver.sync()
    driver.begin()
    driver.step(4)
    driver.publish(2, big=True)
    driver.flush()
    assert sum(1 for _ in driver.index.delete(DIRECTORY)) >= 2
    assert not driver.persistent_store.references


def test_a_conversion_ends_when_old_owes_no_reference_any_more(
    driver: ConvertingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing old gives all back at once, and that may be millions."""
    monkeypatch.setattr("node.store.index.owed_references.OWED_PER_FLUSH", 2)
    driver.publish(30, big=True)
    driver.sync()
    driver.begin()
    driver.converting.settle_range(0, 30, is_sized=False)
    references = [30]
    while driver.converting.step(4):
        references.append(driver.persistent_store.references.total())
    references.append(driver.persistent_store.references.total())
    assert references[-1] == 0
    assert max(before - after for before, after in pairwise(references)) == 2


@pytest.mark.parametrize("is_big", [False, True])
def test_what_a_crash_brings_back_into_old_where_another_message_is_in_new_is_not_in_both(
    driver: ConvertingDriver, is_big: bool
) -> None:
    """A mirror whose tail was replaced: the acks in old are not synced, what came in their places is."""
    driver.publish(6, big=is_big)
    driver.sync()
    driver.begin()
    driver.settle_range(4, 6)
    driver.publish_at({seq_id: driver.message(big=is_big) for seq_id in (4, 5)})
    driver.sync()
    driver.crash(CrashStyle.DROP, 0)
    driver.after_recovery(driver.verify_crash())
    assert list(driver.old.live(0, 9)) == [0, 1, 2, 3]
    driver.check()
    found = driver.index.msg_ids(0, 6)
    assert [found[at * 16 : at * 16 + 16] for at in range(6)] == [driver.live[at].msg_id for at in range(6)]
    driver.finish()
    driver.check()
