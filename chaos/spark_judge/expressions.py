"""Words of `chaos.judge` as expressions over columns: of rows of a record, or of elements of an array of such rows."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F

from chaos.judge.findings import Name
from chaos.record.kinds import Flag, Kind
from chaos.record.message_key import ATTEMPT_BITS, ATTEMPTS_MAX, PUBLISHER_SHIFT, PUBLISHERS_MAX, QUEUE_SHIFT

#: What a finding consists of, with its name; the message is known where it is made.
SHOWN = "array<struct<name: string, process: int, event: bigint>>"
#: Kinds of rows with a message are below the first of these, or from the second on and not further behind it.
_BITS_LOW, _HIGH_KINDS, _BITS = 32, 64, 64


def bit_of(kind: Kind) -> int:
    """The place of a kind in a set of kinds: those of clients, then those of the broker."""
    bit = kind if kind < _BITS_LOW else kind - _HIGH_KINDS + _BITS_LOW
    assert 0 < bit < _BITS - 1, f"{kind!r} is no kind of rows with a message"
    return bit


def set_of(*kinds: Kind) -> int:
    """Kinds as a number with a bit for each."""
    return sum(1 << bit_of(kind) for kind in set(kinds))


def kind_bit(kind: Column) -> Column:
    """The set of this kind alone."""
    place = F.when(kind < _HIGH_KINDS, kind).otherwise(kind - (_HIGH_KINDS - _BITS_LOW))
    return F.call_function("shiftleft", F.lit(1).cast("bigint"), place.cast("int"))


def has(*kinds: Kind, seen: str = "seen") -> Column:
    """True if the set in column ``seen`` has one of these."""
    return F.col(seen).bitwiseAND(F.lit(set_of(*kinds))) != 0


def is_confirmed() -> Column:
    """True if the set in column ``seen`` says that a message is, see `chaos.judge`."""
    return has(Kind.CONFIRM) & ~has(Kind.RETURN)


def is_kind(kind: Column, *kinds: Kind) -> Column:
    return kind.isin([int(each) for each in kinds])


def has_flag(flags: Column, flag: Flag) -> Column:
    return flags.bitwiseAND(F.lit(int(flag)).cast("smallint")) != 0


def is_before(earlier: Column, later: Column, slack_us: int = 0) -> Column:
    """True if one row was before another, by more than the slack."""
    return earlier["t_hi_us"] + slack_us < later["t_lo_us"]


def may_be_before(earlier: Column, later: Column) -> Column:
    return earlier["t_lo_us"] <= later["t_hi_us"]


def is_same(row: Column, other: Column) -> Column:
    return (row["process"] == other["process"]) & (row["event"] == other["event"])


def names_same(row: Column, other: Column) -> Column:
    """True if both name the same delivery."""
    return (row["channel"] == other["channel"]) & (row["tag"] == other["tag"])


def is_promoted_between(promotions: Column, first: Column, last: Column) -> Column:
    """True if the queue may have got another master between two rows."""
    return F.exists(promotions, lambda each: may_be_before(first, each) & may_be_before(each, last))


def queue_of(message: Column) -> Column:
    return F.shiftright(message, QUEUE_SHIFT).cast("smallint")


def publisher_of(message: Column) -> Column:
    return F.shiftright(message, PUBLISHER_SHIFT).bitwiseAND(F.lit(PUBLISHERS_MAX)).cast("int")


def any_attempt(message: Column) -> Column:
    """What the attempts of one message have in common."""
    return F.shiftright(message, ATTEMPT_BITS)


def attempt_of(message: Column) -> Column:
    return message.bitwiseAND(F.lit(ATTEMPTS_MAX))


def shown(name: Name | Column, process: Column, event: Column) -> Column:
    """An element of `SHOWN`; zeros if there is no such row."""
    word = F.lit(str(name)) if isinstance(name, Name) else name
    return F.struct(
        word.alias("name"),
        F.coalesce(process, F.lit(0)).cast("int").alias("process"),
        F.coalesce(event, F.lit(0)).cast("bigint").alias("event"),
    )


def let(value: Column, body: Callable[[Column], Column]) -> Column:
    """``body`` of a value that is computed once."""
    return F.get(F.transform(F.array(value), body), F.lit(0))


def first(rows: Column) -> Column:
    """Of an array; null if it is empty."""
    return F.get(rows, F.lit(0))


def behind_first(rows: Column) -> Column:
    """All of an array but the first."""
    return F.slice(rows, F.lit(2), F.greatest(F.size(rows) - 1, F.lit(0)))
