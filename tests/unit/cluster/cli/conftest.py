"""`warrenctl` with a client that writes down what it is asked, in an empty directory and an empty environment."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cluster.cli.app import run
from cluster.cli.targets import Target
from cluster.transport.admin_client import AdminClient
from tests.support.recording_client import RecordingClient, Result, Tool


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("WARREN_NODE", "WARREN_CLUSTER_DIR", "WARREN_COOKIE", "WARREN_COOKIE_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def client() -> RecordingClient:
    return RecordingClient()


@pytest.fixture
def tool(client: RecordingClient, capsys: pytest.CaptureFixture[str]) -> Tool:
    def call(*arguments: str) -> Result:
        def connect(_target: Target, _timeout_s: float) -> AdminClient:
            return cast(AdminClient, client)

        exit_code = run(arguments, connect)
        return Result(int(exit_code), *capsys.readouterr())

    return call
