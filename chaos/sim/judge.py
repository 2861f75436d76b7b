"""What a simulated run must not show, judged from its history by the laboratory's definitions.

The definitions are those of `chaos.analysis.reference`, of which the Spark job is the fast reading. What is added here
is what a simulator knows and a laboratory cannot: when the cluster itself has said that it lost something, and which
lives of which nodes have ended since a message was confirmed.

**What excuses a loss.** A confirmed message may be missing only if

- its queue was promoted with a loss since, as the record says (whether the policy permitted it is not judged yet); or
- it was not persistent (a copy of it lives as long as the process that holds it), and every node that had a copy when
  it was confirmed has died or stopped since, or may have been told by a new policy to drop its copy (one that lives is
  dropped for the sake of one that restarts, if the policy comes before the restart is known), or the queue was
  interrupted (`chaos.sim.record_watch`); or
- it was purged, or its queue deleted.

Everything else is a violation, whatever the faults were: they never exceed what Warren promises, because no schedule
destroys the disks of all complete copies (`chaos.sim.schedule`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.analysis.reference import AttemptKey, findings_of_attempt, incomplete_logs, inversions, stories
from chaos.history import Event, Kind


class Violation(NamedTuple):
    """A promise that was not kept."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the simulator knows beside the history."""

    #: Queues -> times at which they were promoted with a loss, or were given up (microseconds).
    lossy: Mapping[int, Sequence[int]]
    #: Confirmed attempts whose messages were not persistent -> nodes that had them then.
    holders: Mapping[AttemptKey, frozenset[str]]
    #: For each node the times at which a life of it ended.
    deaths: Mapping[str, Sequence[int]]
    #: When an operator changed the policy.
    policies: Sequence[int] = ()
    #: Queues -> when they were interrupted.
    interruptions: Mapping[int, Sequence[int]] = field(default_factory=dict)


#: Findings that are violations by themselves; `lost` and `vanished` may be excused.
_ALWAYS_WRONG = ("phantom", "duplicates_unflagged", "confirm_violations")


def judge(history: Iterable[Event], circumstances: Circumstances) -> list[Violation]:
    """Every promise that was broken, with the story of the message."""
    events = list(history)
    found: list[Violation] = []
    for key, story in stories(events).items():
        findings = findings_of_attempt(story)
        wrong = [name for name in _ALWAYS_WRONG if findings[name]]
        is_missing = [name for name in ("lost", "vanished") if findings[name]]
        if is_missing and not _is_excused(key, story, circumstances):
            wrong += is_missing
        found += [Violation(name, tell(key, story)) for name in wrong]
    overtaken, _ = inversions(events)
    if overtaken:
        found.append(Violation("order", f"{overtaken} first deliveries overtook one another"))
    strays = sum(event.kind == Kind.CONFIRM_STRAY for event in events)
    if strays:
        found.append(Violation("confirm_violations", f"{strays} confirms of what was not outstanding"))
    nameless = sum(event.kind == Kind.DELIVER and event.seq is None for event in events)
    if nameless:
        found.append(Violation("phantom", f"{nameless} deliveries of what nobody has published"))
    incomplete = incomplete_logs(events)
    if incomplete:
        found.append(Violation("harness", f"{incomplete} logs with holes or without an end"))
    return found


def _is_excused(key: AttemptKey, story: Sequence[Event], circumstances: Circumstances) -> bool:
    queue = key[0]
    assert queue is not None, "a story has a queue"
    confirmed_us = min(event.t_hi_us for event in story if event.kind == Kind.CONFIRM)
    if any(at_us >= confirmed_us for at_us in circumstances.lossy.get(queue, ())):
        return True
    holders = circumstances.holders.get(key)
    changes = (*circumstances.policies, *circumstances.interruptions.get(queue, ()))
    if holders is not None and any(at_us >= confirmed_us for at_us in changes):
        return True
    return holders is not None and all(
        any(at_us >= confirmed_us for at_us in circumstances.deaths[node]) for node in holders
    )


def tell(key: AttemptKey, story: Sequence[Event]) -> str:
    """The story of one attempt in a line."""
    queue, publisher, number, attempt = key
    parts = [
        f"{event.t_hi_us / 1e6:.3f} {event.kind}{' (redelivered)' if event.redelivered else ''}"
        f"{f' channel {event.channel_id}' if event.channel_id is not None else ''}"
        for event in story
    ]
    return f"message {publisher}:{number} attempt {attempt} of queue {queue}: {'; '.join(parts)}"
