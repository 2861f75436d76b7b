"""What a row shows by itself, or beside what is known of its queue: nothing else of its message is looked at."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.judge.findings import Name
from chaos.record.kinds import Flag, Kind, Stray
from chaos.spark_judge.expressions import has_flag, is_kind, queue_of

_STRAYS = {
    Stray.TWICE: Name.CONFIRM_TWICE,
    Stray.CONTRADICTION: Name.CONFIRM_CONTRADICTION,
    Stray.UNKNOWN: Name.CONFIRM_UNKNOWN,
}


def _shown_by_row() -> dict[Name, Column]:
    """When a row shows what."""
    is_delivery, is_stray = is_kind(F.col("kind"), Kind.DELIVER), is_kind(F.col("kind"), Kind.STRAY)
    has_message = F.col("message") != 0
    return {
        Name.FOREIGN: is_delivery & ~has_message,
        Name.CORRUPT: is_delivery & has_flag(F.col("flags"), Flag.CORRUPT),
        Name.MISROUTED: is_delivery & has_message & (F.col("queue") != 0),
        **{name: is_stray & (F.col("number") == int(stray)) for stray, name in _STRAYS.items()},
    }


def is_telling_row() -> Column:
    """True of a row that shows something."""
    conditions = list(_shown_by_row().values())
    found = conditions[0]
    for condition in conditions[1:]:
        found |= condition
    return found


def shown_by_rows(events: DataFrame) -> DataFrame:
    """Findings of single rows."""
    names = [F.when(condition, F.lit(str(name))) for name, condition in _shown_by_row().items()]
    return events.where(is_telling_row()).select(
        F.explode(F.array_compact(F.array(*names))).alias("name"), "message", "process", "event"
    )


def false_confirms(events: DataFrame, queues: DataFrame) -> DataFrame:
    """Answers of masters that others had followed already."""
    answers = events.where(is_kind(F.col("kind"), Kind.ANSWERED)).withColumn("queue", queue_of(F.col("message")))
    promotions = queues.select("queue", F.explode("promotions").alias("promotion"))
    is_false = (F.col("promotion.epoch") > F.col("epoch")) & (F.col("promotion.t_hi_us") < F.col("t_lo_us"))
    found = answers.alias("answer").join(
        F.broadcast(promotions.alias("known")),
        (F.col("answer.queue") == F.col("known.queue")) & is_false,
        "left_semi",
    )
    return found.select(F.lit(str(Name.FALSE_CONFIRM)).alias("name"), "message", "process", "event")
