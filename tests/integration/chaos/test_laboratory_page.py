"""What docs/laboratory.md tells a newcomer to do is done: with a RabbitMQ that runs already."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from chaos.harm import marked
from chaos.harm.journal import Journal
from chaos.judge.verdict import ExitCode, Verdict
from chaos.plan.model import ClusterPlan
from chaos.suite.results import read
from chaos.targets import rabbitmq
from chaos.targets.rabbitmq import RabbitMqTarget
from tests.support.left_over import mark_of
from tests.support.page_commands import blocks, commands

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "laboratory.md"


def listening_on(mark: str, port: int) -> list[int]:
    """Ids of processes with the mark."""
    found = []
    for process in marked.processes_of(mark):
        with suppress(psutil.NoSuchProcess):
            ports = [each.laddr.port for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
            found += [process.pid] if port in ports else []
    return found


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[dict[str, str]]:
    """What of the page is another here: the port, and how this node, and no other, is stopped."""
    if why := rabbitmq.why_none():
        pytest.skip(why)
    directory = tmp_path / "rabbit"
    directory.mkdir()
    with Journal(directory) as journal:
        target = RabbitMqTarget(directory / "cluster", journal)
        await target.start(ClusterPlan(nodes=1))
        try:
            await target.wait_ready()
            [endpoint] = target.endpoints
            address = endpoint.url.rpartition("@")[2].rstrip("/")
            [beam] = listening_on(mark_of(directory), int(address.rpartition(":")[2]))
            yield {
                "127.0.0.1:5672": address,
                "sudo pkill -STOP beam.smp": f"kill -STOP {beam}",
                "sudo pkill -CONT beam.smp": f"kill -CONT {beam}",
            }
        finally:
            await target.close()


def test_every_command_of_the_page(broker: dict[str, str], tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    warren = bin_directory / "warren"
    warren.write_text(f'#!/bin/sh\nexec {sys.executable} -m chaos.cli "$@"\n', encoding="utf-8")
    warren.chmod(0o755)
    for block in blocks(PAGE):
        if block.name:
            text = block.text
            for shown, there in broker.items():
                text = text.replace(shown, there)
            (here / block.name).write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
    }
    lines = commands(PAGE)
    assert len(lines) >= 6
    # As in one shell, in which any command that fails ends it.
    script = "\n".join(["set -eux", *lines])
    ended = subprocess.run(
        ["bash", "-c", script], cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == ExitCode.PASS, ended.stdout[-4000:] + ended.stderr[-4000:]
    results = read(here / "chaos-runs")
    assert [(result.target, result.seed, result.verdict) for result in results] == [
        ("local", 1, Verdict.PASS),
        *(("my-rabbit", seed, Verdict.PASS) for seed in (2, 3, 4)),
    ]
    assert (here / "chaos-runs" / "MY1-2" / "report.html").exists()
    assert "Precision: 1.000" in ended.stdout
