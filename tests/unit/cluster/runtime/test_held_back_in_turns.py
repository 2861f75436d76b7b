"""Publishes that a queue has held back, and takes in turns of its own: whoever published them hears what came of it,
whatever generation of the group commit has them."""

from __future__ import annotations

from node.flow.credit import Credit, FlowControl
from node.ids import ChannelKey
from node.queues.events import GrantCredit
from node.queues.options import QueueOptions
from node.queues.queue_process import LET_IN_MAX
from node.queues.returns import RETURN_MAX
from tests.support.queue_sets import CLIENT, N1, Q, QueueSetNetwork, QueueSetNode, mastership

HOLDER = ChannelKey(N1, 2)
SMALL_STORE = FlowControl(store=Credit(LET_IN_MAX // 2, LET_IN_MAX // 4))


def master(options: QueueOptions | None = None, flow: FlowControl | None = None) -> QueueSetNode:
    """One node, and one queue."""
    node = QueueSetNetwork(N1)[N1]
    node.options = options or node.options
    node.flow = flow or node.flow
    node.start()
    node.queues.follow(Q, mastership(Q, N1))
    node.turn()
    node.sync()
    return node


def one_turn(node: QueueSetNode) -> None:
    """Of the loop."""
    for _ in range(len(node.pending)):
        node.pending.popleft()()


def round_by_round(node: QueueSetNode) -> None:
    """A round of the group commit after each turn, as long as there is anything to do."""
    while node.pending or node.group_commit.has_dirty:
        one_turn(node)
        node.sync()


def unsealed(node: QueueSetNode, messages: int) -> None:
    """They were published while a deletion was being decided, which has come to nothing."""
    process = node.process(Q)
    process.seal_for_delete(if_unused=False, if_empty=False)
    node.publish(Q, 1, messages)
    node.turn()
    process.unseal()
    node.queues.touch(Q.queue_id)


def test_what_a_seal_held_back_is_confirmed_though_it_is_taken_in_several_turns() -> None:
    node = master()
    unsealed(node, 4 * LET_IN_MAX)
    round_by_round(node)
    assert node.process(Q).ready == 4 * LET_IN_MAX
    assert node.confirmed() == list(range(1, 1 + 4 * LET_IN_MAX))


def test_its_publishers_are_granted_more_when_the_store_has_all_of_it() -> None:
    node = master(flow=SMALL_STORE)
    node.process(Q).flow.begin(CLIENT, 1)
    unsealed(node, 4 * LET_IN_MAX)
    round_by_round(node)
    granted = sum(each.messages for each in node.effects if isinstance(each, GrantCredit))
    assert granted == 4 * LET_IN_MAX
    assert not node.process(Q).flow.stage.is_blocked


def test_what_waited_for_returns_is_confirmed_though_nothing_was_written_when_it_came() -> None:
    """A full queue that refuses publishes waits with them until it knows what is back."""
    held = 3 * RETURN_MAX
    node = master(QueueOptions(max_length=held + 1, rejects_overflow=True))
    node.publish(Q, 1, held)
    node.turn()
    node.sync()
    while node.process(Q).get(HOLDER, no_ack=False) is not None:
        pass
    node.process(Q).channel_down(HOLDER)
    node.publish(Q, held + 1)
    one_turn(node)
    node.queues.nothing_written()  # it is asked for in that turn, and there is nothing to sync
    node.turn()
    assert node.process(Q).ready == held + 1
    node.sync()
    node.turn()
    assert node.confirmed() == list(range(1, held + 2))
