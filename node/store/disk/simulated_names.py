"""The names of the simulated disk: its directories, and those that were moved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from node.store.disk.simulated_inode import Inode


@dataclass(slots=True)
class Directory:
    """Names of one directory; a value of ``None`` in ``pending`` takes a name away."""

    names: dict[str, Inode] = field(default_factory=dict)
    durable: dict[str, Inode] = field(default_factory=dict)
    #: Each step is one atomic change of one or two names.
    pending: list[dict[str, Inode | None]] = field(default_factory=list)

    def change(self, step: dict[str, Inode | None]) -> None:
        apply_names(self.names, step)
        self.pending.append(step)

    def sync(self) -> None:
        for step in self.pending:
            apply_names(self.durable, step)
        self.pending.clear()


@dataclass(slots=True)
class Move:
    """A directory that was renamed."""

    old_path: str
    new_path: str
    #: Parents that were not synced since.
    unsynced: set[str]


def apply_names(names: dict[str, Inode], step: dict[str, Inode | None]) -> None:
    """Add names, and take those away that are nothing's."""
    for name, inode in step.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


def at_or_below(paths: Iterable[str], path: str) -> list[str]:
    """Those that are this directory or below it."""
    return [each for each in paths if each == path or each.startswith(path + "/")]


def split_path(path: str) -> tuple[str, str]:
    """Directory and name."""
    directory, _, name = path.rpartition("/")
    return directory, name
