"""What starting something loads: a broker is not the laboratory, and looks for none of its libraries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.cli import COMMANDS
from chaos.cluster_under_test.local import LocalCluster
from chaos.extras import EXTRA_MODULES


def modules_after(code: str) -> set[str]:
    """Names of what an interpreter has loaded after ``code``."""
    program = f"import sys\n{code}\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True)
    return set(result.stdout.split())


@pytest.mark.integration
@pytest.mark.parametrize(
    "start",
    [
        pytest.param("import cluster.__main__, cluster.daemon", id="python -m cluster"),
        pytest.param(
            "from chaos.cli import main; main.get_command(None, 'node'); import cluster.daemon", id="warren node"
        ),
    ],
)
def test_a_node_loads_nothing_of_the_laboratory(start: str) -> None:
    loaded = modules_after(start)
    assert "cluster.runtime.node_runtime" in loaded
    assert {name.partition(".")[0] for name in loaded} & EXTRA_MODULES == set()
    assert {name for name in loaded if name.startswith("chaos.")} <= {"chaos.cli", "chaos.extras"}


@pytest.mark.integration
def test_no_command_is_loaded_before_it_is_asked_for() -> None:
    loaded = modules_after("import chaos.cli")
    assert not {module for module, _ in COMMANDS.values()} & loaded


def test_a_local_cluster_starts_nodes_as_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def spawn(command: list[str], *_: object) -> None:
        started.append(command)
        raise OSError("no processes in this test")

    monkeypatch.setattr("chaos.cluster_under_test.local.spawn", spawn)
    cluster = LocalCluster.create(tmp_path, 1)
    with pytest.raises(OSError, match="no processes"):
        cluster._spawn("n1")
    assert started == [[sys.executable, "-m", "cluster", "--config", str(tmp_path / "n1.conf")]]
