"""What the broker says to clients, and must not without a reason: errors, refusals, returned messages, cancelled
consumers, and nothing at all.

Clients of the simulator come again whatever they hear, so that faults stop nobody; a client of a user may not. So each
reason that a node gives for the end of a channel or a connection is looked at, and so is each answer that says no:

- **an error** (`Answers.ended`) is one that the circumstances explain: a node stops or pauses (320), what is asked for
  needs the others or a disk that works (541, with what is missing), a queue is out of reach (404, with `OUT_OF_REACH`),
  or there is none, which the node must have learned from the cluster; a condition does not hold, and somebody asked for
  one; somebody asked for what is not done, or settled once more what was given back. Nothing else is expected, and when
  the cluster has converged without a fault, nothing at all;
- **a refusal** of a publish needs a queue that refuses (``reject-publish``);
- **a message is returned**, and **a consumer is cancelled** by the broker, if the node has lacked the queue meanwhile;
- **silence**: see `chaos.sim.ending`.

What was learned when is for `chaos.sim.record_watch` to say, which knows it when the run is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from chaos.history import Event, Kind
from chaos.sim.client import CLOSED_BY_CLIENT, NOT_FOUND, ClosedError
from chaos.sim.record_watch import Ignorance
from chaos.sim.schedule import EXCLUSIVE, Personality

#: What the broker says of a queue whose master is down, moves, or says nothing: it is there, and out of reach.
OUT_OF_REACH = ("inaccessible", "did not answer in time", "is changing its master", "changes its master")
#: Of a node that stops, or pauses.
FAREWELLS = ("shutdown", "pause_minority")
#: Of a condition of a deletion.
UNMET = ("in use", "is not empty")
#: In a name of what the workload declares.
_QUEUE = re.compile(r"queue 'q(\d+)'")
#: What comes and goes beside that, and its own clients look at what they hear of it: queues, and exchanges but those of
#: `chaos.sim.workload.fan_name`. The last is of a call that waited as its queue was deleted, and names none.
_OTHERS = re.compile(r"no queue '|no exchange '(?!fan )|the queue has been deleted")
#: An answer leaves after the turn that gave it, and perhaps the next one: two milliseconds each, at most.
LEAVES_AFTER_US = 5_000
#: Publishers of the workload; others publish in transactions, or in the end.
PUBLISHERS_END = 100


def is_missing(error: BaseException) -> bool:
    """There is no such thing, the broker says."""
    is_not_found = isinstance(error, ClosedError) and error.code == NOT_FOUND
    return is_not_found and not any(text in str(error) for text in OUT_OF_REACH)


class Missed(NamedTuple):
    """Somebody was told that there is no such queue."""

    at_us: int
    node: str
    queue: int
    told: str


class Answers:
    """See the module text; ``violate`` is told the kind and what was said."""

    def __init__(self, personality: Personality, violate: Callable[[str, str], None]) -> None:
        self._personality = personality
        self._violate = violate
        #: The cluster has converged, no fault is left, and the clients of the workload are gone.
        self.is_calm = False
        #: Vhosts come and go.
        self.has_tenants = False
        #: Clients whose users come and go, or their vhosts (`chaos.sim.lodgers`).
        self.lodgers: set[str] = set()
        #: Clients that have asked for what is not done: to stop the flow of a channel.
        self.stops_flow: set[str] = set()
        #: Clients that have given back all that is theirs in one word, and settle what was on its way once more.
        self.gives_back: set[str] = set()
        #: What the record must explain.
        self._missed: list[Missed] = []

    def ended(self, client: str, node: str, error: ClosedError, sent_us: int) -> None:
        """The broker, as ``node``, has ended a channel or a connection for this reason."""
        if error.code in (0, CLOSED_BY_CLIENT):
            return
        if self.is_calm:
            self._violate("error", f"{client} hears from {node}, when all is well: {error}")
        elif not self._is_expected(client, node, error, sent_us):
            self._violate("error", f"{client} hears from {node}: {error}")

    def _is_expected(self, client: str, node: str, error: ClosedError, sent_us: int) -> bool:
        text, p = str(error), self._personality
        if client in self.lodgers and _is_of_lodgers(error.code, text):
            return True
        match error.code:
            case 320:
                return any(said in text for said in FAREWELLS) or self._is_of_tenants(text)
            case 404:
                return self._is_missing(client, node, text, sent_us)
            case 406 if "unknown delivery tag" in text:
                return client in self.gives_back
            case 406 if "partial tx completion" in text:
                return p.overflow == "reject-publish"
            case 406:
                return any(unmet in text for unmet in UNMET)
            case 403:
                return EXCLUSIVE in p.consumer_kinds and "exclusive" in text
            case 530:
                return self._is_of_tenants(text)
            case 540:
                return client in self.stops_flow and "active=false" in text
            case 541:
                return "internal error" not in text
        return False

    def _is_of_tenants(self, text: str) -> bool:
        return self.has_tenants and "vhost" in text and "tenant" in text

    def _is_missing(self, client: str, node: str, text: str, sent_us: int) -> bool:
        if any(said in text for said in OUT_OF_REACH):
            return True
        named = _QUEUE.search(text)
        if named is None:
            return _OTHERS.search(text) is not None
        self._missed.append(Missed(sent_us, node, int(named[1]), f"{client} hears from {node}: {text}"))
        return True

    def cancelled(self, client: str, node: str, queue: int, sent_us: int) -> None:
        """The broker has ended a consumer that did not ask to be told of a new master.

        One that was attached to another master may find there somebody who is alone, and is refused."""
        if self.is_calm:
            self._violate("cancelled", f"{node} has ended the consumer of {client}, when all is well")
        elif EXCLUSIVE not in self._personality.consumer_kinds:
            told = f"{node} has ended the consumer of {client} of q{queue}"
            self._missed.append(Missed(sent_us, node, queue, told))

    def judge(
        self,
        events: Sequence[Event],
        entries: Mapping[int | None, str],
        ignorance: Mapping[int, Sequence[Ignorance]],
    ) -> None:
        """When the run is over. ``entries``: which node each channel led to."""
        for at_us, node, queue, told in self._missed:
            if not _has_lacked(ignorance.get(queue, ()), node, at_us - LEAVES_AFTER_US, at_us):
                self._violate("missing", f"{told}, at {at_us / 1e6:.4f} s; the node had it")
        published = {
            (event.queue_id, event.pub_id, event.seq, event.attempt): event.t_lo_us
            for event in events
            if event.kind == Kind.PUB_INVOKE
        }
        for event in events:
            if event.pub_id is None or event.pub_id >= PUBLISHERS_END or event.queue_id is None or event.queue_id < 0:
                continue
            message = f"{event.pub_id}:{event.seq} attempt {event.attempt} of q{event.queue_id}"
            if event.kind == Kind.NACK and self._personality.overflow != "reject-publish":
                self._violate("refused", f"message {message} was refused, and no queue refuses")
            if event.kind == Kind.RETURN:
                from_us = published[event.queue_id, event.pub_id, event.seq, event.attempt]
                node = entries[event.channel_id]
                if not _has_lacked(ignorance.get(event.queue_id, ()), node, from_us, event.t_hi_us):
                    self._violate("returned", f"message {message} was returned by {node}, which had the queue")


def _is_of_lodgers(code: int, text: str) -> bool:
    """Their users or vhosts are gone. (Who may not log in is not told why.)"""
    is_named = "lodger" in text
    return (code == 403 and "Login was refused" in text) or (code in (320, 403, 530) and is_named)


def _has_lacked(ignorance: Sequence[Ignorance], node: str, from_us: int, until_us: int) -> bool:
    """The node did not have the queue, or not the one that there was, at some time between."""
    return any(each.node == node and each.from_us <= until_us and each.until_us >= from_us for each in ignorance)
