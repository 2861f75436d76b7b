"""Reads a record with Spark, and what is said in it once for all messages: few rows, which are collected."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from chaos.judge.facts_file import facts_of
from chaos.judge.findings import RunFacts
from chaos.record.kinds import Flag, Kind
from chaos.record.schema import EVENTS_DIRECTORY, SCHEMA, Event
from chaos.spark_judge.expressions import is_kind

_SPARK_TYPES: dict[str, T.DataType] = {
    "int8": T.ByteType(),
    "int16": T.ShortType(),
    "int32": T.IntegerType(),
    "int64": T.LongType(),
    "string": T.StringType(),
}
EVENTS = T.StructType([T.StructField(name, _SPARK_TYPES[str(SCHEMA.field(name).type)]) for name in Event._fields])


def read_events(spark: SparkSession, run_uri: str) -> DataFrame:
    """All events of a run. What is still being written has another ending."""
    return spark.read.schema(EVENTS).option("pathGlobFilter", "*.parquet").parquet(f"{run_uri}/{EVENTS_DIRECTORY}")


def read_facts(spark: SparkSession, uri: str) -> RunFacts:
    """The facts of a run, from wherever Spark can read. Raises `ValueError` if the file says nothing."""
    document = spark.read.text(uri, wholetext=True).head()
    if document is None:
        raise ValueError(f"{uri} is empty")
    return facts_of(json.loads(document["value"]))


class OfQueue(NamedTuple):
    """A row `PROMOTED` or `DISTURBED`, with what may be asked of a cause of deliveries."""

    t_lo_us: int
    process: int
    event: int
    kind: int
    t_hi_us: int
    channel: int
    tag: int
    flags: int
    epoch: int


class Listing(NamedTuple):
    """A row `LISTED` of a synchronised replica."""

    queue: int
    node: int
    process: int
    event: int


@dataclass(slots=True)
class Notices:
    """What is said of queues."""

    promotions: dict[int, list[OfQueue]] = field(default_factory=lambda: defaultdict(list))
    disturbances: dict[int, list[OfQueue]] = field(default_factory=lambda: defaultdict(list))
    #: The last moment at which a queue may have been emptied by order.
    emptied_until_us: dict[int, int] = field(default_factory=dict)
    listings: list[Listing] = field(default_factory=list)

    def merge(self, other: Notices) -> None:
        """What other rows say as well."""
        for mine, others in ((self.promotions, other.promotions), (self.disturbances, other.disturbances)):
            for queue, rows in others.items():
                mine[queue] += rows
        for queue, until_us in other.emptied_until_us.items():
            self.emptied_until_us[queue] = max(self.emptied_until_us.get(queue, until_us), until_us)
        self.listings += other.listings


def read_notices(events: DataFrame) -> Notices:
    """Few rows in many: the files' statistics of ``kind`` say where they are not."""
    is_notice = is_kind(F.col("kind"), Kind.PROMOTED, Kind.DISTURBED, Kind.EMPTIED, Kind.LISTED)
    notices = Notices()
    for row in events.where(is_notice).collect():
        if row["kind"] in (Kind.PROMOTED, Kind.DISTURBED):
            of_kind = notices.promotions if row["kind"] == Kind.PROMOTED else notices.disturbances
            of_kind[row["queue"]].append(OfQueue(*(row[name] for name in OfQueue._fields)))
        elif row["kind"] == Kind.EMPTIED:
            until_us = notices.emptied_until_us.get(row["queue"], row["t_hi_us"])
            notices.emptied_until_us[row["queue"]] = max(until_us, row["t_hi_us"])
        elif row["flags"] & Flag.SYNCHRONISED:
            notices.listings.append(Listing(*(row[name] for name in Listing._fields)))
    return notices


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of the events of one process, and what else is counted of its rows: sums of them can be added."""

    rows: int
    least: int
    greatest: int
    sum: int
    #: All of them, exclusive-or.
    parity: int
    #: Of its `PROCESS_END`; None if there is none.
    end: int | None
    telling_rows: int

    @property
    def are_dense(self) -> bool:
        """They go from 1 to the end, which is there.

        Seen from their count, least, greatest, sum and parity: whatever is missing, or there twice, changes one of
        these. (To keep them all, a row that is missing would have to be made up for by several that are there twice.)
        """
        rows = self.rows
        parity = (rows, 1, rows + 1, 0)[rows % 4]
        found = (self.least, self.greatest, self.end, self.sum, self.parity)
        return found == (1, rows, rows, rows * (rows + 1) // 2, parity)

    def with_others(self, other: Numbers) -> Numbers:
        """Of both together."""
        ends = [end for end in (self.end, other.end) if end is not None]
        return Numbers(
            self.rows + other.rows,
            min(self.least, other.least),
            max(self.greatest, other.greatest),
            self.sum + other.sum,
            self.parity ^ other.parity,
            max(ends, default=None),
            self.telling_rows + other.telling_rows,
        )


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is, and whether it is all."""

    rows: int
    #: Rows that show something by themselves, see `chaos.spark_judge.rows`.
    telling_rows: int
    #: Processes of the roster of which something is missing.
    incomplete: frozenset[int]

    @classmethod
    def of(cls, numbers: Mapping[int, Numbers], facts: RunFacts) -> Extent:
        """By process: see `read_numbers`."""
        complete = {process for process, each in numbers.items() if each.are_dense}
        return cls(
            sum(each.rows for each in numbers.values()),
            sum(each.telling_rows for each in numbers.values()),
            frozenset(process for process in facts.processes if process not in complete),
        )


