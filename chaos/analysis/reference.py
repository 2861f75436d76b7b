"""The definitions that judge simulated runs, in plain Python: those of before `chaos.judge`.

Written to be read, not to be fast.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from chaos.history import Event

_REMOVALS = {"EXPIRE", "DROP", "PURGE", "DEADLETTER"}
#: (queue_id, pub_id, seq, attempt).
AttemptKey = tuple[int | None, int | None, int | None, int | None]


def stories(history: Iterable[Event]) -> dict[AttemptKey, list[Event]]:
    """What happened to each attempt to publish a message, in the order of the history."""
    by_attempt: dict[AttemptKey, list[Event]] = defaultdict(list)
    for event in history:
        if event.seq is not None:
            by_attempt[(event.queue_id, event.pub_id, event.seq, event.attempt)].append(event)
    return by_attempt


def findings_of_attempt(story: list[Event]) -> dict[str, int]:
    """How often each finding holds of one attempt; its own events decide."""
    times: dict[str, list[int]] = defaultdict(list)
    for event in story:
        times[event.kind].append(event.t_hi_us)
    deliveries = [event for event in story if event.kind == "DELIVER"]
    is_confirmed, is_delivered = "CONFIRM" in times, bool(deliveries)
    is_left_or_removed = "BROWSE" in times or bool(_REMOVALS & times.keys())
    unflagged = sum(not event.redelivered for event in deliveries)
    unflagged_copies = max(unflagged - 1, 0)
    answers = len(times["CONFIRM"]) + len(times["NACK"])
    is_unpublished = is_confirmed and (not times["PUB_INVOKE"] or min(times["CONFIRM"]) < min(times["PUB_INVOKE"]))
    is_repeated_after_ack = (
        len(deliveries) > 1
        and bool(times["ACK_SENT"])
        and max(event.t_lo_us for event in deliveries) > min(times["ACK_SENT"])
    )
    return {
        "confirmed": is_confirmed,
        "delivered": is_delivered,
        "lost": is_confirmed and not is_delivered and not is_left_or_removed,
        "vanished": is_confirmed and is_delivered and not times["ACK_SENT"] and not is_left_or_removed,
        "phantom": is_delivered
        and (not times["PUB_INVOKE"] or any(not event.crc_ok for event in deliveries if event.crc_ok is not None)),
        "recovered": is_delivered and not is_confirmed and bool(times["PUB_UNKNOWN"]),
        "refused_but_delivered": is_delivered and not is_confirmed and bool(times["NACK"] or times["RETURN"]),
        "duplicates_unflagged": unflagged_copies,
        "duplicates_flagged": max(len(deliveries) - 1, 0) - unflagged_copies,
        "duplicates_after_ack": is_repeated_after_ack,
        "confirm_violations": answers > 1 or is_unpublished,
    }


def inversions(events: list[Event]) -> tuple[int, int]:
    """(unexcused, excused) first deliveries that come after one that was published later on the same channel."""
    published = {
        (event.queue_id, event.pub_id, event.seq, event.attempt): event
        for event in events
        if event.kind == "PUB_INVOKE"
    }
    promotions = [event for event in events if event.kind == "PROMOTE"]
    leaders: dict[tuple[int | None, ...], tuple[int, Event]] = {}
    unexcused = excused = 0
    first_deliveries = [event for event in events if event.kind == "DELIVER" and not event.redelivered]
    for event in sorted(first_deliveries, key=lambda row: (row.proc_id, row.ev_seq)):
        publish = published.get((event.queue_id, event.pub_id, event.seq, event.attempt))
        if publish is None:
            continue
        stream = (event.queue_id, event.pub_id, publish.channel_id, event.channel_id)
        position, leader = leaders.get(stream, (0, event))
        if publish.ev_seq >= position:
            leaders[stream] = (publish.ev_seq, event)
            continue
        is_excused = any(
            promotion.queue_id == event.queue_id
            and promotion.t_hi_us >= leader.t_lo_us
            and promotion.t_lo_us <= event.t_hi_us
            for promotion in promotions
        )
        excused += is_excused
        unexcused += not is_excused
    return unexcused, excused


def incomplete_logs(events: list[Event]) -> int:
    """Processes whose log has a hole or no end."""
    numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    ends: dict[tuple[int, int], int] = {}
    for event in events:
        process = (event.proc_id, event.incarnation)
        numbers[process].append(event.ev_seq)
        if event.kind == "PROC_END":
            ends[process] = event.ev_seq
    return sum(
        sorted(seen) != list(range(1, len(seen) + 1)) or ends.get(process) != len(seen)
        for process, seen in numbers.items()
    )
