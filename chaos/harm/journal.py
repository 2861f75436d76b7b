"""What must be undone: a file that outlives whoever did it.

A run stops processes, cuts lines, mounts disks. If it is killed itself, its own ``finally`` never runs. So before
anything is done that lasts, a line is written and synced that says how to undo it; when it is undone, another line says
so. Whoever finds the file (`heal`) undoes what has no such line, the last first, and may do so again and again: undoing
what was undone already, or was never done, must do no harm, and what cannot be undone now stays in the file.

Processes are named by their id and the time at which they began, as ids are given anew.

One at a time: whoever has the file open holds a lock on it, which ends with the process. So nobody heals a run that is
going on. A last line without an end was being written when its writer was killed; nothing was done of what it says, and
who opens the file next cuts it off.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

FILE_NAME = "undo.jsonl"

#: Undoes what it is told of; raises `CannotUndo`.
Undoer = Callable[[Mapping[str, Any]], None]


class CannotUndo(Exception):
    """Not now, or not by us: the text says what to do by hand."""


class DamagedJournal(Exception):
    """A line of the file is not one of ours."""


class JournalInUse(Exception):
    """The run goes on, or somebody heals it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that lasts."""

    number: int
    #: Which `Undoer` knows.
    how: str
    #: In words.
    what: str
    told: Mapping[str, Any]


class Journal:
    """Of one run. Every line is on disk before what it speaks of is done."""

    def __init__(self, run_directory: Path) -> None:
        """Goes on with the file that is there. Raises `DamagedJournal`, `JournalInUse`."""
        self.path = run_directory / FILE_NAME
        self._file: BinaryIO = self.path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.seek(0)
            content = self._file.read()
            self._file.truncate(content.rfind(b"\n") + 1)
            lines = list(_lines(content, self.path))
        except BlockingIOError:
            self._file.close()
            raise JournalInUse(f"{self.path} is in use: the run goes on, or is being healed") from None
        except BaseException:
            self._file.close()
            raise
        self._open = _outstanding(lines)
        self._last = max((line.get("number", 0) for line in lines), default=0)

    def will_do(self, how: str, what: str, **told: Any) -> int:
        """Something is about to be done that ``how`` undoes, told so. Returns its number."""
        self._last += 1
        entry = Entry(self._last, how, what, told)
        self._write({"number": entry.number, "how": how, "what": what, "told": told})
        self._open[entry.number] = entry
        return entry.number

    def undone(self, number: int) -> None:
        """It lasts no more."""
        if self._open.pop(number, None) is not None:
            self._write({"undone": number})

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, sort_keys=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    @property
    def outstanding(self) -> list[Entry]:
        """What still lasts, the latest first."""
        return sorted(self._open.values(), key=lambda entry: -entry.number)

    def close(self) -> None:
        """What still lasts stays in the file."""
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_in_use(run_directory: Path) -> bool:
    """True while whoever does, or undoes, something there lives."""
    try:
        with (run_directory / FILE_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def outstanding(run_directory: Path) -> list[Entry]:
    """What was done in a run and is not undone, the latest first. Raises `DamagedJournal`."""
    path = run_directory / FILE_NAME
    found = _outstanding(_lines(path.read_bytes(), path)) if path.exists() else {}
    return sorted(found.values(), key=lambda entry: -entry.number)


def _outstanding(lines: Iterable[Mapping[str, Any]]) -> dict[int, Entry]:
    found: dict[int, Entry] = {}
    for line in lines:
        if "undone" in line:
            found.pop(line["undone"], None)
        else:
            found[line["number"]] = Entry(line["number"], line["how"], line["what"], line["told"])
    return found


def _lines(content: bytes, path: Path) -> Iterator[dict[str, Any]]:
    *whole, _unfinished = content.split(b"\n")
    for number, text in enumerate(whole, 1):
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if not isinstance(line, dict) or not ("undone" in line or {"number", "how", "what", "told"} <= line.keys()):
            raise DamagedJournal(f"{path}: line {number} is not one of ours; what it said must be undone by hand")
        yield line


@dataclass(frozen=True, slots=True)
class Healed:
    """What came of one entry; ``problem`` is empty if it is undone."""

    entry: Entry
    problem: str


def heal(run_directory: Path, undoers: Mapping[str, Undoer]) -> list[Healed]:
    """Undo all that is outstanding, the latest first. Raises `DamagedJournal`."""
    healed: list[Healed] = []
    with Journal(run_directory) as journal:
        for entry in journal.outstanding:
            try:
                undo = undoers.get(entry.how)
                if undo is None:
                    raise CannotUndo(f"nobody here knows how to undo {entry.how!r}")
                undo(entry.told)
            except (CannotUndo, OSError) as error:
                healed.append(Healed(entry, str(error)))
            else:
                journal.undone(entry.number)
                healed.append(Healed(entry, ""))
    return healed
