"""What happens in a run, each with its line of the `--replay` log: what the lane diagram is drawn from.

A happening has a *lane*: the node, or the client, that it happens to. Those of the schedule itself, and what is about
everybody, have none. Some begin or end a *span*, a state that lasts (a node that is down, a link that is cut): a span
is known by its name, and lies on the lane of a node or, as links do, beside all lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind

#: Ends every span there is.
EVERYTHING = "everything"
#: Spans of a node that the drawing knows: who is down is paused no longer, and its whole lane is shaded.
DOWN, PAUSED = "down", "paused"

#: How the events of clients read, between who and what.
VERBS: Mapping[str, str] = {
    Kind.PUB_INVOKE: "publishes",
    Kind.CONFIRM: "hears the confirm of",
    Kind.NACK: "hears the refusal of",
    Kind.RETURN: "gets back",
    Kind.PUB_UNKNOWN: "gets no answer for",
    Kind.DELIVER: "is delivered",
    Kind.ACK_SENT: "acks",
    Kind.NACK_SENT: "gives back",
    Kind.CONN_OPEN: "connects",
    Kind.CONN_LOST: "loses its connection",
    Kind.CONFIRM_STRAY: "hears of what is not outstanding",
    Kind.DROP: "drops",
    Kind.PURGE: "purges",
    Kind.EXPIRE: "lets go of",
}


class Happening(NamedTuple):
    """See the module text."""

    #: Virtual time.
    at_us: int
    #: A node or a client; empty: the schedule, or everybody.
    lane: str
    #: "step", "fault", "record", "log", "warning", "error", "violation", "phase", or a `chaos.history.Kind`.
    kind: str
    text: str
    #: The message that it is about.
    key: AttemptKey | None = None
    #: Names of spans: see the module text.
    begins: str = ""
    ends: str = ""

    @property
    def line(self) -> str:
        """As the log of a replay has it."""
        return f"{self.at_us / 1e6:10.4f} {self.text}"


def of_event(event: Event, name: str) -> Happening | None:
    """An event of the client, or observer, of this name; ``None`` if it says nothing that was not told before."""
    verb = VERBS.get(event.kind)
    if verb is None:
        return None
    parts = [name, verb]
    key: AttemptKey | None = None
    if event.seq is not None:
        key = (event.queue_id, event.pub_id, event.seq, event.attempt)
        parts.append(message_text(key))
    if event.redelivered:
        parts.append("(redelivered)")
    if event.node_id is not None:
        parts.append(f"to node {event.node_id + 1}")
    if event.channel_id is not None:
        parts.append(f"on channel {event.channel_id}")
    if event.err:
        parts.append(f": {event.err}")
    return Happening(event.t_hi_us, name, event.kind, " ".join(parts), key)


def message_text(key: AttemptKey) -> str:
    """Which message that is, in few words: publisher, number and attempt."""
    queue, publisher, number, attempt = key
    again = f" (attempt {attempt})" if attempt != 1 else ""
    return f"{publisher}:{number}{again} of q{queue}"
