"""Nobody is taken for marked who is not. (Real processes: tests/integration/chaos/test_harm.py.)"""

from __future__ import annotations

import psutil
import pytest

from chaos.harm import marked
from chaos.harm.journal import CannotUndo


@pytest.mark.parametrize("no_mark", ["", "/", "/n1", "n1", "0" * 31, "g" * 32])
def test_what_is_no_mark_has_no_processes(no_mark: str) -> None:
    """Whoever has no mark must not be killed for an empty one."""
    with pytest.raises(ValueError, match="no mark"):
        marked.processes_of(no_mark)


def test_a_journal_that_names_no_mark_is_left_to_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "process_iter", list)
    with pytest.raises(CannotUndo, match="'' is no mark"):
        marked.end_told({"mark": ""})


def test_marks_are_never_the_same_and_are_marks() -> None:
    marks = {marked.new_mark() for _ in range(100)}
    assert len(marks) == 100
    environment = marked.marked_environment(f"{min(marks)}/n1", {"HOME": "/home"})
    assert environment == {"HOME": "/home", marked.ENVIRONMENT: f"{min(marks)}/n1"}
