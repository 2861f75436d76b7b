"""Many seeds of a case on several processes, as ``python -m tests.conformance.ha`` runs them."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.integration
def test_seeds_are_run_by_processes_side_by_side() -> None:
    command = [sys.executable, "-m", "tests.conformance.ha", "--case", "N6", "--seeds", "1..6", "--jobs", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert " 0 failed" in ended.stdout.splitlines()[-1]
