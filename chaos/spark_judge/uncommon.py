"""Messages of which a rollup cannot tell the story: several deliveries, requeues, removals and so on.

They are few, so all their rows are brought together as one array for each message, in the order of time, and the
definitions that speak of several deliveries are expressions over that array. The cost grows with the square of a
message's deliveries and more, which does not matter for a few; those with more than `DELIVERIES_MAX` are not judged,
and told of.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.judge.findings import Name
from chaos.record.kinds import REMOVALS, Flag, Kind
from chaos.spark_judge.expressions import (
    SHOWN,
    behind_first,
    first,
    has_flag,
    is_before,
    is_kind,
    is_promoted_between,
    is_same,
    kind_bit,
    let,
    may_be_before,
    names_same,
    queue_of,
    shown,
)
from chaos.spark_judge.record import with_queue
from chaos.spark_judge.rollup import MESSAGE

#: A message that goes round: a consumer requeues it for ever. Judging one with so many takes about a second.
DELIVERIES_MAX = 256
#: Times first: rows are sorted as the definitions sort them.
_ROW = ("t_lo_us", "process", "event", "kind", "t_hi_us", "channel", "tag", "flags")
_SETTLING = (Kind.ACK, Kind.DISCARD)
_GIVING_BACK = (Kind.REQUEUE, Kind.RELEASE)
_TELLING = (
    Kind.PUBLISH,
    Kind.DELIVER,
    Kind.ACK_PROVEN,
    Kind.LEFT,
    Kind.SETTLED,
    *_SETTLING,
    *_GIVING_BACK,
    *sorted(REMOVALS),
)


def uncommon_keys(rolled: DataFrame) -> DataFrame:
    """The messages that this module is about."""
    return rolled.where(~F.col("is_plain") & (F.col("once") <= DELIVERIES_MAX)).select("message")


def is_unjudged() -> Column:
    """True of a message, rolled up, of which nothing is concluded."""
    return ~F.col("is_plain") & (F.col("once") > DELIVERIES_MAX)


def uncommon_messages(events: DataFrame, keys: DataFrame, queues: DataFrame, slack_us: int | None) -> DataFrame:
    """`MESSAGE` of these, and their ``requeues``: see `_requeues`."""
    row = F.when(is_kind(F.col("kind"), *_TELLING), F.struct(*_ROW))
    told = (
        events.join(keys, "message", "left_semi")
        .groupBy("message")
        .agg(F.sort_array(F.collect_list(row)).alias("rows"), F.bit_or(kind_bit(F.col("kind"))).alias("seen"))
        .withColumn("queue", queue_of(F.col("message")))
        .transform(with_queue, queues)
    )
    deliveries = F.col("deliveries")
    unflagged = F.filter(deliveries, lambda each: ~_is_flagged(each))
    flagged = F.filter(deliveries, _is_flagged)
    # What is without REDELIVERED is the first; if all have it, one of them must be.
    repeats = F.when(F.size(flagged) < F.size(deliveries), flagged).otherwise(behind_first(flagged))
    split = (
        told.withColumn("deliveries", _of_kind(Kind.DELIVER))
        .withColumn("unflagged", unflagged)
        .withColumn("repeats", repeats)
        .withColumn("is_caused", _are_caused())
        .withColumn("graded", _graded(slack_us))
    )
    return split.select(*_columns(slack_us), _requeues().alias("requeues"))


def _columns(slack_us: int | None) -> list[Column]:
    publish, left = first(_of_kind(Kind.PUBLISH)), first(_of_kind(Kind.LEFT))
    found, unflagged = first(F.col("deliveries")), first(F.col("unflagged"))
    is_automatic = F.exists("deliveries", _is_automatic)
    extra = F.transform(
        behind_first(F.col("unflagged")), lambda each: shown(Name.UNFLAGGED, each["process"], each["event"])
    )
    columns = {
        "message": F.col("message"),
        "queue": F.col("queue"),
        "seen": F.col("seen"),
        "publish_process": publish["process"],
        "publish_event": publish["event"],
        "publish_channel": publish["channel"],
        "publish_t_lo_us": publish["t_lo_us"],
        "first_process": found["process"],
        "first_event": found["event"],
        "delivery_process": unflagged["process"],
        "delivery_event": unflagged["event"],
        "delivery_channel": unflagged["channel"],
        "delivery_t_lo_us": unflagged["t_lo_us"],
        "delivery_t_hi_us": unflagged["t_hi_us"],
        "left_process": left["process"],
        "left_event": left["event"],
        "is_settled": is_automatic | F.exists("rows", lambda row: is_kind(row["kind"], *_SETTLING)),
        "is_proven": is_automatic | _is_proven(),
        "shown": F.concat(F.col("graded"), extra, _late_first(slack_us)).cast(SHOWN),
    }
    assert tuple(columns) == MESSAGE, "plain messages have the same"
    return [column.alias(name) for name, column in columns.items()]


def _of_kind(*kinds: Kind) -> Column:
    return F.filter("rows", lambda row: is_kind(row["kind"], *kinds))


def _is_flagged(delivery: Column) -> Column:
    return has_flag(delivery["flags"], Flag.REDELIVERED)


def _is_automatic(delivery: Column) -> Column:
    return has_flag(delivery["flags"], Flag.NO_ACK)


def _is_proven() -> Column:
    """True if it is proven that a delivery was settled."""

    def is_proof(row: Column) -> Column:
        proofs = F.exists("rows", lambda proof: is_kind(proof["kind"], Kind.ACK_PROVEN) & names_same(proof, row))
        return is_kind(row["kind"], Kind.SETTLED) | (is_kind(row["kind"], *_SETTLING) & proofs)

    return F.exists("rows", is_proof)


# --- repeats


def _are_caused() -> Column:
    """For each repeat whether a cause is left for it when those before it have taken theirs.

    A disturbance is taken by nobody, and so explains whatever is left.
    """
    causes = F.sort_array(F.concat(_of_kind(*_GIVING_BACK), _rows_of_queue("promotions")))

    def take(state: Column, repeat: Column) -> Column:
        explaining = F.filter(state["causes"], lambda cause: _explains(cause, repeat))
        return let(
            first(explaining),
            lambda taken: F.struct(
                F.filter(state["causes"], lambda cause: ~F.coalesce(is_same(cause, taken), F.lit(False))).alias(
                    "causes"
                ),
                F.concat(state["are_caused"], F.array(taken.isNotNull() | is_disturbed(repeat))).alias("are_caused"),
            ),
        )

    def is_disturbed(repeat: Column) -> Column:
        return F.exists(_rows_of_queue("disturbances"), lambda cause: _explains(cause, repeat))

    state = F.struct(causes.alias("causes"), F.array().cast("array<boolean>").alias("are_caused"))
    return F.aggregate("repeats", state, take, lambda state: state["are_caused"])


def _rows_of_queue(name: str) -> Column:
    return F.transform(name, lambda each: F.struct(*(each[name].alias(name) for name in _ROW)))


def _explains(cause: Column, repeat: Column) -> Column:
    def is_of(other: Column) -> Column:
        reached = F.when(is_kind(cause["kind"], Kind.PROMOTED, Kind.DISTURBED), ~is_before(cause, other)).otherwise(
            names_same(cause, other)
        )
        return ~is_same(other, repeat) & reached

    return may_be_before(cause, repeat) & F.exists("deliveries", is_of)


def _graded(slack_us: int | None) -> Column:
    """For each repeat what it is."""

    def grade(repeat: Column, number: Column) -> Column:
        name = (
            F.when(_is_resurrected(repeat, slack_us), str(Name.RESURRECTED))
            .when(
                F.get("is_caused", number),
                F.when(_exists_other(repeat, lambda other: _is_settled_before(other, repeat)), str(Name.AFTER_ACK))
                .otherwise(str(Name.CAUSED)),
            )
            .when(_exists_other(repeat, lambda other: _is_held_at(other, repeat)), str(Name.DOUBLE_OWNER))
            .otherwise(str(Name.SPONTANEOUS))
        )  # fmt: skip
        return shown(name, repeat["process"], repeat["event"])

    return F.transform("repeats", grade)


def _exists_other(repeat: Column, condition: Callable[[Column], Column]) -> Column:
    return F.exists("deliveries", lambda other: ~is_same(other, repeat) & condition(other))


def _is_settled_before(delivery: Column, moment: Column) -> Column:
    by_row = F.exists(
        "rows",
        lambda row: is_kind(row["kind"], *_SETTLING) & names_same(row, delivery) & is_before(row, moment),
    )
    return (_is_automatic(delivery) & is_before(delivery, moment)) | by_row


def _is_proven_before(delivery: Column, moment: Column) -> Column:
    """True if a proof of its settling was there. That it was settled is another question."""
    by_row = F.exists(
        "rows",
        lambda row: (
            (is_kind(row["kind"], Kind.SETTLED) | (is_kind(row["kind"], Kind.ACK_PROVEN) & names_same(row, delivery)))
            & is_before(row, moment)
        ),
    )
    return (_is_automatic(delivery) & is_before(delivery, moment)) | by_row


def _is_held_at(delivery: Column, moment: Column) -> Column:
    """True if it was made before a moment and nothing may have ended it by then."""
    ended = F.exists(
        "rows",
        lambda row: (
            is_kind(row["kind"], *_SETTLING, *_GIVING_BACK) & names_same(row, delivery) & may_be_before(row, moment)
        ),
    )
    return is_before(delivery, moment) & ~_is_automatic(delivery) & ~ended


def _is_resurrected(repeat: Column, slack_us: int | None) -> Column:
    everywhere = F.exists(
        "rows",
        lambda row: (
            is_kind(row["kind"], Kind.SETTLED) & has_flag(row["flags"], Flag.EVERYWHERE) & is_before(row, repeat)
        ),
    )
    settled = _exists_other(
        repeat,
        lambda other: (
            _is_settled_before(other, repeat)
            & _is_proven_before(other, repeat)
            & ~is_promoted_between(F.col("promotions"), other, repeat)
            & ~is_promoted_between(F.col("disturbances"), other, repeat)
        ),
    )
    return everywhere | _is_removed_before(repeat, slack_us) | settled


def _is_removed_before(delivery: Column, slack_us: int | None) -> Column:
    if slack_us is None:
        return F.lit(False)
    return F.exists("rows", lambda row: is_kind(row["kind"], *sorted(REMOVALS)) & is_before(row, delivery, slack_us))


def _late_first(slack_us: int | None) -> Column:
    """The first delivery, if it is no repeat and comes behind the message's removal."""
    is_repeat = _is_flagged(first(F.col("deliveries"))) & (F.size("unflagged") > 0)
    found = first(F.col("deliveries"))
    is_late = found.isNotNull() & ~is_repeat & _is_removed_before(found, slack_us)
    late = F.array(shown(Name.RESURRECTED, found["process"], found["event"]))
    return F.when(is_late, late).otherwise(F.array().cast(SHOWN))


# --- order


def _requeues() -> Column:
    """Of each `REQUEUE` whose arrival is proven: since when that is known, and the first delivery behind, which must
    not be another master's."""

    def look(requeue: Column) -> Column:
        proof = first(F.filter("rows", lambda row: is_kind(row["kind"], Kind.ACK_PROVEN) & names_same(row, requeue)))
        return let(proof, lambda proof: let(_first_behind(proof), lambda again: _requeue(requeue, proof, again)))

    looked_at = F.transform(_of_kind(Kind.REQUEUE), look)
    return F.filter(looked_at, lambda each: each["again_event"].isNotNull() & ~each["is_excused"])


def _first_behind(proof: Column) -> Column:
    return first(F.filter("deliveries", lambda each: is_before(proof, each)))


def _requeue(requeue: Column, proof: Column, again: Column) -> Column:
    return F.struct(
        requeue["process"].alias("process"),
        requeue["event"].alias("event"),
        proof["t_hi_us"].alias("proven_us"),
        again["process"].alias("again_process"),
        again["event"].alias("again_event"),
        again["t_lo_us"].alias("again_us"),
        is_promoted_between(F.col("promotions"), requeue, again).alias("is_excused"),
    )
