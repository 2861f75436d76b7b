"""What a cluster that is only ever stopped and started in order must not do: flag what nobody was handed out.

After a crash nobody knows how far the dead master had delivered, and everything that it may have is flagged. A stop in
order knows better: the master says how far it has come to its mirrors, and leaves it on its disk, as do they. So as
long as nothing else happens to the cluster, a message that no master has handed out to anybody comes without the flag.

Judged are schedules that have no other steps than `ORDERLY`, and of their messages those for which it is promised:

- Nobody who has served its queue since was sent anything again that an earlier master had not confirmed. (That may have
  been delivered, for all that anybody knows: it is flagged, and with it whatever is in the queue then.)
- Whoever has served its queue since had served it before, or was a synchronised mirror of the one before when that was
  told to stop. (A mirror that leaves while its master goes on cannot know how far that comes, and one that lacks
  something does not go by what its master says of the end: `cluster.mirroring.promotion`.)
- The cluster has taken nobody for dead since, and no copy that lacked something has taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind
from chaos.sim.judge import HandOut, Violation
from chaos.sim.record_watch import NEVER_US
from chaos.sim.schedule import Schedule
from chaos.sim.service_watch import Service, Services

#: Steps after which a cluster knows all that it knew before.
ORDERLY = frozenset(
    {
        "publish",
        "fan_out",
        "nowhere",
        "consume",
        "take_all",
        "cancel",
        "recover",
        "give_back",
        "restart_consumer",
        "reconnect",
        "get",
        "get_no_ack",
        "stop",
        "stop_leader",
        "start",
    }
)
#: What ends the wait for a confirm: an answer, or the loss of the connection.
ANSWERS = frozenset({Kind.CONFIRM, Kind.NACK, Kind.PUB_UNKNOWN})
#: A mirror that stops waits half a second for the last word of a master that may be stopping, too.
WAITED_FOR_US = 400_000
#: A node learns of a new master so much later at most, and sends to the one before meanwhile.
HEARD_WITHIN_US = 1_000_000
#: What its client has given up a node has given up, too, after so long.
GIVEN_UP_WITHIN_US = 10_000_000


def is_orderly(schedule: Schedule) -> bool:
    """Nothing is done to the cluster but what it is told of. (A release before this one knows less.)"""
    return not schedule.personality.earlier and all(step.kind in ORDERLY for step in schedule.steps)


def flagged_for_nothing(
    events: Iterable[Event],
    hand_outs: Mapping[AttemptKey, Sequence[HandOut]],
    services: Services,
    orders: Mapping[str, Sequence[tuple[int, bool]]],
) -> Iterator[Violation]:
    """Messages of an orderly run that came with the flag though nobody had been handed them out before. ``orders``:
    when each node was started (True), or told to stop (False)."""
    asking = _asking(events)
    for key, each in hand_outs.items():
        first = min(each, key=lambda hand_out: hand_out.position)
        if not first.is_flagged or key not in asking:
            continue
        published_us = asking[key].from_us
        served = [service for service in services.of_queues.get(first.queue_id, ()) if service.at_us <= first.at_us]
        is_calm = not any(published_us <= at_us <= first.at_us for at_us in services.unrest)
        if not (is_calm and _is_known(served, published_us, orders)):
            continue
        rivals = [each for other, each in asking.items() if other[0] == key[0]]
        later = [service.at_us for service in served if service.at_us > published_us]
        if not any(each.is_open_at(at_us) for at_us in later for each in rivals):
            queue, publisher, number, attempt = key
            chain = " -> ".join(f"{service.master} (epoch {service.epoch})" for service in served)
            text = f"message {publisher}:{number} attempt {attempt} of queue {queue}: nobody had been handed it out"
            yield Violation("flagged", f"{text}, and {chain} ended in order", key)


class Asking(NamedTuple):
    """Somebody waits for the confirm of a message, in microseconds."""

    from_us: int
    until_us: int = NEVER_US

    def is_open_at(self, at_us: int) -> bool:
        """Whoever begins to serve then may be sent it again."""
        return self.from_us <= at_us + HEARD_WITHIN_US and self.until_us >= at_us


def _asking(events: Iterable[Event]) -> dict[AttemptKey, Asking]:
    asking: dict[AttemptKey, Asking] = {}
    for event in events:
        key = (event.queue_id, event.pub_id, event.seq, event.attempt)
        if event.kind == Kind.PUB_INVOKE:
            asking.setdefault(key, Asking(event.t_lo_us))
        elif event.kind in ANSWERS and key in asking:
            # When it was sent: the node that it was published to knew then.
            over_us = event.t_hi_us + GIVEN_UP_WITHIN_US if event.kind == Kind.PUB_UNKNOWN else event.t_lo_us
            asking[key] = Asking(asking[key].from_us, min(over_us, asking[key].until_us))
    return asking


def _is_known(served: Sequence[Service], published_us: int, orders: Mapping[str, Sequence[tuple[int, bool]]]) -> bool:
    """The last of those who ``served`` the queue can know of all that was there then whether it was handed out."""
    return all(_has_heard(earlier, later, orders) for earlier, later in pairwise(served) if later.at_us > published_us)


def _has_heard(earlier: Service, later: Service, orders: Mapping[str, Sequence[tuple[int, bool]]]) -> bool:
    """Of what the ``earlier`` one has handed out: itself it was, or its mirror, which lacked nothing when that was told
    to stop, and had not been told to stop long before. (That may be so although the record names it: too few may have
    been left to hear its goodbye.)"""
    if later.master == earlier.master:
        return True
    ended_us = _stopped_us(orders.get(earlier.master, ()), earlier.at_us)
    left_us = _stopped_us(orders.get(later.master, ()), min(ended_us, later.at_us))
    return earlier.heirs.get(later.master, NEVER_US) < ended_us and left_us > ended_us - WAITED_FOR_US


def _stopped_us(orders: Sequence[tuple[int, bool]], at_us: int) -> int:
    """When the life was told to stop that a node was in at a time, or had been in last."""
    began_us = max((order_us for order_us, is_start in orders if is_start and order_us <= at_us), default=0)
    return min((order_us for order_us, is_start in orders if not is_start and order_us >= began_us), default=NEVER_US)
