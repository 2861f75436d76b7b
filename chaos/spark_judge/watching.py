"""Judging a record while it is written: a stream over its parts as they appear.

**What is new is read once.** Each micro-batch is the parts that appeared since the one before. Of its rows a row for
each message is made (`rollup.partial`), which goes into a file beside; the numbers of events and what is said of queues
are kept in memory. All three can be put together with those of other batches, in any order.

**A look** (`Watch.look`) puts them together and judges what is there, by the same code as a whole record. Only messages
that are not plain are read again from the record. So a look costs as much as there are messages, and no more rows are
read for it than are new; once there are many files beside, they are put together for good.

What is not there yet is not missing: of a process that has not come to its end nothing is concluded from absences
(`chaos.judge`), and what might still be missed is told of as what is at risk. When all processes have ended, and all
parts were taken, a look finds what the judge of the whole record finds.

A batch that is done again, as Spark may do behind a failure, takes the place of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from chaos.judge.findings import VIOLATIONS, Finding, Name, RunFacts
from chaos.record.kinds import REMOVALS, Kind
from chaos.record.schema import EVENTS_DIRECTORY, Event
from chaos.spark_judge import rows as telling
from chaos.spark_judge.expressions import has, is_confirmed
from chaos.spark_judge.figures import rows_told
from chaos.spark_judge.judge import judged_further
from chaos.spark_judge.record import EVENTS, Extent, Notices, Numbers, read_events, read_notices, read_numbers
from chaos.spark_judge.rollup import merged, partial
from chaos.spark_judge.session import fit

#: Between two micro-batches, if there is anything new.
INTERVAL = "1 second"
#: Of a record that is there already when somebody begins to watch.
PARTS_PER_BATCH = 64
#: Files beside that are read at each look.
PARTIALS_MAX = 32


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What a record shows so far."""

    rows: int
    messages: int
    confirmed: int
    delivered: int
    #: What may still be lost, in words: how many.
    at_risk: Mapping[str, int]
    counts: Mapping[Name, int]
    examples: Mapping[Name, Sequence[Finding]]
    #: Processes that have not come to their end, or of which something is missing.
    incomplete: frozenset[int]

    @property
    def violations(self) -> dict[Name, int]:
        return {name: count for name, count in self.counts.items() if name in VIOLATIONS}


@dataclass(frozen=True, slots=True)
class _Taken:
    """Of one batch, or of several that were put together."""

    partial_uri: str
    numbers: Mapping[int, Numbers]
    notices: Notices


class Watch:
    """Of one run. Use it as a context: the stream ends with it."""

    def __init__(self, spark: SparkSession, run_uri: str, work_uri: str, facts: Callable[[], RunFacts]) -> None:
        """``work_uri``: an empty directory, for as long as this is in use. ``facts``: as they are known by now."""
        self._spark = spark
        self._run_uri = run_uri
        self._work_uri = work_uri
        self._facts = facts
        self._query: StreamingQuery | None = None
        #: By the number of the batch; negative for what was put together.
        self._taken: dict[int, _Taken] = {}
        self._compactions = 0
        # Batches come on a thread of their own.
        self._lock = Lock()

    # --- the stream

    def __enter__(self) -> Watch:
        # A stream keeps the settings with which it began.
        fit(self._spark, 0)
        parts = (
            self._spark.readStream.schema(EVENTS)
            .option("pathGlobFilter", "*.parquet")
            .option("recursiveFileLookup", "true")
            .option("maxFilesPerTrigger", PARTS_PER_BATCH)
            .parquet(f"{self._run_uri}/{EVENTS_DIRECTORY}")
        )
        self._query = (
            parts.writeStream.foreachBatch(self.take)
            .option("checkpointLocation", f"{self._work_uri}/checkpoint")
            .trigger(processingTime=INTERVAL)
            .start()
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._query is not None:
            self._query.stop()

    def take_all(self) -> None:
        """Until everything was taken that is there now. Raises what the stream has met."""
        assert self._query is not None, "the stream has begun"
        self._query.processAllAvailable()

    def check(self) -> None:
        """Raise what the stream has met."""
        assert self._query is not None, "the stream has begun"
        if (error := self._query.exception()) is not None:
            raise error

    def take(self, rows: DataFrame, number: int) -> None:
        """A batch of new rows."""
        rows = rows.persist()
        try:
            uri = f"{self._work_uri}/partial-{number}"
            partial(rows).write.mode("overwrite").parquet(uri)
            taken = _Taken(uri, read_numbers(rows, telling.is_telling_row()), read_notices(rows))
        finally:
            rows.unpersist()
        with self._lock:
            self._taken[number] = taken

    # --- looks

    def look(self) -> Glimpse | None:
        """Judge what was taken. None if nothing was."""
        with self._lock:
            taken = dict(self._taken)
        if not taken:
            return None
        if len(taken) > PARTIALS_MAX:
            taken = self._put_together(taken)
        numbers, notices = _together(taken.values())
        facts = self._facts()
        extent = Extent.of(numbers, facts)
        rolled = merged(self._spark.read.parquet(*(each.partial_uri for each in taken.values())))
        with judged_further(read_events(self._spark, self._run_uri), rolled, facts, extent, notices) as found:
            counted = found.counted()
            sums = found.messages.agg(*(F.count_if(told).alias(name) for name, told in _told().items())).head()
        assert sums is not None, "an aggregation without groups has one row"
        confirmed, delivered, *at_risk = sums
        return Glimpse(
            extent.rows,
            found.messages_count,
            confirmed,
            delivered,
            dict(zip(list(_told())[2:], at_risk, strict=True)),
            counted.counts,
            counted.examples,
            extent.incomplete,
        )

    def rows_of(self, message: int) -> list[Event]:
        """Everything that is in the record by now of a message, in all its attempts."""
        return rows_told(read_events(self._spark, self._run_uri), [message])

    def _put_together(self, taken: dict[int, _Taken]) -> dict[int, _Taken]:
        self._compactions += 1
        uri = f"{self._work_uri}/together-{self._compactions}"
        partials = self._spark.read.parquet(*(each.partial_uri for each in taken.values()))
        merged(partials).drop("is_plain").write.mode("overwrite").parquet(uri)
        one = {-self._compactions: _Taken(uri, *_together(taken.values()))}
        with self._lock:
            newer = {number: each for number, each in self._taken.items() if number not in taken}
            self._taken = one | newer
        return one


def _together(taken: Iterable[_Taken]) -> tuple[dict[int, Numbers], Notices]:
    numbers: dict[int, Numbers] = {}
    notices = Notices()
    for each in taken:
        notices.merge(each.notices)
        for process, its in each.numbers.items():
            numbers[process] = numbers[process].with_others(its) if process in numbers else its
    return numbers, notices


def _told() -> dict[str, Column]:
    """What is counted of messages; from the third on what may still be lost."""
    is_gone = has(Kind.LEFT, *REMOVALS)
    return {
        "confirmed": is_confirmed(),
        "delivered": has(Kind.DELIVER),
        "without an answer": has(Kind.PUBLISH) & ~has(Kind.CONFIRM, Kind.REFUSE, Kind.RETURN, Kind.UNRESOLVED),
        "confirmed, not delivered": is_confirmed() & ~has(Kind.DELIVER) & ~is_gone,
        "delivered, not settled": has(Kind.DELIVER) & ~F.col("is_settled") & ~is_gone,
    }
