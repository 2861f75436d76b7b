"""What native libraries write to the standard error of the process, as lines of the log.

gRPC's core logs by itself, in a format of its own, past Python and past the log file. So the descriptor becomes a pipe,
and a thread makes lines of the log of what it finds there; what is in no known format goes where it went before.
Python's own standard error is not affected, nor is the report of a crash: both keep the old descriptor. What a library
says while it ends the process is the one thing that may get lost.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import re
import sys
import threading

log = logging.getLogger("grpc")

STANDARD_ERROR = 2
#: ``E0000 00:00:1732312345.123456   12345 tcp_posix.cc:123] text``, as Abseil writes it; the date may be a real one.
_ABSEIL_LINE = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ([^\]\s]+:\d+)\] (.*)")
_LEVELS = {"I": logging.INFO, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
#: Abseil says this once, before its first line, and it concerns nobody.
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"


def log_native_line(line: str) -> bool:
    """Write ``line`` to the log if it is a native library's; false if it is not."""
    if line == _PREAMBLE:
        return True
    match = _ABSEIL_LINE.fullmatch(line)
    if match is None:
        return False
    log.log(_LEVELS[match[1]], "%s (%s)", match[3], match[2])
    return True


def capture_native_lines() -> None:
    """From now on, until the process ends. To be called before the log is configured, and before gRPC is used."""
    old = os.dup(STANDARD_ERROR)
    read_end, write_end = os.pipe()
    os.dup2(write_end, STANDARD_ERROR)
    os.close(write_end)
    sys.stderr = os.fdopen(os.dup(old), "w", buffering=1, errors="backslashreplace")
    faulthandler.enable(sys.stderr.fileno())
    threading.Thread(target=_read_lines, args=(read_end, old), name="native-lines", daemon=True).start()


def _read_lines(read_end: int, old: int) -> None:
    with os.fdopen(read_end, "rb") as source:
        for line in source:
            if not log_native_line(line.decode(errors="backslashreplace").rstrip("\r\n")):
                os.write(old, line)
