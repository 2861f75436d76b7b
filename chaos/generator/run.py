"""A generated history as the directory of a run: its record, what must be known of it, and what was planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chaos.generator.history import Generated, History, write_history
from chaos.generator.planted import PLANTED_FILE, write_planted
from chaos.judge.facts_file import write_facts


def write_run(history: History, directory: Path, advance: Callable[[int], None] = lambda _: None) -> Generated:
    """``advance`` hears of rows as they are written. Raises `FileExistsError` if there is a record already."""
    generated = write_history(history, directory, directory.name, advance)
    write_facts(directory, history.layout.facts())
    write_planted(directory / PLANTED_FILE, generated.planted)
    return generated
