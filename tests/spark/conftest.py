"""One Spark session for all tests of the analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from chaos.analysis.schemas import EVENTS
from chaos.analysis.session import open_session
from chaos.history import Event, write_part

EventFrame = Callable[[Sequence[Event]], DataFrame]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with open_session("local[2]", is_small=True) as session:
        yield session


@pytest.fixture
def event_frame(spark: SparkSession, tmp_path: Path) -> EventFrame:
    """Events by way of a Parquet part, as the analysis of a run reads them."""
    numbers = count()

    def build(events: Sequence[Event]) -> DataFrame:
        path = tmp_path / f"part-{next(numbers):06d}.parquet"
        write_part(path, ("run", 1, "test"), list(events))
        return spark.read.schema(EVENTS).parquet(path.as_uri())

    return build
