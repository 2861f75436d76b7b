"""Why nothing confirmed is lost, and what a mirror must know when it becomes the master.

**The argument.** Let *the record* be the mastership record, which changes only by commits of the metadata group.

1. A publish is confirmed only when the master has it and every holding mirror of the record has it: durably if it is
   persistent, applied if it is transient. A mirror holds back confirms if the record calls it complete or synchronised,
   if this master reported it as synchronised, or (for what was published since) once an attach was sent to it. Nothing
   at all is confirmed before the record shows the master in service, or while it calls a copy complete that is not
   among the mirrors. A master may go on in the same epoch when its copy was out of service for want of room: who was
   to lack nothing before still is, and whatever else it has sent before it knows no more. So every mirror of the record
   holds back confirms until it has answered an attach, and until then nothing is fetched for delivery (*Redelivery*).
2. A copy that the record calls complete therefore has everything that is confirmed, unsettled and persistent; one that
   it calls synchronised has the transient messages too. It was called so only after the master had seen it lack nothing
   (`MirrorProgress.is_filled`), and from the moment of that report on rule 1 held back every confirm until it had the
   message too. When its link breaks, its position in the stream stands still, and confirms with it, until a new attach
   has found and filled the difference.
3. A copy stops counting only by a commit of the master *of this epoch*, in service, that it goes on without it. A
   master that cannot get commits cannot shed a copy, so it confirms nothing the copy lacks. Nobody else's commit does
   it, so what the cluster wrongly believes of life and death cannot either (`cluster.metadata.mastership`).
4. An election is a commit with a higher epoch and names a copy the record calls complete. It has everything confirmed
   (2). From its first attach on, every mirror that hears the new epoch refuses the old master, and says so to whatever
   that one sends; the elected node itself was a holding mirror of the old master, and does the same. So the old master
   confirms nothing after the elected one has taken service, whatever it believes, except what that one had before.
5. Service by any other copy (``ha-promote-on-failure = always``, or an operator's word) may lose what it lacks; the
   metadata group counts it (`MastershipRecord.lossy_promotions`). That is the only way to lose.

**Differences after a promotion.** Synchronised mirrors may differ from the new master only in messages that are
unconfirmed (the old master's frames reached one mirror and not the other) or settled (likewise). So at the new
master's attach a mirror may drop what the new master has not: at or above the master's `next_seq_id` (a diverged tail),
and whole segments in which the master has nothing; smaller differences are answered to the master, which decides.
Unconfirmed messages that are dropped this way are sent again by their publisher's node. Nothing is dropped on the
word of anybody but the master of the highest epoch known.

**Redelivery.** The master never delivers at or above the horizon that a mirror relies on (`messages`, *Horizon*). A
promoted mirror flags everything below the horizon it heard in the last epoch in which anybody was in service; if it
heard nothing of that epoch it flags everything, which is always true of a flag that says "may have been delivered". So
it does with what it had before the attach, as long as its difference from that master is not settled: that may be of an
earlier one, which had delivered it far above the horizon that the later one began with. The
order in the stream makes one exception cheap: a message published under a horizon that was sent *before* it can be
delivered at once, because who has the message has the horizon. (A message that no mirror ever had and that its
publisher sends again to the new master is a new message and carries no flag.)

An orderly stop knows better. A master that ends says how far it has delivered (`messages`, *End*), and so does what it
leaves on its disk; a mirror that heard it leaves that on its own. Both name the epoch: it is worth something as long as
no later master was in service (`MastershipRecord.served_epoch`), whoever is started or elected in whatever order. A
mirror that leaves while its master goes on cannot know: if it comes back and nobody tells it more, it flags everything.

An orderly move knows as much as an orderly stop. A master that has applied a record which names another delivers
nothing any more in its epoch, so what it says then is final (`cluster.runtime.last_words`); before, it may still
deliver, and says nothing. The new master has promoted its copy by the horizon, and puts it right when it hears the end,
for which it waits before it takes service (`cluster.mirroring.succession`): it delivers nothing until then, and nobody
has heard a promise of it. If the end is not heard in time, there is the horizon to go by. A mirror takes the end of the
master that it heard last only if it lacked nothing: below the horizon and above the end, a copy that is not filled may
hold what only an earlier master had, and delivered.

**Duplicates.** A publisher's node sends again what was not confirmed. The new master takes a publish for a duplicate if
its counter is not above the high-water counter of its origin. That is right only if everything below the counter is
accounted for, here or settled. A mirror that lacks message 5 and has message 11 of an origin would swallow the second
sending of 5 and, as 5 is not live, confirm it: a loss. So a mirror keeps its *trusted* counters apart from those
of its storage: nothing from an attach until the difference is filled, then ``Attach.origins`` and what was streamed
since. Of a queue that refuses what comes while it is full, or has done so under an earlier policy, it trusts none: an
earlier master may have refused 5 and accepted 11. Where storage claims more than it trusts, the promoted queue decides
by content (`UntrustedOrigins`): what is live, or was when the queue was promoted, is a duplicate; anything else is
taken as new. What is sent again was never confirmed, so it is among the last that came: only the end of the queue is
looked at, in one turn. The price is that a message can come twice, with the flag, that was settled before the promotion
and never confirmed, or that lies further back.

**Order.** What a mirror holds behind a gap, of channels that send again what is missing, it gives up when it is
promoted: `cluster.mirroring.gap`.

**What is here twice.** A mirror whose difference from its master is not settled may hold what only an earlier master
had, and the same message again at the position that a later one gave it when it was sent again. It may until a
difference is settled, however often a master attaches and its node restarts before that. So whoever becomes master
looks: a mirror that has taken something known by its counter since it was complete, or whose copy a crash has left; and
a copy that is opened as the master's, unless it was closed by somebody who knew. The first of the two stays. (A mirror
keeps both: the second is its master's, and may be confirmed.) Only the end of the queue is looked at, too, in bulk, and
entry by entry only if something is there twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cluster.metadata.mastership import last_served_epoch
from cluster.metadata.records import MastershipRecord
from node.ids import Epoch, MsgId, NodeName, OriginId, SeqId, split_msg_id
from node.message import Message
from node.queues.replica import DIGEST_SEGMENT_ENTRIES, Holding, ReplicaQueue, SeqRange


def possibly_delivered_below(
    local: ReplicaQueue, heard_epoch: Epoch | None, heard_horizon: SeqId, served_epoch: Epoch
) -> SeqId:
    """First position that no earlier master can have delivered, as far as a replica about to be promoted knows.

    ``served_epoch``: nobody was in service after it.
    """
    if heard_epoch is None or heard_epoch < served_epoch:
        return local.next_seq_id
    return heard_horizon


def kept_end(local: ReplicaQueue) -> tuple[Epoch, SeqId] | None:
    """What a copy just opened says of masters that had ended when it was closed; ask before anything is changed."""
    return (local.delivered_epoch, local.delivered_below) if local.delivered_epoch else None


def knows_deliveries(local: ReplicaQueue, node: NodeName, record: MastershipRecord) -> bool:
    """True if a copy just opened, as the master's, flags everything that earlier masters have delivered."""
    if local.delivered_epoch:
        return local.delivered_epoch >= last_served_epoch(record)
    # As older releases left it: everything is flagged in a mirror's copy, and whoever serves without it ends its part.
    return node in record.complete


