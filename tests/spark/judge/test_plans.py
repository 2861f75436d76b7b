"""What Spark will do with a hundred million rows is seen in its plans, without any."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from chaos.spark_judge.order import late_messages
from chaos.spark_judge.record import EVENTS
from chaos.spark_judge.rollup import plain_messages, rollup
from chaos.spark_judge.session import fit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]


@pytest.fixture
def events(spark: SparkSession, tmp_path: Path) -> DataFrame:
    fit(spark, 100_000_000)
    return spark.read.schema(EVENTS).parquet(tmp_path.as_uri())


def operators(frame: DataFrame) -> Counter[str]:
    """How often each occurs in the physical plan."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return Counter(re.findall(r"^[\s:+*()\d-]*([A-Z]\w+)", plan, re.MULTILINE))


def test_the_rollup_aggregates_in_place_and_shuffles_once(events: DataFrame) -> None:
    """Not by sorting, and not with objects."""
    found = operators(rollup(events))
    assert found["HashAggregate"] == 2
    assert found["Exchange"] == 1
    assert not {name for name in found if name.endswith("Aggregate")} - {"HashAggregate"}


def test_both_questions_of_order_are_answered_after_one_shuffle(events: DataFrame) -> None:
    found = operators(late_messages(plain_messages(rollup(events)), slack_us=1))
    assert found["Window"] == 2
    assert found["Exchange"] == 2, "one of them is the rollup's"
