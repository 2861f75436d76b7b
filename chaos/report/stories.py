"""The story of one message: everything that was recorded of it, and what was done to its queue meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from chaos.conduct.sheet import Sheet
from chaos.judge.figures import by_time
from chaos.judge.findings import Finding, Name
from chaos.record.kinds import Flag, Heir, Kind, Stray
from chaos.record.message_key import any_attempt, unpack
from chaos.record.schema import Event
from chaos.report.drawing import duration
from chaos.report.model import Actor, Deed, Story

#: What is told of a queue, and of all queues, beside what is told of the message.
ABOUT_QUEUE = frozenset(
    {
        Kind.PROMOTED,
        Kind.DEMOTED,
        Kind.MIRROR_JOINED,
        Kind.MIRROR_LEFT,
        Kind.SYNC_BEGIN,
        Kind.SYNC_END,
        Kind.SYNC_CANCELLED,
        Kind.EMPTIED,
    }
)
ABOUT_ALL = frozenset({Kind.FAULT_BEGIN, Kind.FAULT_END})
#: So long before the first and behind the last event of the message, what happened to its queue is told.
AROUND_US = 2_000_000
#: Deeds of a story; the middle is left out of a longer one.
DEEDS_MAX = 200
_STRAYS = {
    Stray.TWICE: "hears an answer once more",
    Stray.CONTRADICTION: "hears another answer than before",
    Stray.UNKNOWN: "hears an answer for what it has not published",
}
HEIRS = {
    Heir.UNKNOWN: "",
    Heir.OLDEST_SYNCHRONISED: ", the oldest that had everything",
    Heir.SYNCHRONISED: ", which had everything",
    Heir.NONE_SYNCHRONISED: "; nobody had everything",
    Heir.WRONG: ", though another had everything",
}


def _published(event: Event) -> str:
    late = f", {duration(event.number)} late" if event.number else ""
    return f"publishes it (attempt {unpack(event.message).attempt}, tag {event.tag}{late})"


def _delivered(event: Event) -> str:
    marks = {
        Flag.REDELIVERED: "flagged as redelivered",
        Flag.CORRUPT: "with another body than was published",
        Flag.NO_ACK: "without having to acknowledge it",
    }
    told = [text for flag, text in marks.items() if event.flags & flag]
    if event.queue:
        told.append(f"from queue {event.queue}")
    return ", ".join([f"gets it (tag {event.tag})", *told])


def fault_in_words(event: Event) -> str:
    """Of a `FAULT_BEGIN`."""
    told = json.loads(event.detail) if event.detail else {}
    where = ", ".join(f"n{node}" for node in told.get("nodes", ()))
    lines = ", ".join(f"{_end(source)} to {_end(other)}" for source, other in told.get("lines", ()))
    whom = where or lines
    return f"fault {event.fault}: {told.get('type', 'unknown')}{f' of {whom}' if whom else ''}"


def _end(node: int) -> str:
    return f"n{node}" if node else "clients"


#: What each kind is in words; who does it is told beside.
WORDS: Mapping[Kind, Callable[[Event], str]] = {
    Kind.PUBLISH: _published,
    Kind.CONFIRM: lambda _: "hears that it was taken",
    Kind.REFUSE: lambda _: "hears that it was refused",
    Kind.RETURN: lambda _: "gets it back: no queue took it",
    Kind.UNRESOLVED: lambda _: "loses its channel before an answer",
    Kind.STRAY: lambda event: _STRAYS[Stray(event.number)],
    Kind.GIVEN_UP: lambda _: "gives it up",
    Kind.DELIVER: _delivered,
    Kind.ACK: lambda event: f"acknowledges it (tag {event.tag})",
    Kind.ACK_PROVEN: lambda event: f"knows that this has arrived (tag {event.tag})",
    Kind.REQUEUE: lambda event: f"gives it back (tag {event.tag})",
    Kind.DISCARD: lambda event: f"drops it (tag {event.tag})",
    Kind.RELEASE: lambda event: f"loses its channel, and so gives it back (tag {event.tag})",
    Kind.LEFT: lambda _: "finds it in the queue at the end",
    Kind.APPLIED: lambda event: f"takes it, as master of epoch {event.epoch}",
    Kind.ANSWERED: lambda event: f"answers for it, as master of epoch {event.epoch}",
    Kind.HANDED_OUT: lambda event: f"hands it out{', flagged' if event.flags & Flag.REDELIVERED else ''}",
    Kind.SETTLED: lambda event: (
        f"has its acknowledgement{', and so has every mirror' if event.flags & Flag.EVERYWHERE else ''}"
    ),
    Kind.REQUEUED: lambda _: "puts it back",
    Kind.EXPIRED: lambda _: "removes it: its time is over",
    Kind.DROPPED: lambda _: "drops it: the queue is full",
    Kind.PURGED: lambda _: "removes it: the queue is purged",
    Kind.DEAD_LETTERED: lambda _: "sends it to the dead letters",
    Kind.HELD: lambda _: "has it in its replica at the end",
    Kind.PROMOTED: lambda event: f"becomes master, epoch {event.epoch}{HEIRS[Heir(event.number)]}",
    Kind.DEMOTED: lambda event: f"is master no more of epoch {event.epoch}",
    Kind.MIRROR_JOINED: lambda _: "becomes a mirror",
    Kind.MIRROR_LEFT: lambda _: "is a mirror no more",
    Kind.SYNC_BEGIN: lambda _: "begins to be filled",
    Kind.SYNC_END: lambda _: "has everything",
    Kind.SYNC_CANCELLED: lambda _: "is filled no further",
    Kind.EMPTIED: lambda event: f"empties the queue: {event.detail}",
    Kind.FAULT_BEGIN: fault_in_words,
    Kind.FAULT_END: lambda event: f"fault {event.fault} ends",
}


def story(
    message: int,
    events: Iterable[Event],
    findings: Collection[Finding],
    sheet: Sheet,
    logs: Sequence[tuple[str, str]] = (),
) -> Story:
    """Of a message in all its attempts. ``events``: at least what is about it and its queue; others are left out."""
    events = list(events)
    parts = unpack(message)
    own = [each for each in events if each.message and any_attempt(each.message) == any_attempt(message)]
    begin_us = min((each.t_lo_us for each in own), default=0) - AROUND_US
    end_us = max((each.t_hi_us for each in own), default=0) + AROUND_US
    around = [
        each
        for each in events
        if not each.message
        and (each.kind in ABOUT_ALL or (each.kind in ABOUT_QUEUE and each.queue == parts.queue))
        and each.t_hi_us >= begin_us
        and each.t_lo_us <= end_us
    ]
    named = {(finding.process, finding.event) for finding in findings}
    told = sorted([*own, *around], key=by_time)
    deeds = [_deed(each, sheet, (each.process, each.event) in named) for each in told if each.kind in WORDS]
    queue = sheet.queues[parts.queue - 1].name if parts.queue <= len(sheet.queues) else str(parts.queue)
    title = f"message {parts.sequence} of publisher {parts.publisher}, queue {queue}"
    names: list[Name] = sorted({finding.name for finding in findings})
    return Story(message, title, names, _bounded(deeds), logs)


def _bounded(deeds: Sequence[Deed]) -> Sequence[Deed]:
    if len(deeds) <= DEEDS_MAX:
        return deeds
    half = DEEDS_MAX // 2
    left_out = len(deeds) - 2 * half
    gap = Deed(deeds[half].t_lo_us, deeds[-half - 1].t_hi_us, Actor.CONDUCTOR, "", f"{left_out} more")
    return [*deeds[:half], gap, *deeds[-half:]]


def _deed(event: Event, sheet: Sheet, is_finding: bool) -> Deed:
    kind = Kind(event.kind)
    actor, who = _who(kind, event, sheet)
    return Deed(event.t_lo_us, event.t_hi_us, actor, who, WORDS[kind](event), is_finding)


def _who(kind: Kind, event: Event, sheet: Sheet) -> tuple[Actor, str]:
    if Kind.APPLIED <= kind <= Kind.SYNC_CANCELLED:
        names = {each["number"]: str(each["name"]) for each in sheet.nodes}
        return Actor.NODE, names.get(event.node, f"n{event.node}" if event.node else "some node")
    roles = {entry.process: entry.role for entry in sheet.roster}
    role = roles.get(event.process, "process")
    if role == "conductor":
        return Actor.CONDUCTOR, role
    return (Actor.PUBLISHER if role == "publisher" else Actor.CONSUMER), f"{role} {event.process}"
