"""What was done can be undone by whoever comes later, whatever killed who did it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from chaos.harm.journal import FILE_NAME, CannotUndo, DamagedJournal, Journal, JournalInUse, heal, outstanding


def test_what_is_not_undone_is_undone_by_another_the_latest_first(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.will_do("resume", "n1 stands still", pid=11)
        cut = journal.will_do("mend", "n1 -> n2 is cut", line=[1, 2])
        journal.will_do("resume", "n3 stands still", pid=33)
        journal.undone(cut)
        assert [entry.what for entry in journal.outstanding] == ["n3 stands still", "n1 stands still"]
    undone: list[Mapping[str, Any]] = []
    healed = heal(tmp_path, {"resume": undone.append})
    assert undone == [{"pid": 33}, {"pid": 11}]
    assert [each.problem for each in healed] == ["", ""]
    assert outstanding(tmp_path) == []
    assert heal(tmp_path, {}) == []


def test_what_cannot_be_undone_stays(tmp_path: Path) -> None:
    def refuse(_told: Mapping[str, Any]) -> None:
        raise CannotUndo("unmount it by hand")

    def fail(_told: Mapping[str, Any]) -> None:
        raise PermissionError(1, "not permitted")

    with Journal(tmp_path) as journal:
        journal.will_do("unmount", "a small disk")
        journal.will_do("resume", "n1 stands still")
        journal.will_do("sing", "a song")
    healed = heal(tmp_path, {"unmount": refuse, "resume": fail})
    assert [each.problem for each in healed] == [
        "nobody here knows how to undo 'sing'",
        "[Errno 1] not permitted",
        "unmount it by hand",
    ]
    assert [entry.how for entry in outstanding(tmp_path)] == ["sing", "resume", "unmount"]


def test_every_line_is_on_disk_before_anything_is_done(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.will_do("resume", "n1 stands still", pid=11)
        assert [entry.told for entry in outstanding(tmp_path)] == [{"pid": 11}], "another process reads it meanwhile"


@pytest.mark.parametrize("length", range(1, 20))
def test_a_line_that_was_being_written_is_cut_off(tmp_path: Path, length: int) -> None:
    with Journal(tmp_path) as journal:
        journal.will_do("resume", "n1 stands still")
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:length])
    assert [entry.number for entry in outstanding(tmp_path)] == [1]
    with Journal(tmp_path) as journal:
        assert journal.will_do("resume", "n2 stands still") == 2
    assert [entry.number for entry in outstanding(tmp_path)] == [2, 1]


def test_numbers_are_not_given_anew(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.undone(journal.will_do("resume", "n1 stands still"))
    with Journal(tmp_path) as journal:
        assert journal.will_do("resume", "n2 stands still") == 2


@pytest.mark.parametrize("damage", [b"x\n", b"[1]\n", b'{"number": 1}\n'])
def test_a_damaged_line_is_not_passed_over(tmp_path: Path, damage: bytes) -> None:
    """It may have said how to undo something."""
    (tmp_path / FILE_NAME).write_bytes(damage)
    for read in (outstanding, Journal):
        with pytest.raises(DamagedJournal, match="line 1 is not one of ours"):
            read(tmp_path)


def test_a_run_that_goes_on_is_not_healed(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(JournalInUse, match="goes on"):
        heal(tmp_path, {})
    assert heal(tmp_path, {}) == []
