"""The Spark session of an analysis."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from chaos.java import find_java, java_ended_by_interrupt, java_settings

#: A run of some hundred thousand messages fits one partition several times over; more partitions only cost time.
SHUFFLE_PARTITIONS = 4
#: Java options for runs that are over in seconds: compile fast rather than well.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@contextmanager
def open_session(master_url: str | None = None, *, is_small: bool = False) -> Iterator[SparkSession]:
    """A quiet session: ``local[*]`` unless ``master_url`` names a cluster; stopped at the end.

    ``is_small`` makes the start and the many short plans of a small run faster, and a large one slower. It counts only
    for the first session of a process, as the Java machine stays. An interrupt ends that machine, and with it the
    use of Spark in this process.
    """
    find_java()
    is_local = master_url is None or master_url.startswith("local")
    with ExitStack() as cleanup:
        if is_local and "SPARK_CONF_DIR" not in os.environ:
            cleanup.enter_context(java_settings(_QUICK_JAVA if is_small else ""))
        with java_ended_by_interrupt() as was_interrupted:
            on_interrupt = signal.getsignal(signal.SIGINT)
            spark = _build(master_url, is_local=is_local)
            # Spark's own handler calls Java in the middle of a call to Java, which fails noisily.
            signal.signal(signal.SIGINT, on_interrupt)
            try:
                yield spark
            finally:
                if not was_interrupted():
                    spark.stop()


def _build(master_url: str | None, *, is_local: bool) -> SparkSession:
    builder = SparkSession.builder.appName("warren chaos analysis").master(master_url or "local[*]")
    options = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
    }
    if is_local:
        options |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.default.parallelism": str(SHUFFLE_PARTITIONS),
            # Plans are many and small: compiling each to Java code and re-optimising it costs more than it saves.
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
        }
    for key, value in options.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
