"""One row for each message, of all its rows: which kinds there are, who saw what first, and when.

Only numbers are kept, so that the aggregation needs no objects: it runs in place, in memory that Spark can spill; and
what was aggregated of some rows each can be aggregated further (`merged`), in any order. So
the first publish or delivery is known of messages that have one of each: the *plain* ones, nearly all in nearly every
run. The others must be looked at row by row, see `chaos.spark_judge.uncommon`. Both give the same columns, `MESSAGE`,
and what follows for a message is concluded from those.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.record.kinds import REMOVALS, Flag, Kind
from chaos.spark_judge.expressions import SHOWN, has, has_flag, is_kind, kind_bit, queue_of, set_of

#: Of a message, however many rows it has. Columns of a row that is not there are null.
MESSAGE = (
    "message",
    "queue",
    #: The kinds of its rows, see `expressions.set_of`.
    "seen",
    #: Its first `PUBLISH`.
    "publish_process",
    "publish_event",
    "publish_channel",
    "publish_t_lo_us",
    #: Its first delivery, and the first without REDELIVERED.
    "first_process",
    "first_event",
    "delivery_process",
    "delivery_event",
    "delivery_channel",
    "delivery_t_lo_us",
    "delivery_t_hi_us",
    #: Its first `LEFT`.
    "left_process",
    "left_event",
    #: As `chaos.judge` defines it.
    "is_settled",
    "is_proven",
    #: What is shown by its deliveries together.
    "shown",
)
_ONCE = (Kind.PUBLISH, Kind.DELIVER, Kind.LEFT)
_OF_CONSUMERS = (Kind.DELIVER, Kind.ACK, Kind.ACK_PROVEN, Kind.REQUEUE, Kind.DISCARD, Kind.RELEASE)


def rollup(events: DataFrame) -> DataFrame:
    """The only shuffle of all rows: what the rows of one file say of a message is put together before."""
    return _with_plain(partial(events))


def partial(events: DataFrame) -> DataFrame:
    """What some of the rows say: to be `merged` with others."""
    aggregated = [_AGGREGATIONS[how](column).alias(name) for name, (how, column) in _columns().items()]
    return events.where(F.col("message") != 0).groupBy("message").agg(*aggregated)


def merged(partials: DataFrame) -> DataFrame:
    """As `rollup` of all the rows that they were made of."""
    aggregated = [_AGGREGATIONS[how](F.col(name)).alias(name) for name, (how, _) in _columns().items()]
    return _with_plain(partials.groupBy("message").agg(*aggregated))


#: Of which a second aggregation goes on with the results of the first.
_AGGREGATIONS: dict[str, Callable[[Column], Column]] = {
    "any bit": F.bit_or,
    "sum": F.sum,
    "least": F.min,
    "greatest": F.max,
}


def _columns() -> dict[str, tuple[str, Column]]:
    """Name -> how it is aggregated, and what of each row."""
    kind = F.col("kind")
    is_publish, is_of_consumer = is_kind(kind, Kind.PUBLISH), is_kind(kind, *_OF_CONSUMERS)
    is_delivery = is_kind(kind, Kind.DELIVER)
    # Either of the two: a message that has both is not plain.
    is_found = is_delivery | is_kind(kind, Kind.LEFT)
    is_conclusion = is_kind(kind, Kind.CONFIRM, Kind.GIVEN_UP)

    def least(condition: Column, column: str) -> tuple[str, Column]:
        return "least", F.when(condition, F.col(column))

    return {
        "seen": ("any bit", kind_bit(kind)),
        "once": ("sum", is_kind(kind, *_ONCE).cast("int")),
        "publish_process": least(is_publish, "process"),
        "publish_event": least(is_publish, "event"),
        "publish_channel": least(is_publish, "channel"),
        "publish_t_lo_us": least(is_publish, "t_lo_us"),
        "found_process": least(is_found, "process"),
        "found_event": least(is_found, "event"),
        "fetched_t_lo_us": least(is_delivery, "t_lo_us"),
        "fetched_t_hi_us": least(is_delivery, "t_hi_us"),
        "flags": ("any bit", F.when(is_delivery, F.col("flags"))),
        "channel": least(is_of_consumer, "channel"),
        "channel_max": ("greatest", F.when(is_of_consumer, F.col("channel"))),
        "tag": least(is_of_consumer, "tag"),
        "tag_max": ("greatest", F.when(is_of_consumer, F.col("tag"))),
        # For `chaos.spark_judge.figures`.
        "intended_us": ("least", F.when(is_publish, F.col("t_lo_us") - F.col("number"))),
        "concluded_us": least(is_conclusion, "t_lo_us"),
    }


def _with_plain(rolled: DataFrame) -> DataFrame:
    return rolled.withColumn("is_plain", _is_plain())


def _is_plain() -> Column:
    """One publish, one delivery, or one that was left, at most; and all that consumers did was done with that one."""
    kinds = F.bit_count(F.col("seen").bitwiseAND(F.lit(set_of(*_ONCE))))
    is_of_one = (F.col("channel") == F.col("channel_max")) & (F.col("tag") == F.col("tag_max"))
    return (
        (F.col("once") == kinds)
        & F.coalesce(is_of_one, F.lit(True))
        & ~(has(Kind.DELIVER) & has(Kind.LEFT, *REMOVALS))
        & ~(has(Kind.REQUEUE) & has(Kind.ACK_PROVEN))
    )


def plain_messages(rolled: DataFrame) -> DataFrame:
    """`MESSAGE` of what is plain."""
    is_delivered, is_left = has(Kind.DELIVER), has(Kind.LEFT)
    is_unflagged = is_delivered & ~has_flag(F.col("flags"), Flag.REDELIVERED)
    is_automatic = is_delivered & has_flag(F.col("flags"), Flag.NO_ACK)
    is_ended = has(Kind.ACK, Kind.DISCARD)

    def found(condition: Column, column: str) -> Column:
        return F.when(condition, F.col(column))

    columns = {
        "message": F.col("message"),
        "queue": queue_of(F.col("message")),
        "seen": F.col("seen"),
        "publish_process": F.col("publish_process"),
        "publish_event": F.col("publish_event"),
        "publish_channel": F.col("publish_channel"),
        "publish_t_lo_us": F.col("publish_t_lo_us"),
        "first_process": found(is_delivered, "found_process"),
        "first_event": found(is_delivered, "found_event"),
        "delivery_process": found(is_unflagged, "found_process"),
        "delivery_event": found(is_unflagged, "found_event"),
        "delivery_channel": found(is_unflagged, "channel"),
        "delivery_t_lo_us": found(is_unflagged, "fetched_t_lo_us"),
        "delivery_t_hi_us": found(is_unflagged, "fetched_t_hi_us"),
        "left_process": found(is_left, "found_process"),
        "left_event": found(is_left, "found_event"),
        "is_settled": is_ended | is_automatic,
        "is_proven": has(Kind.SETTLED) | is_automatic | (is_ended & has(Kind.ACK_PROVEN)),
        "shown": F.array().cast(SHOWN),
    }
    assert tuple(columns) == MESSAGE, "uncommon messages have the same"
    return rolled.where("is_plain").select(*(column.alias(name) for name, column in columns.items()))
