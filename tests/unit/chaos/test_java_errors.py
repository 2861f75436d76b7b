"""What Java writes to standard error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from chaos.java import JavaErrors

JAVA = """
import sys
print("WARNING: Using incubator modules: jdk.incubator.vector", file=sys.stderr)
print("java.lang.OutOfMemoryError", file=sys.stderr, flush=True)
sys.stdin.read()
print("and its last words", file=sys.stderr)
"""


@pytest.mark.integration
def test_errors_are_shown_at_the_end_and_what_is_none_is_not(capfd: pytest.CaptureFixture[str]) -> None:
    errors = JavaErrors()
    with errors.caught():
        java = subprocess.Popen([sys.executable, "-c", JAVA], stdin=subprocess.PIPE)
    print("our own", file=sys.stderr)
    java.communicate()
    assert capfd.readouterr().err == "our own\n"
    errors.show()
    assert capfd.readouterr().err == "java.lang.OutOfMemoryError\nand its last words\n"
