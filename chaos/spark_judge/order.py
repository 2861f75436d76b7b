"""Order: what was published later on a channel, and delivered before.

A *stream* is what was published on one channel to one queue and delivered without REDELIVERED. Of streams all messages
must be sorted, which is the dearest part of a judgement; so it is done once, for both questions, with one shuffle:

- by the consumer's channel and the number of the delivery: the latest published of those before says whether a message
  is MISORDERED, and which leads;
- by the number of the publish, backwards: the earliest end of a delivery among those that were published later says
  whether a message was OVERTAKEN, but not by which. That is asked again of the streams in which it has happened.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from chaos.judge.findings import Name
from chaos.record.kinds import Kind
from chaos.spark_judge.expressions import has
from chaos.spark_judge.record import with_queue

_STREAM = ("queue", "publish_channel")
#: Deliveries are looked up by when they were made, in pieces of so long.
_PIECE_US = 1_000_000


def streams(messages: DataFrame) -> DataFrame:
    """The messages whose order can be judged."""
    return messages.where(has(Kind.PUBLISH) & F.col("delivery_event").isNotNull()).select(
        "message",
        *_STREAM,
        "publish_event",
        "delivery_process",
        "delivery_event",
        "delivery_channel",
        "delivery_t_lo_us",
        "delivery_t_hi_us",
    )


def pairs_compared(messages: DataFrame) -> int:
    """Neighbours in consumers' channels."""
    counts = streams(messages).groupBy(*_STREAM, "delivery_channel").agg((F.count("*") - 1).alias("pairs"))
    row = counts.agg(F.coalesce(F.sum("pairs"), F.lit(0)).alias("pairs")).head()
    assert row is not None, "an aggregation without groups has one row"
    return int(row["pairs"])


def late_messages(messages: DataFrame, slack_us: int | None) -> DataFrame:
    """Of the streams what comes late: ``is_misordered``, ``is_overtaken``, and if misordered behind whom."""
    in_stream = Window.partitionBy(*_STREAM)
    behind = in_stream.orderBy(F.desc("publish_event")).rowsBetween(Window.unboundedPreceding, -1)
    before = (
        Window.partitionBy(*_STREAM, "delivery_channel")
        .orderBy("delivery_event")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    ordered = streams(messages)
    if slack_us is None:
        ordered = ordered.withColumn("is_overtaken", F.lit(False))
    else:
        # First, so that its shuffle does for the other as well.
        ended_us = F.min("delivery_t_hi_us").over(behind)
        is_overtaken = ended_us + slack_us < F.col("delivery_t_lo_us")
        ordered = ordered.withColumn("is_overtaken", F.coalesce(is_overtaken, F.lit(False)))
    return (
        ordered.withColumn("leader_event", F.max("publish_event").over(before))
        .withColumn("leader_t_lo_us", F.max_by("delivery_t_lo_us", "publish_event").over(before))
        .withColumn("is_misordered", F.coalesce(F.col("leader_event") > F.col("publish_event"), F.lit(False)))
        .where(F.col("is_misordered") | F.col("is_overtaken"))
    )


def misordered(late: DataFrame, queues: DataFrame) -> DataFrame:
    """Findings in consumers' channels."""
    return _named(late.where("is_misordered"), queues, Name.MISORDERED, Name.MISORDERED_EXCUSED)


def overtaken(late: DataFrame, messages: DataFrame, queues: DataFrame, slack_us: int) -> DataFrame:
    """Findings wherever messages are delivered.

    In the order of time, the beginnings of late deliveries stand among the ends of all, each a slack later.
    """
    late = late.where(F.col("is_overtaken") & ~F.col("is_misordered")).drop("leader_event", "leader_t_lo_us")
    ends = (
        streams(messages)
        .join(F.broadcast(late.select(*_STREAM).distinct()), list(_STREAM), "left_semi")
        .select(
            *_STREAM,
            (F.col("delivery_t_hi_us") + slack_us).alias("moment_us"),
            F.lit(1).alias("is_end"),
            F.col("publish_event").alias("ended_event"),
            F.col("delivery_t_lo_us").alias("ended_t_lo_us"),
        )
    )
    begins = late.withColumn("moment_us", F.col("delivery_t_lo_us")).withColumn("is_end", F.lit(0))
    # What ends, with its slack, when another begins is not before it: so beginnings come first.
    until_now = (
        Window.partitionBy(*_STREAM)
        .orderBy("moment_us", "is_end")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    led = (
        begins.unionByName(ends, allowMissingColumns=True)
        .withColumn("leader_t_lo_us", F.max_by("ended_t_lo_us", "ended_event").over(until_now))
        .where(F.col("is_end") == 0)
    )
    return _named(led, queues, Name.OVERTAKEN, Name.OVERTAKEN_EXCUSED)


def _named(late: DataFrame, queues: DataFrame, name: Name, excused: Name) -> DataFrame:
    """Excused if the queue may have got another master between the leader's delivery and the late one."""
    is_excused = F.exists(
        "promotions",
        lambda each: (F.col("leader_t_lo_us") <= each["t_hi_us"]) & (each["t_lo_us"] <= F.col("delivery_t_hi_us")),
    )
    return late.transform(with_queue, queues).select(
        F.when(is_excused, str(excused)).otherwise(str(name)).alias("name"),
        "message",
        F.col("delivery_process").alias("process"),
        F.col("delivery_event").alias("event"),
    )


def requeue_overtaken(uncommon: DataFrame, messages: DataFrame, slack_us: int) -> DataFrame:
    """Findings of requeued messages that another passed, one for each requeue."""
    since_us, until_us = F.col("proven_us") + slack_us, F.col("again_us") - slack_us
    waiting = (
        uncommon.where(has(Kind.PUBLISH))
        .select("message", *_STREAM, F.col("publish_event").alias("requeued_event"), F.inline("requeues"))
        .withColumn("since_us", since_us)
        .withColumn("until_us", until_us)
        .where(F.col("since_us") < F.col("until_us"))
        .withColumn("piece", F.explode(F.sequence(_piece("since_us"), _piece("until_us"))))
        .withColumnRenamed("message", "requeued")
    )
    passing = (
        streams(messages)
        .withColumn("piece", _piece("delivery_t_lo_us"))
        .join(F.broadcast(waiting), [*_STREAM, "piece"], "inner")
        .where(
            (F.col("publish_event") > F.col("requeued_event"))
            & (F.col("since_us") < F.col("delivery_t_lo_us"))
            & (F.col("delivery_t_hi_us") < F.col("until_us"))
        )
    )
    requeue = ("requeued", "process", "event", "again_process", "again_event")
    return (
        passing.select(*requeue)
        .distinct()
        .select(
            F.lit(str(Name.REQUEUE_OVERTAKEN)).alias("name"),
            F.col("requeued").alias("message"),
            F.col("again_process").alias("process"),
            F.col("again_event").alias("event"),
        )
    )


def _piece(moment: str) -> Column:
    return F.floor(F.col(moment) / _PIECE_US)
