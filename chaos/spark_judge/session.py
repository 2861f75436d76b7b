"""A Spark session for a judgement. Its settings follow the size of what is judged, as far as it is known when."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from math import ceil

import psutil
from pyspark.sql import SparkSession

from chaos.java import JavaErrors, find_java, java_ended_by_interrupt, java_settings

#: Compile fast rather than well: for what is over in seconds.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Throughput counts, pauses do not.
_STEADY_JAVA = "-XX:+UseParallelGC"
#: Rows below which compiling a plan to Java code costs more than it saves.
COMPILED_ROWS_MIN = 500_000
#: Rows of a record for each partition of a shuffle: its part of the rollup is some 20 MB then.
ROWS_PER_PARTITION = 1_000_000
#: Of the machine's memory, the rest is for the files' pages and for who else is there.
_MEMORY_SHARE = 0.5
_MEMORY_MIN_MB, _MEMORY_MAX_MB = 512, 6_144


@contextmanager
def open_session(
    master_url: str | None = None, *, is_small: bool = False, memory_mb: int | None = None
) -> Iterator[SparkSession]:
    """A quiet session, ``local[*]`` unless ``master_url`` names a cluster; stopped at the end.

    ``is_small`` (less than `COMPILED_ROWS_MIN`) and ``memory_mb`` count for the first session of a process, as the Java
    machine stays. An interrupt ends that machine, and with it the use of Spark in this process.
    """
    find_java()
    is_local = master_url is None or master_url.startswith("local")
    with ExitStack() as cleanup:
        if is_local and "SPARK_CONF_DIR" not in os.environ:
            cleanup.enter_context(java_settings(_QUICK_JAVA if is_small else _STEADY_JAVA))
        errors = JavaErrors()
        cleanup.callback(errors.show)
        with java_ended_by_interrupt() as was_interrupted:
            on_interrupt = signal.getsignal(signal.SIGINT)
            with errors.caught():
                spark = _build(master_url, memory_mb or _memory_mb(), is_local=is_local)
            # Spark's own handler calls Java in the middle of a call to Java, which fails noisily.
            signal.signal(signal.SIGINT, on_interrupt)
            try:
                yield spark
            finally:
                if not was_interrupted():
                    spark.stop()


def fit(spark: SparkSession, rows: int) -> None:
    """Set what can be set while a session runs, for a record of so many rows."""
    is_small = is_quick(rows)
    for key, value in {
        "spark.sql.shuffle.partitions": ceil(rows / ROWS_PER_PARTITION) or 1,
        "spark.sql.codegen.wholeStage": not is_small,
        # It looks at each shuffle before it plans what follows: a price for each that only large ones pay back.
        "spark.sql.adaptive.enabled": not is_small,
    }.items():
        spark.conf.set(key, str(value).lower())


def _memory_mb() -> int:
    share = int(psutil.virtual_memory().available * _MEMORY_SHARE) >> 20
    return min(max(share, _MEMORY_MIN_MB), _MEMORY_MAX_MB)


def is_quick(rows: int) -> bool:
    """True of a record that is judged before what makes large ones fast has paid back."""
    return rows < COMPILED_ROWS_MIN


def _build(master_url: str | None, memory_mb: int, *, is_local: bool) -> SparkSession:
    builder = SparkSession.builder.appName("warren judge").master(master_url or "local[*]")
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # Where in Python each expression was written: asked for three times as often as the expressions are made.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # All that one judgement compiles, for the next.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # An overflow is a mistake, not a null.
        "spark.sql.ansi.enabled": "true",
    }
    if is_local:
        options |= {
            "spark.driver.memory": f"{memory_mb}m",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
