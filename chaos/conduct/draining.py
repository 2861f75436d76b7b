"""Waiting until nothing comes any more."""

from __future__ import annotations

from chaos.clients.options import Role
from chaos.conduct.crew import Crew
from chaos.conduct.loop_time import now_s
from chaos.conduct.watch import Watch

#: For every publish to be answered, and for messages to be attempted again.
ANSWERED_S = 90.0
#: Nothing was delivered and no length has changed for so long: consumers get no more.
STILL_S = 10.0
#: In all; a queue that is still being consumed then is not drained.
EMPTY_S = 300.0
#: Looks in a row that must find a queue empty: what was seen first may be older than the last publish.
EMPTY_LOOKS = 5


async def await_answers(crew: Crew, watch: Watch) -> list[str]:
    """Until publishers have nothing outstanding. Returns what is to be noted."""
    deadline_s = now_s() + ANSWERED_S
    while True:
        await crew.refresh()
        counts = crew.counts(Role.PUBLISHER)
        if counts.is_drained:
            return []
        if now_s() > deadline_s:
            return [
                f"{counts.outstanding} publishes were not answered, and {counts.waiting} messages not attempted "
                f"again, within {ANSWERED_S:g} s"
            ]
        await watch.next_look()


async def await_empty(crew: Crew, watch: Watch) -> tuple[set[str], list[str]]:
    """Until queues are empty, or consumers get no more. Returns those that are drained, and what is to be noted."""
    deadline_s = now_s() + EMPTY_S
    empty_looks = dict.fromkeys(watch.masters, 0)
    last: object = None
    moved_s = now_s()
    while True:
        await crew.refresh()
        views = watch.views()
        for name in empty_looks:
            view = views.get(name)
            # Where nobody tells what is unacknowledged, consumers hold nothing: see below.
            is_empty = view is not None and view.is_served and view.ready == 0 and not view.unacked
            empty_looks[name] = empty_looks[name] + 1 if is_empty else 0
        consumed = crew.counts(Role.CONSUMER)
        if min(empty_looks.values()) >= EMPTY_LOOKS and not consumed.outstanding:
            return set(empty_looks), []
        state = (consumed.delivered, consumed.outstanding, [(view.ready, view.unacked) for view in views.values()])
        if state != last:
            last, moved_s = state, now_s()
        served = {name for name, view in views.items() if view.is_served and view.ready is not None}
        if now_s() - moved_s > STILL_S and served == set(empty_looks) and crew.is_consuming:
            left = [
                f"{name}: {views[name].ready} ready, {views[name].unacked} unacknowledged" for name in sorted(served)
            ]
            return served, [f"consumers get no more, and queues are not empty ({'; '.join(left)})"]
        if now_s() > deadline_s:
            drained = {name for name, looks in empty_looks.items() if looks >= EMPTY_LOOKS}
            left = sorted(empty_looks.keys() - drained)
            return drained, [f"queues did not run empty within {EMPTY_S:g} s: {', '.join(left)}"]
        await watch.next_look()
