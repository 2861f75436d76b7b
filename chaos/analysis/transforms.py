"""The checks: each one a function from data frames to a data frame.

Definitions (A attempted, C confirmed, D delivered, L left in the queue, X removed legally; identity of a message is
(publisher, seq, attempt)):

* lost: in C, not in D, L or X;
* vanished: in C, delivered, but never acknowledged, and gone all the same;
* phantom: delivered, but never attempted; or altered on the way;
* recovered: outcome unknown to the publisher, and it did arrive;
* duplicate: delivered again. A broker may set ``redelivered`` too often but never too rarely: of all deliveries of one
  attempt at most one may be unflagged. This holds whatever the order in which the deliveries were read, so a late
  look into a dead connection's buffer is not mistaken for a violation.
* inversion: among first deliveries (unflagged) of one publisher's channel on one consumer's channel, one that was
  published before another comes after it. Excused if a promotion lies between the two deliveries.

No user-defined functions, nothing collected here: Spark runs the same plans on one laptop and on a cluster.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from chaos.analysis.schemas import ATTEMPT_KEY, MESSAGE_KEY

_REMOVALS = ("EXPIRE", "DROP", "PURGE", "DEADLETTER")
_ATTEMPT_KINDS = (
    "PUB_INVOKE", "CONFIRM", "NACK", "RETURN", "PUB_UNKNOWN", "DELIVER", "ACK_SENT", "BROWSE", *_REMOVALS,
)  # fmt: skip
#: End of a window that nothing closes, microseconds.
_FOREVER_US = 2**62


def _is(*kinds: str) -> Column:
    return F.col("kind").isin(*kinds)


def _count(condition: Column) -> Column:
    return F.count_if(condition)


def _first_us(condition: Column) -> Column:
    return F.min(F.when(condition, F.col("t_hi_us")))


# --- per message ---


def attempts(events: DataFrame) -> DataFrame:
    """One row per attempt: how often each thing happened to it, and when first. Everything below reads this."""
    is_unflagged = _is("DELIVER") & ~F.col("redelivered")
    return (
        events.where(_is(*_ATTEMPT_KINDS) & F.col("seq").isNotNull())
        .groupBy(*ATTEMPT_KEY)
        .agg(
            _count(_is("PUB_INVOKE")).alias("n_invoke"),
            _count(_is("CONFIRM")).alias("n_confirm"),
            _count(_is("NACK")).alias("n_nack"),
            _count(_is("RETURN")).alias("n_return"),
            _count(_is("PUB_UNKNOWN")).alias("n_unknown"),
            _count(_is("DELIVER")).alias("n_deliver"),
            _count(is_unflagged).alias("n_unflagged"),
            _count(_is("DELIVER") & ~F.col("crc_ok")).alias("n_corrupt"),
            _count(_is("ACK_SENT")).alias("n_ack"),
            _count(_is("BROWSE")).alias("n_left"),
            _count(_is(*_REMOVALS)).alias("n_removed"),
            _first_us(_is("PUB_INVOKE")).alias("invoke_us"),
            _first_us(_is("CONFIRM")).alias("confirm_us"),
            _first_us(_is("DELIVER")).alias("deliver_us"),
            _first_us(_is("ACK_SENT")).alias("ack_us"),
            F.max(F.when(_is("DELIVER"), F.col("t_lo_us"))).alias("last_deliver_us"),
        )
    )


def confirmed(rows: DataFrame) -> DataFrame:
    """Attempts that the broker confirmed."""
    return rows.where(F.col("n_confirm") > 0)


def delivered(rows: DataFrame) -> DataFrame:
    """Attempts delivered at least once."""
    return rows.where(F.col("n_deliver") > 0)


def lost(rows: DataFrame) -> DataFrame:
    """Confirmed, and nowhere to be found."""
    is_accounted_for = (F.col("n_deliver") > 0) | (F.col("n_left") > 0) | (F.col("n_removed") > 0)
    return confirmed(rows).where(~is_accounted_for)


def vanished(rows: DataFrame) -> DataFrame:
    """Confirmed and delivered, never acknowledged, and yet neither redelivered for good nor left."""
    is_settled = (F.col("n_ack") > 0) | (F.col("n_left") > 0) | (F.col("n_removed") > 0)
    return delivered(confirmed(rows)).where(~is_settled)


def phantom(rows: DataFrame) -> DataFrame:
    """Delivered although nobody published it, or with an altered body."""
    return delivered(rows).where((F.col("n_invoke") == 0) | (F.col("n_corrupt") > 0))


def recovered(rows: DataFrame) -> DataFrame:
    """Unknown to the publisher, delivered all the same."""
    return delivered(rows).where((F.col("n_confirm") == 0) & (F.col("n_unknown") > 0))


def refused_but_delivered(rows: DataFrame) -> DataFrame:
    """Nacked or returned, delivered all the same: the publisher was told no."""
    return delivered(rows).where((F.col("n_confirm") == 0) & ((F.col("n_nack") > 0) | (F.col("n_return") > 0)))


def duplicates(rows: DataFrame) -> DataFrame:
    """Attempts delivered more than once: how many of the further deliveries were flagged, and how many not."""
    unflagged = F.greatest(F.col("n_unflagged") - 1, F.lit(0))
    return rows.where(F.col("n_deliver") > 1).select(
        *ATTEMPT_KEY,
        unflagged.alias("unflagged"),
        (F.col("n_deliver") - 1 - unflagged).alias("flagged"),
        (F.col("ack_us").isNotNull() & (F.col("last_deliver_us") > F.col("ack_us"))).alias("is_after_ack"),
    )


def unflagged_duplicates(rows: DataFrame) -> DataFrame:
    """Duplicates that the consumer had no way to recognise."""
    return duplicates(rows).where(F.col("unflagged") > 0)


def confirm_violations(rows: DataFrame) -> DataFrame:
    """Answers that the protocol forbids: confirmed twice, both ack and nack, or never published before."""
    is_twice = (F.col("n_confirm") + F.col("n_nack")) > 1
    is_unpublished = (F.col("n_confirm") > 0) & ((F.col("n_invoke") == 0) | (F.col("confirm_us") < F.col("invoke_us")))
    return rows.where(is_twice | is_unpublished)


def counts(rows: DataFrame) -> DataFrame:
    """One row with the size of every set above."""
    unflagged = F.greatest(F.col("n_unflagged") - 1, F.lit(0))
    extra = F.greatest(F.col("n_deliver") - 1, F.lit(0))
    is_accounted_for = (F.col("n_deliver") > 0) | (F.col("n_left") > 0) | (F.col("n_removed") > 0)
    is_confirmed, is_delivered = F.col("n_confirm") > 0, F.col("n_deliver") > 0
    is_settled = (F.col("n_ack") > 0) | (F.col("n_left") > 0) | (F.col("n_removed") > 0)
    latency_us = F.when(is_confirmed, F.col("confirm_us") - F.col("invoke_us"))
    total = [
        F.sum("n_invoke").alias("attempted"),
        F.sum("n_deliver").alias("deliveries"),
        F.sum("n_unknown").alias("unknown"),
        F.sum("n_nack").alias("nacked"),
        F.sum("n_return").alias("returned"),
        F.sum(unflagged).alias("duplicates_unflagged"),
        F.sum(extra - unflagged).alias("duplicates_flagged"),
    ]
    sets = [
        _count(is_confirmed).alias("confirmed"),
        _count(is_delivered).alias("delivered"),
        _count(is_confirmed & ~is_accounted_for).alias("lost"),
        _count(is_confirmed & is_delivered & ~is_settled).alias("vanished"),
        _count(is_delivered & ((F.col("n_invoke") == 0) | (F.col("n_corrupt") > 0))).alias("phantom"),
        _count(is_delivered & ~is_confirmed & (F.col("n_unknown") > 0)).alias("recovered"),
        _count(is_delivered & ~is_confirmed & ((F.col("n_nack") > 0) | (F.col("n_return") > 0))).alias(
            "refused_but_delivered"
        ),
        _count((F.col("n_deliver") > 1) & (F.col("last_deliver_us") > F.col("ack_us"))).alias("duplicates_after_ack"),
        _count(is_delivered & (F.col("n_unflagged") == 0)).alias("flagged_without_earlier"),
    ]
    latency = F.percentile_approx(latency_us, [0.5, 0.99, 0.999, 1.0], 10_000).alias("confirm_latency_us")
    return rows.agg(*total, *sets, latency).na.fill(0)


def publisher_copies(rows: DataFrame) -> DataFrame:
    """Messages of which several attempts were delivered: copies that the publisher's own retries made. Legal."""
    copies = delivered(rows).groupBy(*MESSAGE_KEY).agg(F.count("*").alias("copies"))
    return copies.where(F.col("copies") > 1)