def undelivered_start(local: ReplicaQueue, delivered_below: SeqId) -> SeqId:
    """First position ``u >= delivered_below`` such that every position from ``u`` to the tail is live.

    The master counts undelivered messages by subtracting positions; where the tail has holes (a lossy promotion)
    it must treat everything as delivered instead. Memory only, so that a promotion reads nothing from disk.
    """
    end = local.next_seq_id
    if delivered_below >= end:
        return delivered_below
    first_live = end
    live = 0
    for segment, count in local.live_counts():
        first = segment * DIGEST_SEGMENT_ENTRIES
        if first + DIGEST_SEGMENT_ENTRIES <= delivered_below:
            continue
        if live and first >= delivered_below:
            live += count
            continue
        above = [seq_id for seq_id in local.live_positions(segment) if seq_id >= delivered_below]
        if above:
            first_live = min(first_live, above[0])
            live += len(above)
    return first_live if live == end - first_live else end


#: Positions at the end of a queue among which a message that is sent again is looked for: a piece of work of 45 ms.
SCANNED_POSITIONS = 16_384
#: Messages delivered since the promotion that are remembered. Publishers return within a second, or not at all.
TAKEN_MAX = 65_536


def _last_segments(local: ReplicaQueue) -> list[int]:
    """Those at the end of the queue in which something is live."""
    segments = 1 + (SCANNED_POSITIONS - 1) // DIGEST_SEGMENT_ENTRIES
    return [segment for segment, _ in local.live_counts()[-segments:]]


