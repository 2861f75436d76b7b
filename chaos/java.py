"""The Java that Spark needs: which it is, how it is started, how it ends when it is interrupted."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import psutil

#: Oldest Java that Spark 4 runs on.
MIN_JAVA = 17
_LOG_SETTINGS = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""
#: Spark's scripts ask for this module.
_NO_ERROR = "WARNING: Using incubator modules"
#: Where Py4J reports a call to Java that broke: "" is the root logger.
_PY4J_LOGGERS = ("", "py4j.clientserver", "py4j.java_gateway")
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


@contextmanager
def java_ended_by_interrupt() -> Iterator[Callable[[], bool]]:
    """Kill the Java process that was started within, if that is interrupted, and raise `KeyboardInterrupt`.

    What it gives tells whether there was an interrupt.

    Left to itself it ends when its standard input is closed; but one that is just starting then never ends (the
    directory that it wants to write its port to is gone), and one that computes goes on for a while.

    The interrupt breaks the call to Java that it hits, and the clean-up on the way out may call Java again and fail
    with an error of its own, or the interrupt hits a finaliser, which swallows it. So it is remembered here.
    """
    before = _java_children()
    is_hit = False
    # Where SIGINT is ignored, in the background of a script, it stays so.
    outer = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_hit
        is_hit = True
        handler = outer[signal.Signals(number)]
        assert callable(handler), "only such are replaced"
        handler(number, frame)

    # Py4J logs an interrupted call and its broken connection, each with a traceback, although it raises as well.
    loggers = [logging.getLogger(name) for name in _PY4J_LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_no_broken_call)
    for number, handler in outer.items():
        if callable(handler):
            signal.signal(number, interrupt)
    try:
        yield lambda: is_hit
        if is_hit:
            raise KeyboardInterrupt
    except BaseException as error:
        if not is_hit:
            raise
        for process in _java_children() - before:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if isinstance(error, KeyboardInterrupt):
            raise
        raise KeyboardInterrupt from error
    finally:
        for number, handler in outer.items():
            signal.signal(number, handler)
        for logger in loggers:
            logger.removeFilter(_is_no_broken_call)


def _is_no_broken_call(record: logging.LogRecord) -> bool:
    return not str(record.msg).endswith(("while sending command.", "while shutting down connection"))


def _java_children() -> set[psutil.Process]:
    """Spark's Java processes below this one, the script that becomes one included."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if any("spark-submit" in part or "SparkSubmit" in part for part in process.cmdline()):
                found.add(process)
    return found


class JavaErrors:
    """What the Java process that is begun within `caught` writes to standard error, for as long as it lives.

    A line that Spark's own options make it write each time is no error; the others are shown by `show`.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `show` closes it

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Our own standard error is back at the end; a process that was begun keeps the other."""
        sys.stderr.flush()
        own = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(own, 2)
            os.close(own)

    def show(self) -> None:
        """At the end."""
        with self._file:
            self._file.seek(0)
            for line in self._file.read().decode(errors="replace").splitlines():
                if line and not line.startswith(_NO_ERROR):
                    print(line, file=sys.stderr)


@contextmanager
def java_settings(java_options: str) -> Iterator[None]:
    """A configuration directory for the Java process that Spark starts: these cannot be set once it runs."""
    with tempfile.TemporaryDirectory(prefix="warren-spark-") as directory:
        Path(directory, "log4j2.properties").write_text(_LOG_SETTINGS, encoding="utf-8")
        Path(directory, "spark-defaults.conf").write_text(
            f"spark.driver.extraJavaOptions {java_options}\n" if java_options else "", encoding="utf-8"
        )
        local_ip = os.environ.get("SPARK_LOCAL_IP")
        os.environ["SPARK_CONF_DIR"] = directory
        os.environ["SPARK_LOCAL_IP"] = local_ip or "127.0.0.1"
        try:
            yield
        finally:
            del os.environ["SPARK_CONF_DIR"]
            if local_ip is None:
                del os.environ["SPARK_LOCAL_IP"]
