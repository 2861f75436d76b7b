"""The book of campaigns: what was run is not run again, and the document says what there was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chaos.cli_sim import sim_command
from chaos.sim.ledger import (
    FIRST_SEED,
    TABLE_BEGINS,
    TABLE_ENDS,
    Entry,
    LedgerError,
    next_seed,
    read,
    table,
    with_table,
    write,
)


def summary(**changes: Any) -> dict[str, Any]:
    """Of a campaign on one core that took a minute, as a tally says it; it has run two seeds ahead of others."""
    return {
        "version": 1,
        "commit": "0123456789abcdef",
        "nodes": 3,
        "scenario": "",
        "operations": None,
        "length_s": None,
        "jobs": 1,
        "first_seed": FIRST_SEED,
        "next_seed": FIRST_SEED + 120,
        "seeds": 122,
        "failures": 0,
        "seconds": 60.0,
        "failed_seeds": {},
        "rare_states": {},
    } | changes


def test_a_campaign_begins_behind_those_of_its_size() -> None:
    """The same seed of another size is another world."""
    entries = [
        Entry.of_summary(summary()),
        Entry.of_summary(summary(nodes=5, next_seed=FIRST_SEED + 7)),
        Entry.of_summary(summary(operations=60, length_s=7.0, next_seed=FIRST_SEED + 9)),
    ]
    assert next_seed([], 3) == FIRST_SEED
    assert next_seed(entries, 3) == FIRST_SEED + 120
    assert next_seed(entries, 5) == FIRST_SEED + 7
    assert next_seed(entries, 4) == FIRST_SEED
    assert next_seed(entries, 3, 60, 7) == FIRST_SEED + 9
    assert next_seed(entries, 3, 60) == FIRST_SEED


def test_only_seeds_that_are_not_run_again_are_counted() -> None:
    assert Entry.of_summary(summary()).seeds == 120


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "campaigns.json"
    entries = [
        Entry.of_summary(summary(commit=None)),
        Entry.of_summary(summary(failures=1, failed_seeds={"7": "lost"})),
    ]
    assert read(path) == []
    write(path, entries)
    assert read(path) == entries


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2, "campaigns": []}', '{"version": 1, "campaigns": [{}]}'])
def test_another_file_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(LedgerError, match=r"other\.json"):
        read(path)


def test_campaigns_of_one_commit_are_one_row() -> None:
    entries = [
        Entry.of_summary(summary()),
        Entry.of_summary(summary(commit="fedcba9876543210+", failures=1, failed_seeds={"10007": "lost: ..."})),
        Entry.of_summary(summary(jobs=2, seconds=30.0)),
        Entry.of_summary(summary(operations=60, length_s=7.0)),
    ]
    assert table(entries)[2:] == [
        "| 0123456 | 3 | -, - | 240 | 0 | 2.0 |  |",
        "| fedcba9+ | 3 | -, - | 120 | 1 | 2.0 | 10007 |",
        "| 0123456 | 3 | 60, 7 s | 120 | 0 | 2.0 |  |",
        "| in all | | | 480 | 1 | | |",
    ]


def test_the_document_keeps_what_is_around_the_table() -> None:
    document = f"# Campaigns\n\n{TABLE_BEGINS}\nold\n{TABLE_ENDS}\n\nFound.\n"
    changed = with_table(document, [Entry.of_summary(summary())])
    assert changed.startswith(f"# Campaigns\n\n{TABLE_BEGINS}\n\n| commit |")
    assert changed.endswith(f"| in all | | | 120 | 0 | | |\n\n{TABLE_ENDS}\n\nFound.\n")
    assert "old" not in changed
    with pytest.raises(LedgerError):
        with_table("no marks", [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seeds", "1..2", "--seconds", "1"], "leave --seeds out"),
        ([], "has --seconds"),
        (["--seconds", "1", "--scenario", "ambush"], "no --scenario"),
    ],
)
def test_a_campaign_that_could_not_be_gone_on_with_is_refused(tmp_path: Path, options: list[str], said: str) -> None:
    path = tmp_path / "campaigns.json"
    result = CliRunner().invoke(sim_command, ["--ledger", str(path), *options])
    assert result.exit_code == 2
    assert said in result.output
    assert not path.exists()