def unidentified(events: DataFrame) -> DataFrame:
    """Deliveries whose body names no message of this run: foreign or damaged."""
    return events.where(_is("DELIVER") & F.col("seq").isNull())


# --- order ---


def inversions(events: DataFrame) -> DataFrame:
    """First deliveries that come after one that was published later; ``is_excused`` if a promotion lies between."""
    published = events.where(_is("PUB_INVOKE")).select(
        *ATTEMPT_KEY, F.col("channel_id").alias("pub_channel_id"), F.col("ev_seq").alias("pub_position")
    )
    first = events.where(_is("DELIVER") & ~F.col("redelivered") & F.col("seq").isNotNull()).select(
        *ATTEMPT_KEY, "channel_id", "consumer_id", "ev_seq", "t_lo_us", "t_hi_us"
    )
    stream = Window.partitionBy("queue_id", "pub_id", "pub_channel_id", "channel_id").orderBy("ev_seq")
    earlier = stream.rowsBetween(Window.unboundedPreceding, -1)
    leader = F.max(F.struct("pub_position", "seq", "t_lo_us")).over(earlier)
    ordered = first.join(published, on=ATTEMPT_KEY, how="inner").withColumn("leader", leader)
    inverted = ordered.where(F.col("leader.pub_position") > F.col("pub_position")).select(
        *ATTEMPT_KEY,
        "channel_id",
        "consumer_id",
        F.col("leader.seq").alias("after_seq"),
        F.col("leader.t_lo_us").alias("after_us"),
        F.col("t_hi_us").alias("deliver_us"),
    )
    promoted = events.where(_is("PROMOTE")).select(
        F.col("queue_id").alias("promoted_queue_id"), F.col("t_lo_us").alias("p_lo"), F.col("t_hi_us").alias("p_hi")
    )
    is_between = (
        (F.col("promoted_queue_id") == F.col("queue_id"))
        & (F.col("p_hi") >= F.col("after_us"))
        & (F.col("p_lo") <= F.col("deliver_us"))
    )
    excused = inverted.join(F.broadcast(promoted), on=is_between, how="left_semi").withColumn("is_excused", F.lit(True))
    blamed = inverted.join(F.broadcast(promoted), on=is_between, how="left_anti").withColumn("is_excused", F.lit(False))
    return excused.unionByName(blamed)


