"""Rare states that a campaign must reach: what is never reached is not tested.

Antithesis calls them *sometimes* assertions: beside what must always hold there is what must happen now and then, or
the runs prove less than they seem to. Each has a name that never changes and stands in `CATALOGUE`; noting one that
does not is a mistake of the simulator. A campaign adds up how many of its seeds reached each and fails if
one was never reached, provided that it had enough seeds to expect it (`ENOUGH_SEEDS`).

They are seen from outside: in what the cluster commits (`chaos.sim.record_watch`), in what clients hear, in lines of
the nodes' logs (`LOG_LINES`), and in calls that are listened to (`chaos.sim.taps`).
"""

from __future__ import annotations

from collections.abc import Mapping

#: With this many seeds or more a campaign fails if it has not reached everything.
ENOUGH_SEEDS = 200

#: Name -> why it matters.
CATALOGUE: Mapping[str, str] = {
    # What the cluster decides.
    "a mirror was promoted": "failover at all",
    "a promotion lost something": "lossy service, which the record counts",
    "an incomplete copy was elected": "`always` against nobody complete",
    "a queue went down": "the wait for a complete copy",
    "a queue came back": "its end",
    "a mirror was synchronised": "filled to the end and said so",
    "a node was forgotten": "its disk is lost, and it joins again as a new one",
    "a new node joined": "it learned, then voted, then counted as up",
    "an empty queue was deleted on that condition": "if-empty: nothing confirmed may be lost",
    "a mirror left the record": "dropped or discarded beside a living master",
    "the protocol of the cluster was raised": "all nodes run the new release",
    # What operators do.
    "a node was upgraded": "a stop, and a start with the new release",
    "an upgrade was taken back": "a start with the release before",
    # What clients hear.
    "a message was published again": "a confirm that was never heard",
    "a message was returned": "mandatory, and no queue",
    "a publish was refused": "reject-publish at the limit",
    "a client was told of an alarm": "publishers stop",
    "a client was told that an alarm is over": "and go on",
    "a consumer was cancelled": "by its client",
    "the broker cancelled a consumer": "its queue was deleted",
    "a consumer was refused beside an exclusive one": "basic.consume, exclusive",
    "a channel recovered its deliveries": "basic.recover",
    "a transaction was committed": "tx",
    "a transaction was rolled back": "tx",
    "an exclusive queue was used": "and must go with its connection",
    "an auto-delete queue was used": "and must go with its consumer",
    "an auto-delete queue was kept": "by a consumer that lives, whatever becomes of masters and links",
    "a consumer beside a keeper was cancelled": "which is no reason for the queue to go",
    "a message came again": "redelivery, flagged",
    "a message was got without acknowledgement": "basic.get, gone as it is sent",
    "everything that was held was given back": "basic.nack, multiple and requeue",
    "an acknowledgement was committed": "tx",
    "an acknowledgement was rolled back": "tx: the message must come again",
    "a conditional deletion was refused": "if-empty or if-unused, and it was not",
    "a message was rejected for good": "basic.reject: settled, as by an acknowledgement",
    "a message was rejected and came back": "basic.reject, requeue",
    "some were acknowledged together": "basic.ack, multiple",
    "some were given back together": "basic.nack, multiple and requeue, with a tag",
    "a message was got beside consumers": "basic.get on a channel that consumes",
    "a channel was closed and opened again": "with the same number, on the same connection",
    "a client was refused to stop the flow of a channel": "channel.flow: what is not done must not be promised",
    "a topic exchange routed": "by a pattern",
    "a headers exchange routed": "by what a message says of itself",
    "an alternate exchange took what had no route": "named by an argument",
    "a policy named an alternate exchange": "and a node that knows the exchange for long learns it",
    "a binding between exchanges went": "and nothing is routed by it any more",
    "a binding of a queue went": "the same",
    "a used queue was not deleted as unused": "if-unused, beside a consumer",
    "an unused queue was deleted on that condition": "if-unused, after the last consumer was cancelled",
    "an acknowledgement was proven": "what the judge of resurrections needs",
    # What nodes say in their logs.
    "a node paused without a majority": "pause_minority",
    "a node served again with a majority": "its end",
    "a master was fenced": "two masters met",
    "a copy went out of service": "a disk failed in the hands of a queue",
    "an alarm was raised": "memory or disk",
    "a node noticed that it stood still": "pause",
    "a living node was declared down": "and announced itself again",
    "a torn record was found": "recovery by scan",
    # What was listened to.
    "a repetition was recognised": "a message sent again after a failover, and known",
    "a copy was filled by its difference": "rejoin by content",
    "a copy came back with nothing missing": "rejoin by equal digests",
    "a long copy was described in pieces": "while its master goes on",
    "a synchronisation was cancelled midway": "what has arrived is kept",
    "a limit dropped the oldest": "drop-head",
    "a purge took something away": "settled by range, on mirrors too",
    "a publisher was blocked by credit": "flow control",
    "publishes waited for a link": "and whatever else was said in their session behind them",
    "deliveries waited for a link": "that was full of others",
    "garbage was reclaimed during a fault": "compaction while something is wrong",
    "a node ended in the midst of an operation": "half-done writes",
    "a node lost what it had not synced": "power",
    "a master ended as a client heard of it": "between a confirm, or a delivery, and whatever follows",
    "the log was cut off behind a snapshot": "Raft compaction",
    "a snapshot was installed": "a node that was too far behind for the log",
    "a client gave up a silent connection": "heartbeats",
}

#: What a log line begins with, before anything is filled in -> what it says.
LOG_LINES: Mapping[str, str] = {
    "this node pauses (pause_minority)": "a node paused without a majority",
    "this node has what the cluster has decided": "a node served again with a majority",
    "%s: fenced by epoch": "a master was fenced",
    "%s: this node's copy is out of service": "a copy went out of service",
    "*** %s ALARM raised": "an alarm was raised",
    "this node stood still": "a node noticed that it stood still",
    "the cluster declared this node down, but it is alive": "a living node was declared down",
}


def seen_in_log(message: str) -> str | None:
    """What an unfilled line of a node's log says that is in the catalogue."""
    return next((name for beginning, name in LOG_LINES.items() if message.startswith(beginning)), None)


class Sightings:
    """What one run has reached, in the order in which it did."""

    def __init__(self) -> None:
        self.seen: dict[str, None] = {}

    def note(self, name: str) -> None:
        """This was reached, by a name of the catalogue."""
        if name not in self.seen:
            assert name in CATALOGUE, f"{name!r} is not in the catalogue"
            self.seen[name] = None
