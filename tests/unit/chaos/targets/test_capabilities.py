"""What a target says that it can do, and why it cannot do the rest; what it refuses before it has made anything."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.harm import small_disks
from chaos.harm.journal import Journal, outstanding
from chaos.harm.toxiproxy import ENVIRONMENT as TOXIPROXY_VARIABLE
from chaos.plan.actions import Capability
from chaos.plan.model import ClusterPlan
from chaos.targets.local import LocalTarget
from chaos.targets.machine import NODES_MAX
from chaos.targets.rabbitmq import PROGRAMS_VARIABLE, RabbitMqTarget
from chaos.targets.target import Target, TargetError

LINES = {Capability.NODE_LINES, Capability.CLIENT_LINES}


@pytest.fixture(autouse=True)
def mounts_are_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is mounted to find out."""
    monkeypatch.setattr(small_disks, "why_none", lambda: "")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path) as journal:
        yield journal


@pytest.fixture
def local(tmp_path: Path, journal: Journal) -> LocalTarget:
    return LocalTarget(tmp_path / "cluster", journal)


@pytest.fixture
def rabbitmq(tmp_path: Path, journal: Journal) -> RabbitMqTarget:
    return RabbitMqTarget(tmp_path / "cluster", journal)


@pytest.fixture(params=["local", "rabbitmq"])
def target(request: pytest.FixtureRequest) -> Target:
    made: Target = request.getfixturevalue(request.param)
    return made


def test_everything_is_offered_or_explained(target: Target) -> None:
    assert target.capabilities | target.missing.keys() == set(Capability)
    assert not target.capabilities & target.missing.keys()
    assert all(target.missing.values())


@pytest.mark.parametrize("how", ["no such file", "in PATH"])
def test_without_toxiproxy_lines_are_not_offered(
    how: str, local: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "in PATH":
        monkeypatch.delenv(TOXIPROXY_VARIABLE, raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        monkeypatch.setenv(TOXIPROXY_VARIABLE, str(tmp_path / "nothing"))
    assert not LINES & local.capabilities
    assert all("make toxiproxy" in local.missing[each] for each in LINES)


def test_with_toxiproxy_they_are(local: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "toxiproxy-server"
    program.touch(mode=0o700)
    monkeypatch.setenv(TOXIPROXY_VARIABLE, str(program))
    assert local.capabilities >= LINES


def test_what_the_machine_lacks_is_not_offered(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_disks, "why_none", lambda: "nobody may mount")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not {Capability.FILL_DISK, Capability.SLOW_DISK} & target.capabilities
    if target.capabilities:
        assert target.missing[Capability.FILL_DISK] == "nobody may mount"
        assert "compiler" in target.missing[Capability.SLOW_DISK]


async def test_without_rabbitmq_nothing_is_offered(
    rabbitmq: RabbitMqTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PROGRAMS_VARIABLE, str(tmp_path))
    assert rabbitmq.capabilities == set()
    assert "install the package rabbitmq-server" in rabbitmq.missing[Capability.KILL]
    with pytest.raises(TargetError, match="install the package rabbitmq-server"):
        await rabbitmq.start(ClusterPlan())
    assert not (tmp_path / "cluster").exists()


async def test_what_it_cannot_do_is_refused_before_anything_is_made(local: LocalTarget, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="taps: these nodes do not tell"):
        await local.start(ClusterPlan(), {Capability.KILL, Capability.TAPS})
    with pytest.raises(TargetError, match=f"{NODES_MAX + 1} nodes"):
        await local.start(ClusterPlan(nodes=NODES_MAX + 1))
    assert not (tmp_path / "cluster").exists()
    assert outstanding(tmp_path) == []