# --- availability ---


def messages(rows: DataFrame) -> DataFrame:
    """One row per message over all its attempts: first publish, first confirm, first delivery."""
    return rows.groupBy(*MESSAGE_KEY).agg(
        F.min("invoke_us").alias("invoke_us"),
        F.min("confirm_us").alias("confirm_us"),
        F.min("deliver_us").alias("deliver_us"),
    )


def gaps(rows: DataFrame, waiting_from: str, ended_at: str) -> DataFrame:
    """How long nothing came although something was waited for, one row per event of ``ended_at``.

    Gaps and islands: the gap before an event begins at the event before it, or when the oldest thing still waiting
    then began to wait, whichever is later. So a publisher that pauses makes no gap, and one whose messages hang does.
    """
    by_time = Window.partitionBy("queue_id").orderBy("end_us")
    # "From here to the end", read backwards: Spark keeps a running minimum for a frame that grows, but starts anew at
    # every row for one that shrinks.
    backwards = Window.partitionBy("queue_id").orderBy(F.desc("end_us"))
    from_here = backwards.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    ended = rows.where(F.col(ended_at).isNotNull() & F.col(waiting_from).isNotNull()).select(
        "queue_id", F.col(waiting_from).alias("begin_us"), F.col(ended_at).alias("end_us")
    )
    waiting_since = F.min("begin_us").over(from_here)
    gap_begin = F.greatest(F.lag("end_us").over(by_time), waiting_since)
    return ended.select(
        "queue_id",
        gap_begin.alias("gap_begin_us"),
        F.col("end_us").alias("gap_end_us"),
        F.greatest(F.col("end_us") - gap_begin, F.lit(0)).alias("gap_us"),
    )