def last_holdings(local: ReplicaQueue) -> Iterator[Holding]:
    """What is live at the end of the queue."""
    for segment in _last_segments(local):
        yield from local.holdings(segment)


def held_again(local: ReplicaQueue) -> list[SeqRange]:
    """Positions at the end of the queue of messages that are at an earlier one as well."""
    msg_ids = [msg_id for segment in _last_segments(local) for msg_id in local.msg_ids(segment)]
    if len(set(msg_ids)) == len(msg_ids):
        return []
    seen: set[MsgId] = set()
    again: list[SeqRange] = []
    for seq_id, msg_id in last_holdings(local):
        if msg_id in seen:
            again.append(SeqRange(seq_id, SeqId(seq_id + 1)))
        seen.add(msg_id)
    return again


class UntrustedOrigins:
    """Origins whose high-water counter in the local storage is higher than this replica can vouch for."""

    def __init__(self, local: ReplicaQueue, trusted: Mapping[OriginId, int]) -> None:
        self._local = local
        stored = local.origins()
        #: What storage claimed when the replica was promoted.
        self._claimed = {origin: high for origin, high in stored.items() if high > trusted.get(origin, 0)}
        #: What it can vouch for; grows as its publishers send.
        self._trusted = {origin: trusted.get(origin, 0) for origin in self._claimed}
        #: Ids of live messages between the two, built when first needed (usually never: origins rarely come back).
        self._live: set[MsgId] | None = None
        #: Ids between the two of what was delivered since the promotion, the first so many: it may be settled.
        self._taken: set[MsgId] = set()

    def __bool__(self) -> bool:
        return bool(self._trusted)

    def is_duplicate(self, msg_id: MsgId) -> bool:
        """As `BackingQueue.is_duplicate`."""
        if not self._is_between(msg_id):
            return self._local.is_duplicate(msg_id)
        if msg_id in self._taken:
            return True
        if self._live is None:
            self._live = self._collect_live()
        return msg_id in self._live

    def delivered(self, messages: Iterable[Message]) -> None:
        """These are about to be delivered. They were here when the replica was promoted, whatever becomes of them."""
        if len(self._taken) >= TAKEN_MAX:
            return
        for message in messages:
            if self._is_between(message.msg_id):
                self._taken.add(message.msg_id)

    def published(self, messages: Iterable[Message]) -> None:
        """These were accepted: ids of one origin arrive in growing order, so everything below is accounted for."""
        for message in messages:
            origin, counter = split_msg_id(message.msg_id)
            trusted = self._trusted.get(origin)
            if trusted is None or counter <= trusted:
                continue
            if counter >= self._claimed[origin]:
                del self._trusted[origin], self._claimed[origin]
            else:
                self._trusted[origin] = counter
        if not self._trusted:
            self._live = None
            self._taken.clear()

    def vouched(self, origins: Mapping[OriginId, int]) -> Mapping[OriginId, int]:
        """High-water counters fit for a mirror."""
        return {**origins, **self._trusted} if self._trusted else origins

    def _collect_live(self) -> set[MsgId]:
        return {msg_id for _, msg_id in last_holdings(self._local) if self._is_between(msg_id)}

    def _is_between(self, msg_id: MsgId) -> bool:
        """Claimed, and not vouched for."""
        origin, counter = split_msg_id(msg_id)
        trusted = self._trusted.get(origin)
        return trusted is not None and trusted < counter <= self._claimed[origin]
