"""The Spark session of an analysis, and the Java that it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pyspark.sql import SparkSession

#: Oldest Java that Spark 4 runs on.
MIN_JAVA = 17
#: A run of some hundred thousand messages fits one partition several times over; more partitions only cost time.
SHUFFLE_PARTITIONS = 4
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


class JavaMissingError(Exception):
    """There is no Java that Spark can use; the text says what to do."""


def find_java() -> Path:
    """The ``java`` that Spark will start: of JAVA_HOME if set, else of PATH. Raises `JavaMissingError`."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not os.access(found, os.X_OK):
        where = f"JAVA_HOME is {home}, but {found} is not there" if home else "there is no java in PATH"
        raise JavaMissingError(
            f"the analysis runs on PySpark and needs Java {MIN_JAVA} or newer; {where}. "
            f"Install a JRE (Debian: openjdk-{MIN_JAVA}-jre-headless) or set JAVA_HOME."
        )
    printed = subprocess.run([found, "-version"], capture_output=True, text=True, check=False, timeout=30).stderr
    if (version := java_version(printed)) is None or version < MIN_JAVA:
        raise JavaMissingError(
            f"the analysis runs on PySpark and needs Java {MIN_JAVA} or newer; {found} is {printed.splitlines()[:1]}. "
            f"Set JAVA_HOME to a newer one."
        )
    return Path(found)


def java_version(printed: str) -> int | None:
    """Major version in the output of ``java -version``; ``1.8`` means 8."""
    match = _VERSION.search(printed)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def open_session(master_url: str | None = None) -> SparkSession:
    """A quiet session: ``local[*]`` unless ``master_url`` names a cluster. The caller stops it."""
    find_java()
    is_local = master_url is None or master_url.startswith("local")
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