def failovers(events: DataFrame) -> DataFrame:
    """One row per promotion with the fault before it; its window ends where the next promotion's fault begins."""
    promoted = events.where(_is("PROMOTE")).select(
        "queue_id",
        "epoch",
        F.col("t_lo_us").alias("promote_lo_us"),
        F.col("t_hi_us").alias("promote_us"),
        (F.col("result") == 1).alias("is_oldest_synchronised"),
        F.get_json_object("detail", "$.old_master").alias("old_master"),
        F.get_json_object("detail", "$.new_master").alias("new_master"),
        F.get_json_object("detail", "$.mirrors_before").alias("mirrors_before"),
        F.get_json_object("detail", "$.synchronised_before").alias("synchronised_before"),
    )
    hurt = events.where(_is("FAULT_BEGIN")).select(
        F.col("fault_id").alias("cause_id"), F.col("t_lo_us").alias("cause_us"), F.col("detail").alias("cause")
    )
    nearest = Window.partitionBy("queue_id", "epoch").orderBy(F.desc("cause_us"))
    with_cause = (
        promoted.join(F.broadcast(hurt), on=F.col("cause_us") <= F.col("promote_us"), how="left")
        .withColumn("nearness", F.row_number().over(nearest))
        .where(F.col("nearness") == 1)
        .drop("nearness")
        .withColumn("fault_us", F.coalesce("cause_us", "promote_lo_us"))
    )
    by_epoch = Window.partitionBy("queue_id").orderBy("epoch")
    return with_cause.withColumn(
        "window_end_us", F.coalesce(F.lead("fault_us").over(by_epoch), F.lit(_FOREVER_US))
    ).withColumn("previous_promote_us", F.coalesce(F.lag("promote_us").over(by_epoch), F.lit(0)))


def _in_window(failover_rows: DataFrame, rows: DataFrame, at: str, value: Column, name: str) -> DataFrame:
    """``value`` aggregated over those ``rows`` that fall into each failover's window."""
    keyed = failover_rows.select("queue_id", "epoch", "fault_us", "window_end_us")
    is_inside = (
        (F.col("r.queue_id") == F.col("f.queue_id"))
        & (F.col(f"r.{at}") >= F.col("f.fault_us"))
        & (F.col(f"r.{at}") < F.col("f.window_end_us"))
    )
    joined = rows.alias("r").join(F.broadcast(keyed.alias("f")), on=is_inside, how="inner")
    return joined.groupBy("f.queue_id", "f.epoch").agg(value.alias(name))


def ledger(events: DataFrame, attempt_rows: DataFrame, publish_gaps: DataFrame, consume_gaps: DataFrame) -> DataFrame:
    """The price of each failover: one row per promotion, times in microseconds.

    ``detect_us`` fault to promotion seen; ``rto_publish_us`` and ``rto_consume_us`` longest time without a confirm or
    a delivery while one was due; ``rpo`` messages lost at this boundary; ``redeliveries`` deliveries flagged after it;
    ``resync_us`` promotion to the last mirror synchronised again.
    """
    failover_rows = failovers(events)
    lost_rows = lost(attempt_rows).select("queue_id", "confirm_us")
    is_boundary = (
        (F.col("l.queue_id") == F.col("f.queue_id"))
        & (F.col("l.confirm_us") <= F.col("f.promote_us"))
        & (F.col("l.confirm_us") > F.col("f.previous_promote_us"))
    )
    rpo = (
        lost_rows.alias("l")
        .join(F.broadcast(failover_rows.alias("f")), on=is_boundary, how="inner")
        .groupBy("f.queue_id", "f.epoch")
        .agg(F.count("*").alias("rpo"))
    )
    flagged = events.where(_is("DELIVER") & F.col("redelivered"))
    synchronised = events.where(_is("SYNC_END"))
    key = ["queue_id", "epoch"]
    rows = failover_rows
    for column in (
        _in_window(failover_rows, publish_gaps, "gap_end_us", F.max("gap_us"), "rto_publish_us"),
        _in_window(failover_rows, consume_gaps, "gap_end_us", F.max("gap_us"), "rto_consume_us"),
        _in_window(failover_rows, flagged, "t_hi_us", F.count("*"), "redeliveries"),
        _in_window(failover_rows, synchronised, "t_hi_us", F.max("t_hi_us"), "synchronised_us"),
        rpo,
    ):
        rows = rows.join(column, on=key, how="left")
    return rows.select(
        "queue_id",
        "epoch",
        "cause_id",
        "cause",
        "old_master",
        "new_master",
        "mirrors_before",
        "synchronised_before",
        "is_oldest_synchronised",
        "fault_us",
        "promote_us",
        (F.col("promote_us") - F.col("fault_us")).alias("detect_us"),
        "rto_publish_us",
        "rto_consume_us",
        (F.col("synchronised_us") - F.col("promote_us")).alias("resync_us"),
        F.coalesce("rpo", F.lit(0)).alias("rpo"),
        F.coalesce("redeliveries", F.lit(0)).alias("redeliveries"),
    ).orderBy("queue_id", "epoch")


