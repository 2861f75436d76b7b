"""The book of campaigns: which seeds were run on which commit, and what came of them.

One campaign ends where the time does; the next goes on behind it, so that no seed is run twice for the same sum. The
file is JSON, kept in the repository; a table of it goes into a document, between two marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from chaos.whole_file import write_whole

VERSION = 1
#: The seeds before are for samples and for looking at one.
FIRST_SEED = 10_001

#: Of the table in a document.
TABLE_BEGINS = "<!-- the table begins: warren sim --ledger -->"
TABLE_ENDS = "<!-- the table ends -->"


class LedgerError(Exception):
    """The file is no ledger."""


class Entry(NamedTuple):
    """One campaign."""

    #: With a plus sign if the checkout was changed; empty: unknown.
    commit: str
    nodes: int
    #: As the command line had them; ``None``: drawn by the seed.
    operations: int | None
    length_s: float | None
    first_seed: int
    #: All seeds from the first up to this one were run.
    next_seed: int
    seeds: int
    failures: int
    seconds: float
    jobs: int
    #: The first that failed -> the first thing said of each.
    failed_seeds: Mapping[str, str]

    @classmethod
    def of_summary(cls, summary: Mapping[str, Any]) -> Entry:
        """From what `chaos.sim.tally.Tally.summary` says."""
        seeds = summary["next_seed"] - summary["first_seed"]  # those ahead are run again by the next campaign
        fields = {name: summary[name] for name in cls._fields}
        return cls(**fields | {"commit": summary["commit"] or "", "seeds": seeds})

    @property
    def size(self) -> tuple[int, int | None, float | None]:
        """With another one the same seed is another world."""
        return self.nodes, self.operations, self.length_s


def read(path: Path) -> list[Entry]:
    """Oldest first; none if there is no file. Raises `LedgerError`."""
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            raise LedgerError(f"{path} has version {document['version']}, this is for version {VERSION}")
        return [Entry(**entry) for entry in document["campaigns"]]
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f"{path} is no book of campaigns: {error!r}") from error


def write(path: Path, entries: Sequence[Entry]) -> None:
    """Whole, or as it was before."""
    lines = ",\n".join(f"  {json.dumps(entry._asdict())}" for entry in entries)
    write_whole(path, f'{{\n "version": {VERSION},\n "campaigns": [\n{lines}\n ]\n}}\n')


def next_seed(
    entries: Sequence[Entry], nodes: int, operations: int | None = None, length_s: float | None = None
) -> int:
    """The first that no campaign of this size has come to."""
    size = nodes, operations, length_s
    return max([FIRST_SEED, *(entry.next_seed for entry in entries if entry.size == size)])


def table(entries: Sequence[Entry]) -> list[str]:
    """As Markdown: a line for each commit and size, in the order of the first of each, and the sums."""
    groups: dict[tuple[str, tuple[int, int | None, float | None]], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.commit, entry.size), []).append(entry)
    lines = [
        "| commit | nodes | size | seeds | failed | seeds a second, each core | which failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for (commit, (nodes, operations, length_s)), group in groups.items():
        size = f"{operations or '-'}, {'-' if length_s is None else f'{length_s:g} s'}"
        failed = ", ".join(seed for entry in group for seed in entry.failed_seeds)
        rate = _sum(group, "seeds") / max(sum(entry.seconds * entry.jobs for entry in group), 0.1)
        sums = f"{_sum(group, 'seeds'):,} | {_sum(group, 'failures')}"
        lines.append(f"| {_short(commit)} | {nodes} | {size} | {sums} | {rate:.1f} | {failed} |")
    lines.append(f"| in all | | | {_sum(entries, 'seeds'):,} | {_sum(entries, 'failures')} | | |")
    return lines


def with_table(document: str, entries: Sequence[Entry]) -> str:
    """The document with the table of today between its marks. Raises `LedgerError` if it has none."""
    return "\n".join(_replaced(document.split("\n"), table(entries)))


def _replaced(lines: list[str], rows: list[str]) -> Iterator[str]:
    if TABLE_BEGINS not in lines or TABLE_ENDS not in lines:
        raise LedgerError(f"the document has no place for a table: {TABLE_BEGINS} and {TABLE_ENDS}")
    begin, end = lines.index(TABLE_BEGINS), lines.index(TABLE_ENDS)
    yield from lines[: begin + 1]
    yield from ["", *rows, ""]
    yield from lines[end:]


def _sum(entries: Sequence[Entry], name: str) -> int:
    return sum(getattr(entry, name) for entry in entries)


def _short(commit: str) -> str:
    return f"{commit[:7]}{'+' if commit.endswith('+') else ''}" if commit else "unknown"
