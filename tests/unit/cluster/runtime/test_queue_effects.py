"""Where the effects of queues go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cluster.metadata.records import MastershipRecord
from cluster.runtime.queue_effects import QueueEffects
from node.ids import ChannelKey, QueueId
from node.queues.events import ConfirmPublished, DeleteUnused, QueueEffect
from node.topology.records import QueueRecord
from tests.support.queue_sets import N1, N2, mastership, queue_record

Q = queue_record(7)
HERE, ELSEWHERE = ChannelKey(N1, 1), ChannelKey(N2, 9)


class Channels:
    """Either side."""

    def __init__(self) -> None:
        self.effects: list[QueueEffect] = []
        self.stopped: list[QueueId] = []
        self.began: list[MastershipRecord] = []

    def local_effects(self, queue_id: QueueId, effects: Sequence[QueueEffect]) -> None:
        assert queue_id == Q.queue_id
        self.effects += effects

    remote_effects = local_effects

    def queue_stopped(self, queue_id: QueueId) -> None:
        self.stopped.append(queue_id)

    def mastership_changed(self, record: MastershipRecord) -> None:
        self.began.append(record)


def test_each_channel_hears_its_own_in_order() -> None:
    here, elsewhere, deleted = Channels(), Channels(), list[tuple[QueueRecord, bool]]()
    effects = QueueEffects(N1, lambda queue, may_return: deleted.append((queue, may_return)))
    effects.connect(here, elsewhere)
    mine = [ConfirmPublished(HERE, [1]), ConfirmPublished(HERE, [2])]
    theirs = ConfirmPublished(ELSEWHERE, [3])
    effects.dispatch(Q, [mine[0], theirs, DeleteUnused(), mine[1]])
    assert (here.effects, elsewhere.effects, deleted) == (mine, [theirs], [(Q, False)])
    effects.role_ended(Q.queue_id)
    assert here.stopped == elsewhere.stopped == [Q.queue_id]
    record = mastership(Q, N1)
    effects.role_began(record)
    assert (here.began, elsewhere.began) == ([record], []), "other nodes ask again by themselves"


def test_a_role_ends_for_all_others_though_a_channel_makes_a_mistake_of_it(caplog: pytest.LogCaptureFixture) -> None:
    class Mistaken(Channels):
        def queue_stopped(self, queue_id: QueueId) -> None:
            raise TypeError("a mistake of ours")

    elsewhere = Channels()
    effects = QueueEffects(N1, lambda _queue, _may_return: None)
    effects.connect(Mistaken(), elsewhere)
    effects.role_ended(Q.queue_id)
    assert elsewhere.stopped == [Q.queue_id], "their sessions would go on with a process that is gone"
    assert "a mistake of ours" in caplog.text
