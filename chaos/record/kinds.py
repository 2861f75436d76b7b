"""What an event says. The numbers are those of the files: they stay as they are, and new ones get new numbers."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class Kind(IntEnum):
    """What happened. The fields named here are set in every row of the kind, others are zero.

    In rows of clients ``channel`` is the channel's number in the run, ``tag`` the number of the publish or delivery on
    it, ``node`` the node it is connected to, as far as it is known.
    """

    # --- publishers: message, channel, tag
    #: About to be written. ``number``: microseconds that it is later than it was intended.
    PUBLISH = 1
    #: basic.ack covers it; one row for each message, flag MULTIPLE if the frame had it.
    CONFIRM = 2
    #: basic.nack covers it: it was refused, definitely.
    REFUSE = 3
    #: basic.return: no queue took it. A CONFIRM follows.
    RETURN = 4
    #: The channel went before an answer: it may have been taken or not.
    UNRESOLVED = 5
    #: An answer for what is not outstanding. ``number``: see `Stray`. ``message`` if the tag was ever published.
    STRAY = 6
    #: ``message`` only: not confirmed in this attempt, and not attempted again. Attempts are used up, or the publisher
    #: ends.
    GIVEN_UP = 7

    # --- consumers: message, channel, tag
    #: basic.deliver, or basic.get-ok (flag GET). Flags REDELIVERED, CORRUPT, NO_ACK. Without a message it is foreign;
    #: with a queue it came from that one, which is not its own.
    DELIVER = 16
    #: An acknowledgement that covers it is about to be written.
    ACK = 17
    #: Something that was asked behind its ACK, REQUEUE or DISCARD on the same channel has been answered.
    ACK_PROVEN = 18
    #: A basic.nack, reject or recover that gives it back is about to be written.
    REQUEUE = 19
    #: A basic.nack or reject that drops it is about to be written: it goes to the dead letters, if there is a way.
    DISCARD = 20
    #: Its channel went, and nothing proves that it was settled: it was held, or an acknowledgement may have been lost.
    #: From the last sign of life of the channel to its end.
    RELEASE = 21
    #: Found in the queue at the end by looking, or taken out when nothing was wanted any more.
    LEFT = 22

    # --- clients: channel
    #: ``node``. ``number``: microseconds from the first try until it was open.
    CHANNEL_OPEN = 32
    #: Over. ``number``: see `Ending`. ``detail``: the reason in words. Interval as for RELEASE.
    CHANNEL_OVER = 33
    #: ``queue``, ``number``: the prefetch count, 0 for none.
    SUBSCRIBED = 34
    #: ``queue``. basic.cancel came from the broker.
    CANCELLED = 35
    #: ``queue``. We cancelled, and it was answered.
    UNSUBSCRIBED = 36
    #: ``node``, ``detail``: the reason.
    CONNECT_FAILED = 37
    BLOCKED = 38
    UNBLOCKED = 39

    # --- the broker's own word: node, queue, epoch
    #: message. The master has taken it. ``number``: its position.
    APPLIED = 64
    #: message. The master answers the publisher for it: it was taken.
    ANSWERED = 65
    #: message. The master hands it to a consumer. Flag REDELIVERED.
    HANDED_OUT = 66
    #: message. The master has taken its acknowledgement. Flag EVERYWHERE: so has everyone who may be promoted.
    SETTLED = 67
    #: message. It went back to its place.
    REQUEUED = 68
    #: message. Gone by the rules of the queue: its time, a limit, a purge, to the dead letters.
    EXPIRED = 69
    DROPPED = 70
    PURGED = 71
    DEAD_LETTERED = 72
    #: message. In the final content of the replica on ``node``, which is listed wholly (see LISTED).
    HELD = 73
    #: ``node``: the content of its replica has been listed wholly. Flag SYNCHRONISED if it counts as complete.
    LISTED = 74
    #: ``node`` begins to serve as master of ``epoch``. ``number``: what of its mirrors counted, see `Heir`.
    PROMOTED = 80
    #: ``node`` serves ``epoch`` no more.
    DEMOTED = 81
    MIRROR_JOINED = 82
    MIRROR_LEFT = 83
    SYNC_BEGIN = 84
    SYNC_END = 85
    SYNC_CANCELLED = 86

    # --- whoever conducts the run
    #: ``fault``, ``node`` if it is one node, ``detail``: {"type", "nodes", "links", ...} as JSON.
    FAULT_BEGIN = 96
    #: ``fault``
    FAULT_END = 97
    #: ``detail``: its name.
    PHASE = 98
    #: The recording process stood still in this interval: what it saw late then was not late.
    STALL = 99
    #: ``queue``, ``number``: messages ready and unacknowledged.
    DEPTH = 100
    #: ``queue`` was emptied by order, ``detail`` by which: purge, delete.
    EMPTIED = 101
    #: ``queue``, ``fault``: what was under way between the nodes may have been lost, although nobody was promoted:
    #: masters may have taken back what they had handed out, and acknowledgements may not have come.
    DISTURBED = 102
    #: ``number``: 1 if the run's consumers want deliveries from now on, 0 if they do not.
    CONSUMING = 103
    #: The last event of its process.
    PROCESS_END = 127


class Flag(IntFlag):
    """Bits of ``flags``."""

    REDELIVERED = 1
    MULTIPLE = 2
    #: The checksum of the body does not hold.
    CORRUPT = 4
    GET = 8
    MANDATORY = 16
    TRANSIENT = 32
    #: No acknowledgement is wanted: delivered is settled.
    NO_ACK = 64
    EVERYWHERE = 128
    SYNCHRONISED = 256


class Stray(IntEnum):
    """What is wrong with an answer to a publisher."""

    #: The same answer came before.
    TWICE = 1
    #: It was refused before, or is refused after it was confirmed.
    CONTRADICTION = 2
    #: Nothing was published under this tag.
    UNKNOWN = 3


class Ending(IntEnum):
    """How a channel ended."""

    BY_CLIENT = 1
    BY_BROKER = 2
    #: The connection broke or fell silent.
    LOST = 3


class Heir(IntEnum):
    """Who was promoted, as seen by who records it."""

    UNKNOWN = 0
    OLDEST_SYNCHRONISED = 1
    SYNCHRONISED = 2
    #: None was synchronised, and the policy lets it be.
    NONE_SYNCHRONISED = 3
    #: One was synchronised and running, and another was taken.
    WRONG = 4


#: Kinds by which a message leaves a queue by the queue's own rules.
REMOVALS = frozenset({Kind.EXPIRED, Kind.DROPPED, Kind.PURGED, Kind.DEAD_LETTERED})
