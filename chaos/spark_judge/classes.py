"""What is concluded for each message, or for a few of them together, from one row each: see `rollup.MESSAGE`."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.judge.findings import Name, Place
from chaos.record.kinds import REMOVALS, Kind
from chaos.record.message_key import ATTEMPT_BITS, PUBLISHER_SHIFT
from chaos.spark_judge.expressions import any_attempt, attempt_of, has, is_confirmed, is_kind, shown
from chaos.spark_judge.record import with_queue

#: The columns of what is found. ``name`` first, as in `chaos.judge.findings.Finding`.
FINDING = ("name", "message", "process", "event")


def shown_by_messages(messages: DataFrame, queues: DataFrame) -> DataFrame:
    """Findings of messages by themselves, what was shown by their deliveries included."""
    confirmed = is_confirmed()
    is_delivered, is_left = has(Kind.DELIVER), has(Kind.LEFT)
    is_gone = ~has(Kind.LEFT, *REMOVALS)
    is_missing = confirmed & ~is_delivered & is_gone
    is_unsettled = confirmed & is_delivered & ~F.col("is_settled") & is_gone
    emptied_behind = F.coalesce(F.col("publish_t_lo_us") <= F.col("emptied_until_us"), F.lit(False))
    may_be_removed = F.col("may_remove") | emptied_behind
    anywhere = {
        Name.PHANTOM: (is_delivered & ~has(Kind.PUBLISH), "first"),
        Name.REFUSED_DELIVERED: (is_delivered & has(Kind.REFUSE) & ~confirmed, "first"),
        Name.RETURNED_DELIVERED: (is_delivered & has(Kind.RETURN), "first"),
        Name.RECOVERED: (is_delivered & ~confirmed & has(Kind.UNRESOLVED), "first"),
        Name.FLAGGED_FIRST: (is_delivered & F.col("delivery_event").isNull(), "first"),
        Name.SETTLED_UNPROVEN: (F.col("is_settled") & ~F.col("is_proven") & ~is_left, "publish"),
    }
    by_queue = {
        Name.LOST: (is_missing & ~may_be_removed, "publish"),
        Name.REMOVED_UNPROVEN: (is_missing & may_be_removed, "publish"),
        Name.VANISHED: (is_unsettled & ~may_be_removed, "publish"),
        Name.STUCK: (is_left & F.col("is_drained"), "left"),
    }
    is_told_of = is_missing | is_unsettled | is_left | (F.size("shown") > 0)
    for condition, _ in anywhere.values():
        is_told_of |= condition
    found = [
        F.when(condition, shown(name, F.col(f"{row}_process"), F.col(f"{row}_event")))
        for name, (condition, row) in {**anywhere, **by_queue}.items()
    ]
    # Nothing is to be said of most messages: seen before a queue is looked up for them.
    return (
        messages.where(is_told_of)
        .transform(with_queue, queues)
        .select("message", F.explode(F.concat("shown", F.array_compact(F.array(*found)))).alias("found"))
        .select("found.name", "message", "found.process", "found.event")
    )


def copies(messages: DataFrame) -> DataFrame:
    """Attempts that were delivered when an earlier one of the same message was as well."""
    delivered = messages.where(has(Kind.DELIVER)).withColumn("any_attempt", any_attempt(F.col("message")))
    # The first attempt is no copy, whatever there is.
    again = delivered.where(attempt_of(F.col("message")) > 1)
    lowest = (
        delivered.join(again.select("any_attempt").distinct(), "any_attempt", "left_semi")
        .groupBy("any_attempt")
        .agg(F.min("message").alias("lowest"))
    )
    found = again.join(lowest, "any_attempt", "inner").where(F.col("message") > F.col("lowest"))
    return found.select(F.lit(str(Name.COPIES)).alias("name"), "message", *_row("publish"))


def replicas_lost(events: DataFrame, messages: DataFrame, listings: DataFrame) -> DataFrame:
    """What was left, and is not in the content of a replica that counts as synchronised."""
    held = events.where(is_kind(F.col("kind"), Kind.HELD)).select("message", "node")
    found = (
        messages.where(has(Kind.LEFT))
        .select("message", "queue")
        .join(F.broadcast(listings), "queue", "inner")
        .join(held, ["message", "node"], "left_anti")
    )
    return found.select(F.lit(str(Name.REPLICA_LOST)).alias("name"), "message", "process", "event")


def with_places(findings: DataFrame, messages: DataFrame) -> DataFrame:
    """Findings, and a ``place`` of those that are LOST; null for others."""
    delivered = (
        messages.where(has(Kind.DELIVER))
        .groupBy(_publisher_in_queue().alias("of"))
        .agg(F.min(_sequence()).alias("least"), F.max(_sequence()).alias("greatest"))
    )
    place = (
        F.when(F.col("least").isNull() | (_sequence() > F.col("greatest")), str(Place.POSTFIX))
        .when(_sequence() < F.col("least"), str(Place.PREFIX))
        .otherwise(str(Place.MIDDLE))
    )
    is_lost = F.col("name") == str(Name.LOST)
    return (
        findings.withColumn("of", _publisher_in_queue())
        .join(F.broadcast(delivered), "of", "left")
        .select(*FINDING, F.when(is_lost, place).alias("place"))
    )


def _publisher_in_queue() -> Column:
    return F.shiftright("message", PUBLISHER_SHIFT)


def _sequence() -> Column:
    """Comparable within one publisher and queue."""
    return F.shiftright("message", ATTEMPT_BITS)


def _row(name: str) -> list[Column]:
    return [F.coalesce(f"{name}_{column}", F.lit(0)).alias(column) for column in ("process", "event")]
