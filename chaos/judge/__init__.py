"""What a record shows: the definitions, and nothing that runs on a cluster.

Two programs follow these definitions, written apart: `chaos.judge.reference`, plain and slow, and the Spark job. They
must agree on every record, finding by finding. Only this text is common to them.

**Terms.** A *message* here is one attempt to publish it: its key. It is *published* if it has a `PUBLISH`, *confirmed*
if it has a `CONFIRM` and no `RETURN` (a broker confirms what it returns, too), *refused* (`REFUSE`) or *returned*
(`RETURN`) likewise. A *delivery* is a `DELIVER` of it, known by its channel and tag; `ACK`, `ACK_PROVEN`, `REQUEUE`,
`DISCARD` and `RELEASE` name the delivery by the same two, recorded or not. A delivery is *settled* by `ACK`, `DISCARD`,
or being made with NO_ACK; *proven* settled if `ACK_PROVEN` follows, with NO_ACK, or if the broker says `SETTLED` of the
message. It is *given back* by `REQUEUE` or `RELEASE`. A message is *removed* if the broker says so (`EXPIRED`,
`DROPPED`, `PURGED`, `DEAD_LETTERED`), and *may have been removed* if its queue removes by itself
(`QueueFacts.may_remove`) or was `EMPTIED` by order at a time that is not wholly before its `PUBLISH`.

"Within reach of" a moment: times are compared as intervals; x is *before* y if ``x.t_hi_us < y.t_lo_us``, and *may be
before* y if ``x.t_lo_us <= y.t_hi_us``. The moments at which two clients read two deliveries tell in which order they
were sent only up to ``slack_us``: the bytes lie in buffers. Without a slack, nothing is concluded from them.

**Absences** are concluded only from a complete record: every process of the roster has recorded densely and has ended.
(Of PHANTOM only those matter that record for the message's publisher.) LOST, VANISHED and REPLICA_LOST only of a queue
of which it is known what was left in it (`QueueFacts.is_known`).

- LOST: confirmed, never delivered, not left (`LEFT`), neither removed nor may have been removed. By its place among
  what was delivered of the same publisher in the same queue: *prefix* before the first, *postfix* behind the last (or
  nothing of it was), *middle*.
- VANISHED: confirmed, delivered, never settled, not left, neither removed nor may have been removed.
- PHANTOM: delivered and never published.
- DOUBLE_OWNER and SPONTANEOUS, see below.
- REPLICA_LOST: left, and not `HELD` by a node that has `LISTED` its content and counts as synchronised; one for each
  such `LISTED`.

**Presences** hold whatever is missing.

- FOREIGN: a delivery without a message. CORRUPT: one whose checksum does not hold. MISROUTED: one from another queue.
- REFUSED_DELIVERED: refused, not confirmed, and delivered. RETURNED_DELIVERED: returned and delivered.
- CONFIRM_TWICE, CONFIRM_CONTRADICTION, CONFIRM_UNKNOWN: `STRAY` rows, by their number.
- FALSE_CONFIRM: `ANSWERED` by the master of an epoch when a later epoch of that queue had been `PROMOTED` before.
- STUCK: left in a queue that consumers with credit had drained (`QueueFacts.is_drained`).
- UNFLAGGED: of a message's deliveries at most one may be without REDELIVERED, in whatever order they were read; each
  more is one.
- The *repeats* of a message are its other deliveries with REDELIVERED, all of them if one is without, else all but the
  first by ``(t_lo_us, process, event)``. Each repeat needs a *cause*: a `REQUEUE` or `RELEASE` of another delivery of
  the message, or a `PROMOTED` of its queue that is not before all other deliveries, that may be before the repeat. A
  cause explains one repeat, the earliest first. What none of these explains a `DISTURBED` of its queue does, on the
  terms of a `PROMOTED`, and as often as may be. Of a repeat, the first of these that holds:

  - RESURRECTED: it is proven that another delivery was settled before it, and no `PROMOTED` of the queue lies within
    reach between that delivery and the repeat: who follows may not have heard of an acknowledgement, and means nothing
    by the tags of who led before. Nor a `DISTURBED`: the line on which the acknowledgement was may have broken, and
    been whole again for the question that was answered. Both the settling and its proof, `SETTLED` too, are before the
    repeat. Or the broker said `SETTLED` with EVERYWHERE before it. Or the message was removed more than the slack
    before it.
  - legal, if it has a cause: AFTER_ACK if another delivery was settled before it, else CAUSED.
  - DOUBLE_OWNER: another delivery was made before it and is still held: it has no row that ends it, or none that may be
    before the repeat.
  - SPONTANEOUS.

  A first delivery of a removed message, more than the slack behind its removal, is RESURRECTED, too.
- MISORDERED, in one consumer's channel: of two messages of one publisher's channel to one queue, delivered in one
  consumer's channel, both without REDELIVERED (the first such delivery of each counts, here and below), the one
  published first comes second. One for each message that comes behind some that was published later; the *leader* is
  the latest published of those. Excused if a `PROMOTED` of the queue lies within reach between the leader's delivery
  and its own.
- OVERTAKEN, wherever they are delivered: such a message, if others that were published later were delivered before it
  by more than the slack. The leader is the latest published of those; excused likewise. Not counted if it is
  MISORDERED, excused or not.
- REQUEUE_OVERTAKEN: a `REQUEUE` whose arrival is proven; then, more than the slack later, a message that was published
  later in the same publisher's channel to the same queue is delivered, without REDELIVERED; then, more than the slack
  later, the first delivery of the requeued one behind its proof. No `PROMOTED` of the queue between the `REQUEUE` and
  that delivery. One for each such `REQUEUE`.

**Counted, and legal**: RECOVERED (unresolved, not confirmed, delivered), SETTLED_UNPROVEN (settled, never proven, not
left), COPIES (an attempt that was delivered when an earlier one of the same was as well), FLAGGED_FIRST (all its
deliveries have REDELIVERED), REMOVED_UNPROVEN (confirmed, never delivered, not left, not removed, and may
have been removed).

**The row** that a finding names: the delivery that is told of; the answer (`STRAY`, `ANSWERED`); the `LISTED` of the
replica that lacks something; for STUCK the first `LEFT`; for what is said of a message that was delivered otherwise
(PHANTOM, REFUSED_DELIVERED, RETURNED_DELIVERED, RECOVERED, FLAGGED_FIRST) its first delivery; for REQUEUE_OVERTAKEN the
delivery that came too late; else its first `PUBLISH`, or none. First means by ``(t_lo_us, process, event)``.
"""
