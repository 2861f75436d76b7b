"""What gRPC's core writes becomes lines of the log."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.real_world.native_lines import log_native_line


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        (
            "E0000 00:00:1732312345.123456   12345 chttp2_transport.cc:1234] ipv4:127.0.0.1:5: GOAWAY",
            logging.ERROR,
            "ipv4:127.0.0.1:5: GOAWAY (chttp2_transport.cc:1234)",
        ),
        ("I1122 21:10:54.000001 7 fork_posix.cc:75] other threads", logging.INFO, "other threads (fork_posix.cc:75)"),
    ],
)
def test_a_line_of_abseil_is_logged(line: str, level: int, text: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert log_native_line(line)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(level, text)]


def test_other_lines_are_not(caplog: pytest.LogCaptureFixture) -> None:
    assert log_native_line("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR")
    assert not log_native_line("Fatal Python error: Segmentation fault")
    assert not log_native_line("")
    assert not caplog.records


PROGRAM = """
import logging, os, sys, time
from cluster.real_world.native_lines import capture_native_lines
capture_native_lines()
logging.basicConfig(level="INFO", format="OURS %(message)s", filename=sys.argv[1])
os.write(2, b"E0000 00:00:1.5 7 a.cc:1] from the core\\nnot from the core\\n")
print("from Python", file=sys.stderr)
for _ in range(1000):
    if "core" in open(sys.argv[1]).read():
        break
    time.sleep(0.01)
raise SystemExit("the end")
"""


@pytest.mark.integration
def test_in_a_process_the_core_writes_to_the_log_and_everybody_else_where_he_did(tmp_path: Path) -> None:
    path = tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert path.read_text() == "OURS from the core (a.cc:1)\n"
    assert sorted(run.stderr.splitlines()) == ["from Python", "not from the core", "the end"]
