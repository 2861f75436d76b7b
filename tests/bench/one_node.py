"""One node for a measurement: its own directory, a port of its own, stopped at the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OneNode:
    """Started with ``warren cluster``; ``settings`` are lines of the configuration."""

    def __init__(self, directory: str, settings: list[str]) -> None:
        self._directory = directory
        self._settings = [setting.replace(" = ", "=") for setting in settings]
        self.port = free_port()
        self.pid = 0

    def __enter__(self) -> OneNode:
        command = ["up", "--nodes", "1", "--dir", self._directory, "--amqp-port", str(self.port)]
        for setting in self._settings:
            command += ["--set", setting]
        self._warren(*command)
        self.pid = int(json.loads((Path(self._directory) / "n1.process").read_text())["pid"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warren("down", "--dir", self._directory)

    def _warren(self, *arguments: str) -> None:
        subprocess.run(
            [sys.executable, "-m", "chaos.cli", "cluster", *arguments],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )

    def control(self, *arguments: str) -> str:
        """Output of a ``warrenctl`` command."""
        tool = Path(sys.executable).with_name("warrenctl")
        done = subprocess.run(
            [str(tool), "-q", *arguments],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "WARREN_CLUSTER_DIR": self._directory},
        )
        return done.stdout

    def bytes_written(self) -> int:
        """Bytes that the node has sent to the storage layer so far (Linux)."""
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return int(fields["write_bytes"])