# --- the run itself ---


def incomplete_logs(events: DataFrame) -> DataFrame:
    """Processes whose record has a hole, a repeated number or no end. One such row makes the run UNKNOWN."""
    per_process = events.groupBy("proc_id", "proc_kind", "incarnation").agg(
        F.count("*").alias("events"),
        F.count_distinct("ev_seq").alias("distinct_events"),
        F.min("ev_seq").alias("first_ev_seq"),
        F.max("ev_seq").alias("last_ev_seq"),
        F.max(F.when(_is("PROC_END"), F.col("ev_seq"))).alias("end_ev_seq"),
    )
    is_dense = (F.col("events") == F.col("last_ev_seq")) & (F.col("distinct_events") == F.col("last_ev_seq"))
    is_ended = F.coalesce(F.col("end_ev_seq") == F.col("last_ev_seq"), F.lit(False))
    return per_process.where(~(is_dense & (F.col("first_ev_seq") == 1) & is_ended))


def phases(events: DataFrame) -> DataFrame:
    """The harness's phases: each lasts until the next begins."""
    by_time = Window.partitionBy("run_id").orderBy("ev_seq")
    return events.where(_is("PHASE")).select(
        F.col("detail").alias("phase"),
        F.col("t_lo_us").alias("phase_begin_us"),
        F.coalesce(F.lead("t_lo_us").over(by_time), F.lit(_FOREVER_US)).alias("phase_end_us"),
    )


def confirmed_in_phase(rows: DataFrame, phase_rows: DataFrame, phase: str) -> DataFrame:
    """Attempts whose confirm came in a phase of this name."""
    named = phase_rows.where(F.col("phase") == phase)
    is_inside = (F.col("confirm_us") >= F.col("phase_begin_us")) & (F.col("confirm_us") < F.col("phase_end_us"))
    return confirmed(rows).join(F.broadcast(named), on=is_inside, how="left_semi")


def rates(events: DataFrame, bucket_us: int) -> DataFrame:
    """Confirms and deliveries per time bucket, for drawing."""
    bucket = F.floor(F.col("t_hi_us") / bucket_us) * bucket_us
    return (
        events.where(_is("CONFIRM", "DELIVER"))
        .groupBy(bucket.alias("bucket_us"))
        .agg(_count(_is("CONFIRM")).alias("confirms"), _count(_is("DELIVER")).alias("deliveries"))
        .orderBy("bucket_us")
    )


def control_events(events: DataFrame) -> DataFrame:
    """The few events that are not about single messages, in order of time."""
    kinds = (
        "FAULT_BEGIN", "FAULT_END", "PROMOTE", "JOIN", "LEAVE", "SYNC_BEGIN", "SYNC_END", "PHASE", "STALL",
        "CONN_LOST", "CANCELLED", "CONFIRM_STRAY",
    )  # fmt: skip
    return (
        events.where(_is(*kinds))
        .select("t_lo_us", "t_hi_us", "kind", "queue_id", "node_id", "epoch", "fault_id", "result", "err", "detail")
        .orderBy("t_hi_us")
    )
