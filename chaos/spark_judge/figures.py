"""`chaos.judge.figures`, counted by Spark: rows and messages are added up where they are, and few numbers come here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.judge.figures import NOTICES, Figures, by_time, step_us
from chaos.judge.findings import LOSSES
from chaos.judge.latency import BINS, FIRST_US, GROWTH
from chaos.judge.windows import BUCKET_US, Bucket
from chaos.record import message_key
from chaos.record.kinds import Ending, Kind
from chaos.record.schema import Event
from chaos.spark_judge.expressions import any_attempt, attempt_of, has, is_confirmed, is_kind, queue_of

#: A moment of a message, by its place here.
_COUNTED = ("intended", "concluded", "stored", "fetched", "repeats")
_OF_TIME = ("queue", "bucket")


def figures(events: DataFrame, rolled: DataFrame, findings: DataFrame | None) -> Figures:
    """Of a record. ``rolled``: as `chaos.spark_judge.rollup` has it. ``findings``: None if nothing is lost."""
    counted: dict[int, dict[int, dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
    frames = [_of_rows(events), _of_messages(rolled)]
    if findings is not None:
        frames.append(_of_what_is_lost(findings, rolled))
    for frame in frames:
        names = frame.columns[len(_OF_TIME) :]
        for queue, bucket, *counts in frame.collect():
            of_bucket = counted[queue][bucket]
            for name, count in zip(names, counts, strict=True):
                of_bucket[name] = of_bucket.get(name, 0) + count
    begin_us, end_us = _extent(rolled)
    return Figures(
        begin_us,
        end_us,
        {
            queue: [Bucket(number, **counts) for number, counts in sorted(of_queue.items())]
            for queue, of_queue in sorted(counted.items())
        },
        _latencies(rolled, step_us(begin_us, end_us)),
        sorted(_notices(events), key=by_time),
    )


def rows_told(events: DataFrame, messages: Sequence[int]) -> list[Event]:
    """Every row of these messages, in all their attempts, by time."""
    if not messages:
        return []
    wanted = {message_key.any_attempt(message) for message in messages}
    rows = events.where(any_attempt(F.col("message")).isin(sorted(wanted))).select(*Event._fields).collect()
    return sorted((Event(*row) for row in rows), key=by_time)


def _number(at_us: Column, length_us: int) -> Column:
    """Of the stretch of time, one of so long ones, in which it lies."""
    return F.call_function("div", at_us, F.lit(length_us))


def _bucket(at_us: Column) -> Column:
    return _number(at_us, BUCKET_US)


def _of_rows(events: DataFrame) -> DataFrame:
    is_confirm, is_delivery = (is_kind(F.col("kind"), kind) for kind in (Kind.CONFIRM, Kind.DELIVER))
    return (
        events.where((F.col("message") != 0) & (is_confirm | is_delivery))
        .groupBy(queue_of(F.col("message")).alias("queue"), _bucket(F.col("t_lo_us")).alias("bucket"))
        .agg(
            F.count_if(is_confirm).alias("confirms"),
            F.count_if(is_delivery).alias("deliveries"),
            # Less the first of each message: see `_of_messages`.
            F.count_if(is_delivery).alias("repeats"),
        )
    )


def _of_messages(rolled: DataFrame) -> DataFrame:
    """A message has up to five moments; each is counted in the bucket where it lies."""
    concluded, fetched = F.col("concluded_us"), F.col("fetched_t_lo_us")
    is_stored = is_confirmed() & F.coalesce(concluded < fetched, F.lit(False))
    moments = {
        "intended": F.when(attempt_of(F.col("message")) == 1, F.col("intended_us")),
        "concluded": F.when(is_confirmed() | has(Kind.GIVEN_UP), concluded),
        "stored": F.when(is_stored, concluded),
        "fetched": F.when(is_stored, fetched),
        "repeats": fetched,
    }
    assert tuple(moments) == _COUNTED, "they are known by their places"
    exploded = rolled.select(
        queue_of(F.col("message")).alias("queue"), F.posexplode(F.array(*moments.values())).alias("what", "at_us")
    )
    counts = {name: F.count_if(F.col("what") == place) for place, name in enumerate(_COUNTED)}
    counts["repeats"] = -counts["repeats"]
    return (
        exploded.where(F.col("at_us").isNotNull())
        .groupBy("queue", _bucket(F.col("at_us")).alias("bucket"))
        .agg(*(count.alias(name) for name, count in counts.items()))
    )


def _of_what_is_lost(findings: DataFrame, rolled: DataFrame) -> DataFrame:
    is_lost = F.col("name").isin([str(name) for name in sorted(LOSSES)])
    return (
        rolled.where(F.col("concluded_us").isNotNull())
        .join(findings.where(is_lost).select("message"), "message", "left_semi")
        .groupBy(queue_of(F.col("message")).alias("queue"), _bucket(F.col("concluded_us")).alias("bucket"))
        .agg(F.count("*").alias("lost"))
    )


def _extent(rolled: DataFrame) -> tuple[int, int]:
    moments = [F.col(name) for name in ("publish_t_lo_us", "concluded_us", "fetched_t_lo_us")]
    row = rolled.agg(F.min(F.least(*moments)), F.max(F.greatest(*moments))).head()
    assert row is not None, "an aggregation without groups has one row"
    return row[0] or 0, row[1] or 0


def _latencies(rolled: DataFrame, length_us: int) -> dict[int, dict[int, int]]:
    latency = F.col("concluded_us") - F.col("intended_us")
    number = F.floor(F.ln(latency / F.lit(FIRST_US)) / F.ln(F.lit(GROWTH))) + 1
    bins = F.when(latency < FIRST_US, 0).otherwise(F.least(number, F.lit(BINS - 1))).cast("int")
    rows = (
        rolled.where(is_confirmed() & latency.isNotNull())
        .groupBy(_number(F.col("concluded_us"), length_us).alias("step"), bins.alias("bin"))
        .count()
        .collect()
    )
    found: dict[int, dict[int, int]] = defaultdict(dict)
    for step, number_of_bin, count in sorted(rows):
        found[step][number_of_bin] = count
    return dict(found)


def _notices(events: DataFrame) -> list[Event]:
    is_told = is_kind(F.col("kind"), *sorted(NOTICES)) & (
        ~is_kind(F.col("kind"), Kind.CHANNEL_OVER) | (F.col("number") != int(Ending.BY_CLIENT))
    )
    rows = events.where((F.col("message") == 0) & is_told).select(*Event._fields).collect()
    return [Event(*row) for row in rows]
