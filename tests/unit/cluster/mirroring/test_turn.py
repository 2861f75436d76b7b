"""How the operations of a turn become ops."""

from __future__ import annotations

from cluster.mirroring.messages import PublishOp
from cluster.mirroring.turn import Turn
from node.ids import SeqId
from tests.support.messages import make_message


def test_publishes_at_successive_positions_are_one_op_and_others_are_not() -> None:
    turn = Turn()
    turn.publish(SeqId(10), [make_message(1), make_message(2)])
    turn.publish(SeqId(12), [make_message(3)])
    turn.publish(SeqId(20), [make_message(4)])
    [(ops, _)], settled = turn.cut()
    assert [(op.first_seq_id, op.message_count) for op in ops if isinstance(op, PublishOp)] == [(10, 3), (20, 1)]
    assert settled == []
