"""Which message: one number of 63 bits, zero for none.

    62      52 51       40 39         8 7      0
    | queue   | publisher | sequence   | attempt |

Everything counts from 1. A message is known by its queue, its publisher and its number there; to publish it again is
the next attempt. The run is not in the key, as it is the same for all rows of a run (`chaos.record.schema`). Keys of
one publisher in one queue ascend with sequence and attempt.
"""

from __future__ import annotations

from typing import NamedTuple

QUEUE_BITS, PUBLISHER_BITS, SEQUENCE_BITS, ATTEMPT_BITS = 11, 12, 32, 8
QUEUES_MAX = (1 << QUEUE_BITS) - 1
PUBLISHERS_MAX = (1 << PUBLISHER_BITS) - 1
SEQUENCE_MAX = (1 << SEQUENCE_BITS) - 1
ATTEMPTS_MAX = (1 << ATTEMPT_BITS) - 1
SEQUENCE_SHIFT = ATTEMPT_BITS
PUBLISHER_SHIFT = SEQUENCE_SHIFT + SEQUENCE_BITS
QUEUE_SHIFT = PUBLISHER_SHIFT + PUBLISHER_BITS


class MessageKey(NamedTuple):
    """The parts of a key."""

    queue: int
    publisher: int
    sequence: int
    attempt: int

    def pack(self) -> int:
        """As one number. Raises `OverflowError`."""
        if not (
            0 < self.queue <= QUEUES_MAX
            and 0 < self.publisher <= PUBLISHERS_MAX
            and 0 < self.sequence <= SEQUENCE_MAX
            and 0 < self.attempt <= ATTEMPTS_MAX
        ):
            raise OverflowError(f"{self} does not fit a message key; use more queues or publishers, or a new run")
        return (
            self.queue << QUEUE_SHIFT
            | self.publisher << PUBLISHER_SHIFT
            | self.sequence << SEQUENCE_SHIFT
            | self.attempt
        )


def unpack(key: int) -> MessageKey:
    """The parts of a key that is not zero."""
    return MessageKey(
        key >> QUEUE_SHIFT,
        key >> PUBLISHER_SHIFT & PUBLISHERS_MAX,
        key >> SEQUENCE_SHIFT & SEQUENCE_MAX,
        key & ATTEMPTS_MAX,
    )


def any_attempt(key: int) -> int:
    """What the attempts of one message have in common."""
    return key >> ATTEMPT_BITS
