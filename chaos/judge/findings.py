"""Names of what a record may show, and what they mean for a verdict. The definitions are in `chaos.judge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Name(StrEnum):
    """See `chaos.judge`."""

    LOST = "lost"
    VANISHED = "vanished"
    PHANTOM = "phantom"
    REPLICA_LOST = "replica_lost"

    FOREIGN = "foreign"
    CORRUPT = "corrupt"
    MISROUTED = "misrouted"
    REFUSED_DELIVERED = "refused_delivered"
    RETURNED_DELIVERED = "returned_delivered"
    CONFIRM_TWICE = "confirm_twice"
    CONFIRM_CONTRADICTION = "confirm_contradiction"
    CONFIRM_UNKNOWN = "confirm_unknown"
    FALSE_CONFIRM = "false_confirm"
    STUCK = "stuck"
    UNFLAGGED = "unflagged"
    RESURRECTED = "resurrected"
    DOUBLE_OWNER = "double_owner"
    SPONTANEOUS = "spontaneous"
    MISORDERED = "misordered"
    OVERTAKEN = "overtaken"
    REQUEUE_OVERTAKEN = "requeue_overtaken"

    CAUSED = "caused"
    AFTER_ACK = "after_ack"
    MISORDERED_EXCUSED = "misordered_excused"
    OVERTAKEN_EXCUSED = "overtaken_excused"
    RECOVERED = "recovered"
    SETTLED_UNPROVEN = "settled_unproven"
    COPIES = "copies"
    FLAGGED_FIRST = "flagged_first"
    REMOVED_UNPROVEN = "removed_unproven"


#: Concluded from what is not there: only if the record is complete.
ABSENCES = frozenset({Name.LOST, Name.VANISHED, Name.PHANTOM, Name.REPLICA_LOST, Name.DOUBLE_OWNER, Name.SPONTANEOUS})
#: Concluded from what was left at the end: only of queues of which that is known.
OF_THE_END = frozenset({Name.LOST, Name.VANISHED, Name.REPLICA_LOST})
#: What a policy may permit.
LOSSES = frozenset({Name.LOST, Name.VANISHED})
#: Counted, and nothing wrong.
LEGAL = frozenset(
    {
        Name.CAUSED,
        Name.AFTER_ACK,
        Name.MISORDERED_EXCUSED,
        Name.OVERTAKEN_EXCUSED,
        Name.RECOVERED,
        Name.SETTLED_UNPROVEN,
        Name.COPIES,
        Name.FLAGGED_FIRST,
        Name.REMOVED_UNPROVEN,
    }
)
VIOLATIONS = frozenset(Name) - LEGAL


class Finding(NamedTuple):
    """One of them, with the row that shows it."""

    name: Name
    #: Its key; zero for what is about no message of the run.
    message: int
    #: The row: of the delivery, the answer, ...; of the `PUBLISH` if nothing came of it; zero if there is none.
    process: int
    event: int


class Place(StrEnum):
    """Where what is lost was, see LOST."""

    PREFIX = "prefix"
    MIDDLE = "middle"
    POSTFIX = "postfix"


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What must be known of a queue to judge what happened in it."""

    #: It removes messages by itself: they expire, or its length is limited, or it may be deleted.
    may_remove: bool = False
    #: Consumers with credit waited until nothing came any more.
    is_drained: bool = True
    #: What was left in it at the end is in the record.
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What must be known of a run besides its events."""

    #: Every process that was begun, and the publishers that it records for.
    processes: Mapping[int, frozenset[int]]
    #: By queue, from 1.
    queues: Sequence[QueueFacts]
    #: Longest time between the moments at which a delivery is sent and read; None if nobody can tell.
    slack_us: int | None = None

    def queue(self, queue: int) -> QueueFacts:
        """Of one queue; of one that the run does not know nothing is expected."""
        return self.queues[queue - 1] if 0 < queue <= len(self.queues) else QueueFacts(True, False, False)
