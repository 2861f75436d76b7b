"""Every class of anomaly: where it can be, what is changed, and which row shows it. See `chaos.generator.planting`."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from chaos.generator.candidates import CALM, first_read_behind, next_of_same
from chaos.generator.planting import GUEST_US, Anomaly, Bench, Shown
from chaos.generator.publishing import Outcome
from chaos.generator.rows import Mask, Numbers
from chaos.judge.findings import Name
from chaos.record.kinds import Flag, Kind, Stray
from chaos.record.message_key import ATTEMPT_BITS, PUBLISHER_SHIFT

_FLAGGED = int(Flag.REDELIVERED)
#: Soon after something, and when a slack is over for certain.
_SOON_US = 300
_LATER_US = 1_000
#: A number that no publish has, in a message's key and on a channel.
_BEYOND = 1 << 31


def _of(bench: Bench, at: Numbers, places: Numbers) -> Shown:
    return Shown(places, bench.messages.key[at])


def _in_row(bench: Bench, at: Numbers, kind: Kind) -> Shown:
    return _of(bench, at, bench.messages.places[kind][at])


# --- where


def _plain(bench: Bench) -> Mask:
    return bench.is_plain


def _wanted(bench: Bench) -> Mask:
    """Where what is missing is missed: the queue removes nothing by itself."""
    return bench.is_plain & ~bench.is_expiring


def _wanted_multiple(bench: Bench) -> Mask:
    is_multiple: Mask = bench.rows.columns["flags"][bench.messages.places[Kind.CONFIRM]] & Flag.MULTIPLE != 0
    return _wanted(bench) & is_multiple


def _over_failover(bench: Bench) -> Mask:
    return bench.messages.is_plain & bench.messages.is_over_failover & ~bench.is_expiring & ~bench.is_edge


def _before_failover(bench: Bench) -> Mask:
    return bench.messages.is_plain & (bench.messages.next_failover_us > 0) & ~bench.is_edge


def _in_ordinary(bench: Bench) -> Mask:
    return bench.is_plain & bench.is_ordinary


def _beyond(bench: Bench) -> Mask:
    """Not where what is lost last must be the last."""
    shape = bench.shape
    is_ordinary_only = shape.expiring_queues + shape.undrained_queues == 0
    return bench.is_plain & (is_ordinary_only | ~bench.is_ordinary)


def _held_long(bench: Bench) -> Mask:
    return bench.is_plain & (bench.messages.ended_us - bench.messages.read_us >= 8)


def _answered_by_heir(bench: Bench) -> Mask:
    return bench.is_plain & (bench.epoch + bench.messages.answered_era > 1)


def _expired(bench: Bench) -> Mask:
    is_expired: Mask = bench.messages.outcome == Outcome.EXPIRED
    return is_expired & ~bench.is_edge & bench.messages.is_calm


def _first(bench: Bench) -> Mask:
    return _run(bench, bench.messages.from_first, bench.messages.to_last)


def _last(bench: Bench) -> Mask:
    return _run(bench, bench.messages.to_last, bench.messages.from_first)


def _run(bench: Bench, distance: Numbers, to_other_edge: Numbers) -> Mask:
    """From the edge as long as everything that was delivered of its publisher is plain, and far from the other one."""
    messages = bench.messages
    is_delivered = np.isin(messages.outcome, (Outcome.TAKEN, Outcome.UNRESOLVED_TAKEN))
    publisher = messages.queue * bench.shape.publishers + messages.slot
    order = np.lexsort((distance, publisher))
    is_other = (is_delivered & ~messages.is_plain)[order]
    others = np.cumsum(is_other)
    _, starts, group = np.unique(publisher[order], return_index=True, return_inverse=True)
    before = np.where(starts > 0, others[starts - 1], 0)[group]
    is_in_run = np.zeros(len(messages), np.bool_)
    is_in_run[order] = others == before
    return (
        is_in_run & messages.is_plain & bench.is_ordinary & (distance < bench.margin) & (to_other_edge >= bench.margin)
    )


# --- companions


def _next_in_channel(bench: Bench) -> Numbers:
    """Published next on the same channel, and delivered in the same."""
    messages = bench.messages
    # Both are numbers of channels of the run.
    groups = messages.publisher_channel * (bench.counters.channels + 1) + messages.consumer_channel
    following = next_of_same(groups, np.flatnonzero(bench.is_plain))
    return np.where(messages.era[following] == messages.era, following, -1)


def _next_published(bench: Bench) -> Numbers:
    """Published next on the same channel, delivered soon enough for what comes a slack behind it."""
    messages = bench.messages
    following = next_of_same(messages.publisher_channel, np.flatnonzero(bench.is_plain))
    return _if_near(bench, following)


def _next_after_slack(bench: Bench) -> Numbers:
    """Published later on the same channel, and the first that was read more than a slack behind the proof."""
    messages = bench.messages
    moments = messages.proven_us + bench.shape.slack_us + _SOON_US
    following = first_read_behind(messages.publisher_channel, messages.read_us, np.flatnonzero(bench.is_plain), moments)
    return _if_near(bench, following)


def _if_near(bench: Bench, following: Numbers) -> Numbers:
    late_us = bench.messages.read_us[following] + bench.shape.slack_us + 2 * _LATER_US
    is_near = late_us < bench.messages.read_us + (CALM - 1) * bench.shape.slack_us
    return np.where(is_near & (late_us < bench.until_us), following, -1)


def _behind_companion(bench: Bench) -> Numbers:
    return bench.messages.read_us[bench.companion] + bench.shape.slack_us + _LATER_US


# --- what is not there


def _lose(bench: Bench, at: Numbers) -> Shown:
    bench.undeliver(at)
    return _in_row(bench, at, Kind.PUBLISH)


def _vanish_released(bench: Bench, at: Numbers) -> Shown:
    bench.take_out(at, Kind.DELIVER, Kind.HANDED_OUT)
    bench.unsettle(at)
    bench.guest(at, bench.messages.read_us[at], is_gone=True)
    return _in_row(bench, at, Kind.PUBLISH)


def _vanish_requeued(bench: Bench, at: Numbers) -> Shown:
    bench.requeue(at)
    return _in_row(bench, at, Kind.PUBLISH)


def _vanish_held(bench: Bench, at: Numbers) -> Shown:
    bench.unsettle(at)
    return _in_row(bench, at, Kind.PUBLISH)


def _phantom(bench: Bench, at: Numbers) -> Shown:
    bench.take_out(at, Kind.PUBLISH, Kind.CONFIRM, Kind.APPLIED, Kind.ANSWERED)
    return _in_row(bench, at, Kind.DELIVER)


def _phantom_beyond(bench: Bench, at: Numbers) -> Shown:
    serial = _BEYOND + bench.beyond + np.arange(len(at), dtype=np.int64)
    bench.beyond += len(at)
    publisher = bench.messages.key[at] >> PUBLISHER_SHIFT << PUBLISHER_SHIFT
    keys = publisher | serial << ATTEMPT_BITS | 1
    return Shown(bench.beside(at, keys), keys)


def _stuck(bench: Bench, at: Numbers) -> Shown:
    bench.undeliver(at)
    return Shown(None, bench.messages.key[at])


def _stuck_requeued(bench: Bench, at: Numbers) -> Shown:
    bench.requeue(at)
    return Shown(None, bench.messages.key[at])


# --- what should not be there


def _foreign(bench: Bench, at: Numbers, flags: int) -> Shown:
    return Shown(bench.beside(at, 0, flags, is_settled=False), np.zeros(len(at), np.int64))


def _corrupt(bench: Bench, at: Numbers) -> Shown:
    bench.put(at, Kind.DELIVER, "flags", int(Flag.CORRUPT))
    return _in_row(bench, at, Kind.DELIVER)


def _misroute(bench: Bench, at: Numbers) -> Shown:
    bench.put(at, Kind.DELIVER, "queue", bench.messages.queue[at] % bench.shape.queues + 1)
    return _in_row(bench, at, Kind.DELIVER)


def _refuse(bench: Bench, at: Numbers) -> Shown:
    bench.put(at, Kind.CONFIRM, "kind", int(Kind.REFUSE))
    bench.take_out(at, Kind.ANSWERED)
    return _in_row(bench, at, Kind.DELIVER)


def _return(bench: Bench, at: Numbers) -> Shown:
    messages = bench.messages
    bench.put(at, Kind.PUBLISH, "flags", int(Flag.MANDATORY))
    bench.rows.add(
        Kind.RETURN,
        bench.publisher_process(at),
        messages.answered_us[at] - 1,
        message=messages.key[at],
        channel=messages.publisher_channel[at],
        line=messages.publish_line[at],
    )
    return _in_row(bench, at, Kind.DELIVER)


def _stray(bench: Bench, at: Numbers, stray: Stray) -> Shown:
    messages = bench.messages
    is_known = stray is not Stray.UNKNOWN
    others: dict[str, npt.ArrayLike] = (
        {"message": messages.key[at], "line": messages.publish_line[at]}
        if is_known
        else {"tag": _BEYOND + np.arange(len(at))}
    )
    places = bench.rows.add(
        Kind.STRAY,
        bench.publisher_process(at),
        messages.answered_us[at] + 1,
        channel=messages.publisher_channel[at],
        number=int(stray),
        **others,
    )
    return Shown(places, messages.key[at] if is_known else np.zeros(len(at), np.int64))


def _confirm_falsely(bench: Bench, at: Numbers) -> Shown:
    epoch = bench.epoch[at] + bench.messages.answered_era[at] - 1
    bench.put(at, Kind.ANSWERED, "epoch", epoch)
    return _in_row(bench, at, Kind.ANSWERED)


# --- again


def _unflagged_beside(bench: Bench, at: Numbers) -> Shown:
    return _of(bench, at, bench.beside(at, bench.messages.key[at]))


def _unflagged(bench: Bench, at: Numbers) -> Shown:
    return _of(bench, at, bench.guest(at, bench.messages.ended_us[at] + _SOON_US))


def _unflagged_requeued(bench: Bench, at: Numbers) -> Shown:
    bench.requeue(at)
    return _unflagged(bench, at)


def _again(bench: Bench, at: Numbers, moments: Numbers, held_us: int = GUEST_US) -> Shown:
    return _of(bench, at, bench.guest(at, moments, _FLAGGED, held_us=held_us))


def _resurrect_proven(bench: Bench, at: Numbers) -> Shown:
    return _again(bench, at, bench.messages.proven_us[at] + _SOON_US)


def _resurrect_discarded(bench: Bench, at: Numbers) -> Shown:
    bench.put(at, Kind.ACK, "flags", 0)
    bench.put(at, Kind.ACK, "kind", int(Kind.DISCARD))
    return _resurrect_proven(bench, at)


def _resurrect_unacknowledged(bench: Bench, at: Numbers) -> Shown:
    bench.take_out(at, Kind.ACK, Kind.ACK_PROVEN)
    bench.put(at, Kind.DELIVER, "flags", int(Flag.NO_ACK))
    return _resurrect_proven(bench, at)


def _resurrect_settled(bench: Bench, at: Numbers) -> Shown:
    """Only the broker says that it was settled."""
    bench.take_out(at, Kind.ACK_PROVEN)
    bench.put(at, Kind.SETTLED, "flags", 0)
    return _resurrect_proven(bench, at)


def _resurrect_everywhere(bench: Bench, at: Numbers) -> Shown:
    bench.put(at, Kind.SETTLED, "flags", int(Flag.EVERYWHERE))
    moments = bench.messages.next_failover_us[at] + 2 * _LATER_US
    return _of(bench, at, bench.guest(at, moments, _FLAGGED, failovers=1))


def _resurrect_expired(bench: Bench, at: Numbers) -> Shown:
    removed_us = bench.rows.columns["t_hi_us"][bench.messages.places[Kind.EXPIRED][at]]
    return _again(bench, at, removed_us + bench.shape.slack_us + _LATER_US)


def _resurrect_dropped(bench: Bench, at: Numbers) -> Shown:
    bench.requeue(at)
    bench.take_out(at, Kind.ACK_PROVEN)
    removed_us = bench.messages.ended_us[at] + _SOON_US
    bench.tell(Kind.DROPPED, at, removed_us)
    return _again(bench, at, removed_us + bench.shape.slack_us + _LATER_US)


def _own_twice(bench: Bench, at: Numbers) -> Shown:
    messages = bench.messages
    return _again(bench, at, messages.read_us[at] + (messages.ended_us[at] - messages.read_us[at]) // 2)


def _own_unended(bench: Bench, at: Numbers) -> Shown:
    bench.unsettle(at)
    return _again(bench, at, bench.messages.ended_us[at] + _SOON_US)


def _own_with_used_cause(bench: Bench, at: Numbers) -> Shown:
    """It was given back once, and comes twice."""
    bench.requeue(at)
    moments = bench.messages.ended_us[at] + _SOON_US
    _again(bench, at, moments, held_us=4 * _LATER_US)
    return _again(bench, at, moments + _LATER_US)


def _repeat_unproven(bench: Bench, at: Numbers) -> Shown:
    bench.take_out(at, Kind.ACK_PROVEN, Kind.SETTLED)
    return _again(bench, at, bench.messages.ended_us[at] + _LATER_US)


def _repeat_unread(bench: Bench, at: Numbers) -> Shown:
    """Nobody had read it yet, as far as one can know."""
    return _again(bench, at, bench.messages.read_us[at] - 20)


# --- order


def _misorder(bench: Bench, at: Numbers) -> Shown:
    messages, other = bench.messages, bench.companion
    bench.move(at, Kind.DELIVER, messages.read_us[other] + 1)
    bench.put(at, Kind.ACK, "flags", 0)
    for kind, column in ((Kind.ACK, messages.ended_us), (Kind.ACK_PROVEN, messages.proven_us)):
        bench.move(at, kind, np.maximum(column[at], column[other] + 1))
    bench.move(at, Kind.SETTLED, np.maximum(messages.ended_us[at], messages.ended_us[other]) + _SOON_US)
    return _in_row(bench, at, Kind.DELIVER)


def _overtake(bench: Bench, at: Numbers) -> Shown:
    bench.undeliver(at)
    return _of(bench, at, bench.guest(at, _behind_companion(bench)))


def _overtake_requeued(bench: Bench, at: Numbers) -> Shown:
    bench.requeue(at)
    return _again(bench, at, _behind_companion(bench))


#: In the order of planting: what needs a certain place comes before what can be anywhere.
ANOMALIES = (
    Anomaly("lost_prefix", Name.LOST, _first, _lose, edge_block=0),
    Anomaly("lost_postfix", Name.LOST, _last, _lose, edge_block=-1),
    Anomaly("lost_over_failover", Name.LOST, _over_failover, _lose, needs_failover=True),
    Anomaly(
        "resurrected_everywhere",
        Name.RESURRECTED,
        _before_failover,
        _resurrect_everywhere,
        needs_tap=True,
        needs_failover=True,
    ),
    Anomaly(
        "false_confirm", Name.FALSE_CONFIRM, _answered_by_heir, _confirm_falsely, needs_tap=True, needs_failover=True
    ),
    Anomaly(
        "resurrected_expired",
        Name.RESURRECTED,
        _expired,
        _resurrect_expired,
        needs_tap=True,
        legal=Name.FLAGGED_FIRST,
    ),
    Anomaly(
        "requeue_overtaken", Name.REQUEUE_OVERTAKEN, _plain, _overtake_requeued, _next_after_slack, legal=Name.CAUSED
    ),
    Anomaly("overtaken", Name.OVERTAKEN, _plain, _overtake, companion=_next_published),
    Anomaly("misordered", Name.MISORDERED, _plain, _misorder, companion=_next_in_channel),
    Anomaly("lost_multiple", Name.LOST, _wanted_multiple, _lose),
    Anomaly("lost_middle", Name.LOST, _wanted, _lose),
    Anomaly("vanished_released", Name.VANISHED, _wanted, _vanish_released),
    Anomaly("vanished_requeued", Name.VANISHED, _wanted, _vanish_requeued),
    Anomaly("vanished_held", Name.VANISHED, _wanted, _vanish_held),
    Anomaly("phantom_unpublished", Name.PHANTOM, _plain, _phantom),
    Anomaly("phantom_beyond", Name.PHANTOM, _beyond, _phantom_beyond),
    Anomaly("stuck_undelivered", Name.STUCK, _in_ordinary, _stuck),
    Anomaly("stuck_requeued", Name.STUCK, _in_ordinary, _stuck_requeued),
    Anomaly("foreign", Name.FOREIGN, _plain, partial(_foreign, flags=0)),
    Anomaly("corrupt", Name.CORRUPT, _plain, _corrupt),
    Anomaly("corrupt_unreadable", Name.CORRUPT, _plain, partial(_foreign, flags=int(Flag.CORRUPT)), also=Name.FOREIGN),
    Anomaly("misrouted", Name.MISROUTED, _plain, _misroute),
    Anomaly("refused_delivered", Name.REFUSED_DELIVERED, _plain, _refuse),
    Anomaly("returned_delivered", Name.RETURNED_DELIVERED, _plain, _return),
    Anomaly("confirm_twice", Name.CONFIRM_TWICE, _plain, partial(_stray, stray=Stray.TWICE)),
    Anomaly("confirm_contradiction", Name.CONFIRM_CONTRADICTION, _plain, partial(_stray, stray=Stray.CONTRADICTION)),
    Anomaly("confirm_unknown", Name.CONFIRM_UNKNOWN, _plain, partial(_stray, stray=Stray.UNKNOWN)),
    Anomaly("unflagged_same_channel", Name.UNFLAGGED, _plain, _unflagged_beside),
    Anomaly("unflagged_other_channel", Name.UNFLAGGED, _plain, _unflagged),
    Anomaly("unflagged_requeued", Name.UNFLAGGED, _plain, _unflagged_requeued),
    Anomaly("resurrected_proven", Name.RESURRECTED, _plain, _resurrect_proven),
    Anomaly("resurrected_discarded", Name.RESURRECTED, _plain, _resurrect_discarded),
    Anomaly("resurrected_unacknowledged", Name.RESURRECTED, _plain, _resurrect_unacknowledged),
    Anomaly("resurrected_settled", Name.RESURRECTED, _plain, _resurrect_settled, needs_tap=True),
    Anomaly("resurrected_dropped", Name.RESURRECTED, _plain, _resurrect_dropped, needs_tap=True),
    Anomaly("double_owner_held", Name.DOUBLE_OWNER, _held_long, _own_twice),
    Anomaly("double_owner_unended", Name.DOUBLE_OWNER, _plain, _own_unended),
    Anomaly("double_owner_used_cause", Name.DOUBLE_OWNER, _plain, _own_with_used_cause, legal=Name.CAUSED),
    Anomaly("spontaneous_unproven", Name.SPONTANEOUS, _plain, _repeat_unproven),
    Anomaly("spontaneous_unread", Name.SPONTANEOUS, _plain, _repeat_unread),
)