def read_numbers(events: DataFrame, is_telling_row: Column) -> dict[int, Numbers]:
    """By process."""
    ended = F.max(F.when(is_kind(F.col("kind"), Kind.PROCESS_END), F.col("event")))
    rows = (
        events.groupBy("process")
        .agg(
            F.count("*"),
            F.min("event"),
            F.max("event"),
            F.sum("event"),
            F.bit_xor("event"),
            ended,
            F.sum(is_telling_row.cast("int")),
        )
        .collect()
    )
    return {process: Numbers(*numbers) for process, *numbers in rows}


_OF_QUEUE = "array<struct<{}>>".format(
    ", ".join(f"{name}: {EVENTS[name].dataType.simpleString()}" for name in OfQueue._fields)
)
_QUEUES = (
    "array<struct<queue: smallint, may_remove: boolean, is_drained: boolean, emptied_until_us: bigint, "
    f"promotions: {_OF_QUEUE}, disturbances: {_OF_QUEUE}>>"
)
_LISTINGS = "array<struct<queue: smallint, node: smallint, process: int, event: bigint>>"


def queue_table(spark: SparkSession, facts: RunFacts, notices: Notices) -> DataFrame:
    """A row for each queue of which anything is known: what a judge must know of it."""
    told = (notices.promotions, notices.disturbances, notices.emptied_until_us)
    known = {*range(1, len(facts.queues) + 1), *(queue for each in told for queue in each)}
    rows = [
        {
            "queue": queue,
            "may_remove": facts.queue(queue).may_remove,
            "is_drained": facts.queue(queue).is_drained,
            "emptied_until_us": notices.emptied_until_us.get(queue),
            "promotions": [each._asdict() for each in sorted(notices.promotions.get(queue, ()))],
            "disturbances": [each._asdict() for each in sorted(notices.disturbances.get(queue, ()))],
        }
        for queue in sorted(known)
    ]
    return _table(spark, rows, _QUEUES)


def listing_table(spark: SparkSession, listings: Iterable[Listing]) -> DataFrame:
    """The columns of `Listing`."""
    return _table(spark, [each._asdict() for each in listings], _LISTINGS)


def _table(spark: SparkSession, rows: Sequence[dict[str, object]], schema: str) -> DataFrame:
    """A few rows of the driver's as a frame, by way of a literal: no Python process has to run anywhere for it."""
    return spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), schema)))


def with_queue(messages: DataFrame, queues: DataFrame) -> DataFrame:
    """Messages with the columns of their queues; of one that the run does not know nothing is expected."""
    return (
        messages.join(F.broadcast(queues), "queue", "left")
        .withColumn("may_remove", F.coalesce("may_remove", F.lit(True)))
        .withColumn("is_drained", F.coalesce("is_drained", F.lit(False)))
        .withColumn("promotions", F.coalesce("promotions", F.array().cast(_OF_QUEUE)))
        .withColumn("disturbances", F.coalesce("disturbances", F.array().cast(_OF_QUEUE)))
    )
