"""A mirror that was dropped while only its master could not reach it, and what becomes of its place."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.metadata.commands import AddMirror
from cluster.runtime.metadata_group import MetadataGroup
from node.ids import NodeName
from tests.support.sim_lab import NAMES, Lab


def test_a_mirror_that_could_not_be_taken_back_at_once_is_taken_back_later(
    founded_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is offered to it just when no majority can decide."""
    lab = founded_lab
    lab.set_policy("n1", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    lab.declare("n1", "q")
    lab.until_converged()
    if (leader := lab.leader()) != "n3":
        lab.cluster.nodes[leader].raft.transfer(NodeName("n3"))
        lab.pass_time(1)
    assert lab.leader() == "n3"
    lab.cluster.cut("n1", "n2")
    lab.cluster.cut("n2", "n1")
    lab.pass_time(15)
    record = lab.record("n3", "q")
    assert record is not None
    assert (record.master, record.mirrors) == ("n1", ("n3",))
    change, offers = MetadataGroup.change, []

    async def isolate_all(group: MetadataGroup, command: Any) -> Any:
        if isinstance(command, AddMirror):
            offers.append(command)
            if len(offers) == 1:
                for name in NAMES:
                    lab.cluster.isolate(name)
        return await change(group, command)

    monkeypatch.setattr(MetadataGroup, "change", isolate_all)
    lab.cluster.cut_end("n1", "n2")
    lab.cluster.cut_end("n2", "n1")
    while not offers:
        lab.pass_time(0.1)
    lab.pass_time(40)
    for name in NAMES:
        lab.cluster.isolate_end(name)
    lab.pass_time(30)
    record = lab.record("n3", "q")
    assert record is not None
    assert sorted(record.mirrors) == ["n2", "n3"]
    lab.until_converged()
