"""How many messages were published up to each turn: what a mirror that has reached some turn still has to do."""

from __future__ import annotations

from bisect import bisect_right

#: Turns that nobody asks for any more are kept until there are so many, to drop them in one go.
_PASSED_TURNS_MAX = 1024


class PublishedTurns:
    """One entry per turn with publishes; bounded by the credit of those who publish."""

    __slots__ = ("_persistent", "_totals", "_turns")

    def __init__(self) -> None:
        # The first entry stands for everything before it.
        self._turns = [-1]
        self._totals = [0]
        self._persistent = [0]

    def publish(self, turn: int, messages: int, persistent: int) -> None:
        """So many more in ``turn``, which is the last one so far or a later one."""
        if self._turns[-1] != turn:
            assert turn > self._turns[-1], "turns follow each other"
            self._turns.append(turn)
            self._totals.append(self._totals[-1])
            self._persistent.append(self._persistent[-1])
        self._totals[-1] += messages
        self._persistent[-1] += persistent

    def after(self, turn: int) -> int:
        """Messages of later turns than ``turn``."""
        return self._totals[-1] - self._totals[self._position(turn)]

    def persistent_between(self, earlier: int, later: int) -> int:
        """Persistent messages of the turns after ``earlier`` up to ``later``."""
        return max(0, self._persistent[self._position(later)] - self._persistent[self._position(earlier)])

    def _position(self, turn: int) -> int:
        return max(0, bisect_right(self._turns, turn) - 1)

    def forget(self, turn: int) -> None:
        """Nobody will ask for turns before ``turn`` any more."""
        passed = self._position(turn)
        if passed > _PASSED_TURNS_MAX or passed == len(self._turns) - 1:
            del self._turns[:passed], self._totals[:passed], self._persistent[:passed]

    def __len__(self) -> int:
        return len(self._turns)

    def check_invariants(self) -> None:
        assert self._turns == sorted(set(self._turns)), "turns follow each other"
        assert len(self._turns) == len(self._totals) == len(self._persistent), "one entry of each per turn"
        assert all(each >= 0 for each in (self._totals[0], self._persistent[0])), "counts only grow"
