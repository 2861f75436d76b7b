"""Problems that have one cause, such as a file that is gone: a few are told one by one, many in one line."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from node.inspection.findings import Findings, Problem

#: As many are told one by one.
LISTED_MAX = 5


@dataclass(slots=True)
class _Group:
    #: What they are, in the plural.
    many: str
    count: int
    #: `LISTED_MAX` of them at most.
    first: list[Problem]


class Groups:
    """Collects problems before they are told; of each group it keeps a few."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}

    def add(self, key: Hashable, many: str, problem: Problem) -> None:
        """``many`` says what all with this ``key`` are: "messages that nobody refers to"."""
        group = self._groups.setdefault(key, _Group(many, 0, []))
        group.count += 1
        if len(group.first) < LISTED_MAX:
            group.first.append(problem)

    def tell(self, findings: Findings) -> None:
        """In the order in which the first of each came."""
        for group in self._groups.values():
            if group.count <= LISTED_MAX:
                for problem in group.first:
                    findings.add(*problem)
            else:
                kind, path, _, what, consequence = group.first[0]
                findings.add(kind, path, None, f"{group.count} {group.many}; one of them: {what}", consequence)
        self._groups.clear()
