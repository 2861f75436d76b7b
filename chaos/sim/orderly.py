"""What a cluster that is only ever stopped and started in order must not do: flag what nobody was handed out.

After a crash nobody knows how far the dead master had delivered, and everything that it may have is flagged. A stop in
order knows better: the master says how far it has come to its mirrors, and leaves it on its disk, as do they. So as
long as nothing else happens to the cluster, a message that no master has handed out to anybody comes without the flag.

Judged are schedules that have no other steps than `ORDERLY`, and of their messages those for which it is promised:

- It was confirmed by the master to which it was published. (What is sent again under another one is flagged: the first
  one had it, and may have delivered it, for all that anybody knows.)
- Whoever has served its queue since had served it before, or was a synchronised mirror of the one before to the end.
  (A mirror that leaves while its master goes on cannot know how far that comes.)
- The cluster has taken nobody for dead since, and no copy that lacked something has taken over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind
from chaos.sim.judge import HandOut, Violation
from chaos.sim.schedule import Schedule
from chaos.sim.service_watch import Service

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


def is_orderly(schedule: Schedule) -> bool:
    """Nothing is done to the cluster but what it is told of. (A release before this one knows less.)"""
    return not schedule.personality.earlier and all(step.kind in ORDERLY for step in schedule.steps)


def flagged_for_nothing(
    events: Iterable[Event],
    hand_outs: Mapping[AttemptKey, Sequence[HandOut]],
    services: Mapping[int, Sequence[Service]],
    unrest: Sequence[int],
) -> Iterator[Violation]:
    """Messages of an orderly run that came with the flag though nobody had been handed them out before."""
    published: dict[AttemptKey, int] = {}
    confirmed: dict[AttemptKey, int] = {}
    for event in events:
        key = (event.queue_id, event.pub_id, event.seq, event.attempt)
        if event.kind == Kind.PUB_INVOKE:
            published.setdefault(key, event.t_lo_us)
        elif event.kind == Kind.CONFIRM:
            # When it was sent: whoever published it knew then.
            confirmed[key] = min(event.t_lo_us, confirmed.get(key, event.t_lo_us))
    for key, each in hand_outs.items():
        first = min(each, key=lambda hand_out: hand_out.position)
        if not first.is_flagged or key not in published or key not in confirmed:
            continue
        is_calm = not any(published[key] <= at_us <= first.at_us for at_us in unrest)
        served = [service for service in services.get(first.queue_id, ()) if service.at_us <= first.at_us]
        if is_calm and _is_known(served, published[key], confirmed[key]):
            queue, publisher, number, attempt = key
            chain = " -> ".join(f"{service.master} (epoch {service.epoch})" for service in served)
            text = f"message {publisher}:{number} attempt {attempt} of queue {queue}: nobody had been handed it out"
            yield Violation("flagged", f"{text}, and {chain} ended in order", key)


def _is_known(served: Sequence[Service], published_us: int, confirmed_us: int) -> bool:
    """The last of those who ``served`` the queue can know of everything that was confirmed then whether it was handed
    out."""
    if any(published_us < service.at_us <= confirmed_us for service in served):
        return False
    return all(
        later.master in (earlier.master, *earlier.heirs)
        for earlier, later in pairwise(served)
        if later.at_us > confirmed_us
    )
