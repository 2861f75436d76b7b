"""What the ledger keeps of the confirms of a turn."""

from __future__ import annotations

from cluster.mirroring.confirms import ConfirmLedger, HeldToken
from tests.support.messages import publications
from tests.support.mirror_pair import Pair


def test_the_confirms_of_a_turn_are_held_by_one_entry_per_kind_however_often_it_publishes() -> None:
    """What mirrors cost in memory must not grow with the messages that wait for them."""
    ledger = ConfirmLedger(durable_queue=True)
    tokens = []
    for counter in range(1, 100, 2):
        tokens += ledger.hold(publications(counter, 1), turn=1)
        tokens += ledger.hold(publications(counter + 1, 1, persistent=False), turn=1)
    batches = {id(held.token.batch) for held in tokens if isinstance(held.token, HeldToken)}
    assert len(tokens) == 100
    assert len(batches) == 2


def test_a_transient_publish_does_not_wait_for_the_disk_behind_a_persistent_one() -> None:
    pair = Pair().up().quiet()
    pair.master.publish(publications(1, 1))
    pair.to_mirror()
    pair.master.publish(publications(2, 1, persistent=False))
    pair.exchange()
    assert pair.master.drain_confirmed() == [2]
    pair.quiet()
    assert pair.master.drain_confirmed() == [1]
