"""Nothing is left of a cluster whose beginner was killed, or that could not begin."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.harm import marked
from chaos.harm.journal import Journal, heal
from chaos.harm.undoers import UNDOERS
from chaos.plan.model import ClusterPlan
from chaos.targets import rabbitmq
from chaos.targets.target import TargetError
from tests.support.begin_target import BEGUN, TARGETS
from tests.support.left_over import assert_nothing_left, listening, mark_of, mounts_in

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("kind", sorted(TARGETS))
def test_what_was_begun_is_healed_away(kind: str, tmp_path: Path) -> None:
    if kind == "rabbitmq" and (why := rabbitmq.why_none()):
        pytest.skip(why)
    command = [sys.executable, "-m", "tests.support.begin_target", kind, str(tmp_path)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as beginner:
            assert beginner.stdout is not None
            try:
                assert beginner.stdout.readline().strip() == BEGUN
            finally:
                beginner.kill()
        mark, mounts = mark_of(tmp_path), mounts_in(tmp_path)
        ports = listening(mark)
        assert len(ports) >= 4, "nodes outlive who began them"
        assert [each.problem for each in heal(tmp_path, UNDOERS)] == [""] * (1 + len(mounts))
        assert_nothing_left(tmp_path, mark, ports)
    finally:
        heal(tmp_path, UNDOERS)


@pytest.mark.parametrize("kind", sorted(TARGETS))
async def test_what_cannot_begin_leaves_nothing(kind: str, tmp_path: Path) -> None:
    if kind == "rabbitmq" and (why := rabbitmq.why_none()):
        pytest.skip(why)
    with Journal(tmp_path) as journal:
        target = TARGETS[kind](tmp_path / "cluster", journal)
        with pytest.raises(TargetError, match="hart_beat"):
            await target.start(ClusterPlan(settings={"hart_beat": 5}), target.capabilities)
        told = map(json.loads, journal.path.read_text().splitlines())
        [mark] = [line["told"]["mark"] for line in told if line.get("how") == marked.HOW]
        assert_nothing_left(tmp_path, mark, ports=[])
        await target.close()
