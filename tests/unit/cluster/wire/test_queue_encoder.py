"""The same ops for several mirrors are encoded once per turn."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.mirroring.messages import HorizonOp, MirrorOp, Ops
from cluster.wire import convert, convert_mirroring, mirroring_pb2
from node.ids import Epoch, QueueId, SeqId


def test_ops_are_encoded_once_until_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Sequence[MirrorOp]] = []

    def count(ops: Sequence[MirrorOp]) -> mirroring_pb2.OpList:
        encoded.append(ops)
        return mirroring_pb2.OpList()

    monkeypatch.setattr(convert_mirroring, "ops_to_wire", count)
    encoder = convert.QueueEncoder()
    ops, equal_ops = (HorizonOp(SeqId(5)),), (HorizonOp(SeqId(int("5"))),)
    for attach_id, sent in ((1, ops), (2, ops), (3, equal_ops)):
        encoder.encode(Ops(QueueId(1), Epoch(1), attach_id, 1, sent))
    assert [id(sent) for sent in encoded] == [id(ops), id(equal_ops)]
    encoder.forget()
    encoder.encode(Ops(QueueId(1), Epoch(1), 4, 1, ops))
    assert len(encoded) == 3
