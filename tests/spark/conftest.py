"""One Spark session for all tests of the analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from pyspark.sql import DataFrame, SparkSession

from chaos.analysis.schemas import EVENTS
from chaos.analysis.session import open_session
from chaos.history import Event

EventFrame = Callable[[Sequence[Event]], DataFrame]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with open_session("local[2]", is_small=True) as session:
        yield session


@pytest.fixture
def event_frame(spark: SparkSession) -> EventFrame:
    """Events as the analysis reads them from a run's Parquet files."""

    def build(events: Sequence[Event]) -> DataFrame:
        return spark.createDataFrame([("run", 1, "test", *event) for event in events], EVENTS)

    return build
