"""A checkout of the release before this one, whose nodes are to work together with ours."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

#: The last commit whose nodes speak protocol 2.
PREVIOUS_RELEASE = "5bdcdefe2765442632089e44682a05eb1ad4ebee"
ROOT = Path(__file__).parents[2]


def check_out_previous_release(directory: Path) -> Path:
    """Its tree in ``directory``. Skips the test where the history does not reach back so far (a shallow clone)."""
    try:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "--format=tar", PREVIOUS_RELEASE, "cluster", "node", "chaos"],
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"commit {PREVIOUS_RELEASE} of the release before is not in this checkout: {error}")
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(directory, filter="data")
    return directory
