"""One judgement: what is read, what is kept meanwhile, and what is concluded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import reduce

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from chaos.judge.findings import ABSENCES, LOSSES, OF_THE_END, Finding, Name, Place, RunFacts
from chaos.judge.judgement import EXAMPLES_MAX, Judgement, messages_told
from chaos.spark_judge import classes, order, rows
from chaos.spark_judge.expressions import publisher_of, queue_of
from chaos.spark_judge.figures import figures, rows_told
from chaos.spark_judge.record import Extent, Notices, listing_table, queue_table, read_notices, read_numbers
from chaos.spark_judge.rollup import plain_messages, rollup
from chaos.spark_judge.session import fit, is_quick
from chaos.spark_judge.uncommon import is_unjudged, uncommon_keys, uncommon_messages

#: Keys of uncommon messages that are sent to whoever reads rows: some 100 MB. More of them are met in a shuffle.
SENT_KEYS_MAX = 4_000_000


@dataclass(frozen=True, slots=True)
class Counted:
    """Findings in few words: how many of each, where what is LOST was, and the first of each."""

    counts: dict[Name, int]
    places: dict[Place, int]
    examples: dict[Name, list[Finding]]


@dataclass(frozen=True, slots=True)
class Judged:
    """What is found of a record, as frames: computed when they are asked for."""

    extent: Extent
    messages_count: int
    unjudged_count: int
    #: The columns of a `Finding`, and ``place`` (null but for LOST).
    findings: DataFrame
    #: One row for each message that is judged: `rollup.MESSAGE`.
    messages: DataFrame
    #: One row for each message, and all rows.
    rolled: DataFrame
    events: DataFrame

    def counted(self, findings: DataFrame | None = None) -> Counted:
        """``findings``: where they have been written to, to compute them once."""
        row = F.struct("message", "process", "event")
        found = (
            (self.findings if findings is None else findings)
            .groupBy("name", "place")
            .agg(F.count("*").alias("count"), F.min_by(row, row, EXAMPLES_MAX).alias("examples"))
            .collect()
        )
        counts: Counter[Name] = Counter()
        examples: dict[Name, list[Finding]] = {}
        for group in found:
            name = Name(group["name"])
            counts[name] += group["count"]
            examples[name] = sorted([*examples.get(name, ()), *(Finding(name, *each) for each in group["examples"])])
        places = {Place(group["place"]): group["count"] for group in found if group["place"]}
        return Counted(dict(sorted(counts.items())), places, dict(sorted(examples.items())))

    def judgement(self, findings: DataFrame | None = None) -> Judgement:
        """In few words. ``findings``: as of `counted`."""
        findings = self.findings if findings is None else findings
        counted = self.counted(findings)
        has_lost = any(name in counted.counts for name in LOSSES)
        return Judgement(
            rows=self.extent.rows,
            messages=self.messages_count,
            unjudged_messages=self.unjudged_count,
            counts=counted.counts,
            places=counted.places,
            examples=counted.examples,
            pairs_compared=order.pairs_compared(self.messages),
            incomplete=self.extent.incomplete,
            figures=figures(self.events, self.rolled, findings if has_lost else None),
            told=rows_told(self.events, messages_told(counted.examples)),
        )


@contextmanager
def judged(events: DataFrame, facts: RunFacts) -> Iterator[Judged]:
    """Judge a record. What is computed for several questions is kept until the context is left."""
    notices = read_notices(events)
    extent = Extent.of(read_numbers(events, rows.is_telling_row()), facts)
    fit(events.sparkSession, extent.rows)
    with judged_further(events, rollup(events), facts, extent, notices) as found:
        yield found


@contextmanager
def judged_further(
    events: DataFrame, rolled: DataFrame, facts: RunFacts, extent: Extent, notices: Notices
) -> Iterator[Judged]:
    """Judge a record of which this much is known. ``rolled``: see `chaos.spark_judge.rollup`."""
    queues = queue_table(events.sparkSession, facts, notices)
    with ExitStack() as kept:

        def keep(frame: DataFrame) -> DataFrame:
            if keeps_no_plans:
                # Computed now, and how is forgotten: each further step would have to analyse and plan it again, which
                # takes longer than everything that is done with so few rows.
                return frame.localCheckpoint()
            frame.persist(StorageLevel.MEMORY_AND_DISK)
            kept.callback(frame.unpersist)
            return frame

        keeps_no_plans = is_quick(extent.rows)
        rolled = keep(rolled)
        sizes = rolled.agg(
            F.count("*").alias("messages"),
            F.coalesce(F.sum(is_unjudged().cast("int")), F.lit(0)).alias("unjudged"),
            F.coalesce(F.sum((~F.col("is_plain")).cast("int")), F.lit(0)).alias("uncommon"),
        ).head()
        assert sizes is not None, "an aggregation without groups has one row"
        keys = uncommon_keys(rolled)
        if sizes["uncommon"] <= SENT_KEYS_MAX:
            keys = F.broadcast(keys)
        uncommon = keep(uncommon_messages(events, keys, queues, facts.slack_us))
        messages = plain_messages(rolled).unionByName(uncommon.drop("requeues"))
        if keeps_no_plans:
            messages = keep(messages)
        late = keep(order.late_messages(messages, facts.slack_us))
        found = [
            classes.shown_by_messages(messages, queues),
            classes.copies(messages),
            order.misordered(late, queues),
            *_of_what_is_there(events, messages, queues, extent, notices),
        ]
        if facts.slack_us is not None:
            found.append(order.overtaken(late, messages, queues, facts.slack_us))
            found.append(order.requeue_overtaken(uncommon, messages, facts.slack_us))
        findings = reduce(DataFrame.unionByName, found).where(_is_concluded(facts, extent.incomplete))
        with_places = classes.with_places(findings, messages)
        yield Judged(extent, sizes["messages"], sizes["unjudged"], with_places, messages, rolled, events)


def _of_what_is_there(
    events: DataFrame, messages: DataFrame, queues: DataFrame, extent: Extent, notices: Notices
) -> Iterator[DataFrame]:
    """Questions that most records answer without being read again."""
    if extent.telling_rows:
        yield rows.shown_by_rows(events)
    if notices.promotions:
        yield rows.false_confirms(events, queues)
    if notices.listings:
        yield classes.replicas_lost(events, messages, listing_table(events.sparkSession, notices.listings))


def _is_concluded(facts: RunFacts, incomplete: frozenset[int]) -> Column:
    """False for what is concluded from an absence in an incomplete record, or from what was left where nobody knows."""
    known = [number for number, queue in enumerate(facts.queues, 1) if queue.is_known]
    is_of_the_end = F.col("name").isin(sorted(OF_THE_END))
    is_known = ~is_of_the_end | queue_of(F.col("message")).isin(known)
    if not incomplete:
        return is_known
    unheard = sorted({publisher for process in incomplete for publisher in facts.processes[process]})
    is_absence = F.col("name").isin(sorted(ABSENCES - {Name.PHANTOM}))
    is_phantom = F.col("name") == str(Name.PHANTOM)
    return is_known & ~is_absence & ~(is_phantom & publisher_of(F.col("message")).isin(unheard))
