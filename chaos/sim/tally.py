"""What a campaign adds up: little for each seed, however many there are, and what its summary says."""

from __future__ import annotations

from collections import Counter
from typing import Any

from chaos.sim.campaign import SeedResult
from chaos.sim.sometimes import CATALOGUE

#: Of the summary's form.
SUMMARY_VERSION = 1
#: So many failing seeds are kept by number, with what each has broken; the others are counted.
KEPT_MAX = 100


class Tally:
    """See the module text. ``first`` is the first seed of the campaign; each that follows has the next number."""

    def __init__(self, first: int) -> None:
        self.first = first
        #: All seeds below this one have been run.
        self.next = first
        #: Those above it: results come out of order, though never far.
        self._ahead: set[int] = set()
        self.ran = 0
        self.failed = 0
        self.simulated_s = 0.0
        self.turns = 0
        #: Rare states -> how many seeds reached them.
        self.sightings: Counter[str] = Counter()
        #: The first that failed.
        self.failures: list[SeedResult] = []

    def add(self, result: SeedResult) -> None:
        self.ran += 1
        self.simulated_s += result.simulated_s
        self.turns += result.turns
        self.sightings.update(result.sightings)
        self._ahead.add(result.seed)
        while self.next in self._ahead:
            self._ahead.remove(self.next)
            self.next += 1
        if result.violations:
            self.failed += 1
            if len(self.failures) < KEPT_MAX:
                self.failures.append(result)

    @property
    def reached(self) -> int:
        """Of the catalogue."""
        return sum(name in self.sightings for name in CATALOGUE)

    def unreached(self) -> list[str]:
        return [name for name in CATALOGUE if not self.sightings[name]]

    def summary(self, *, took_s: float, ended: str, **facts: Any) -> dict[str, Any]:
        """As JSON has it. ``ended``: "all seeds", "time" or "interrupt"; ``facts``: what else there is to say."""
        return {
            "version": SUMMARY_VERSION,
            **facts,
            "first_seed": self.first,
            "next_seed": self.next,
            "seeds": self.ran,
            "failures": self.failed,
            "seconds": round(took_s, 1),
            "seeds_a_second": round(self.ran / took_s, 3) if took_s else 0.0,
            "simulated_hours": round(self.simulated_s / 3600, 2),
            "ended": ended,
            "failed_seeds": {str(each.seed): each.violations[0] for each in self.failures},
            "rare_states": {name: self.sightings[name] for name in CATALOGUE},
        }

    def check_invariants(self) -> None:
        assert self.next not in self._ahead, "the next seed has not been run"
        assert self.ran == self.next - self.first + len(self._ahead), "every seed is run once"
        assert len(self.failures) == min(self.failed, KEPT_MAX), "the first that fail are kept"
