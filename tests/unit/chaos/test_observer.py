from __future__ import annotations

import json

from chaos.cluster_under_test.admin import node_of_pid, nodes_of_pids, sample_of_row
from chaos.cluster_under_test.protocol import QueueSample
from chaos.faults.observer import MasterView
from chaos.history import Kind

NODES = ("n1", "n2", "n3")


def sample(master: str | None, mirrors: str, synchronised: str = "") -> QueueSample:
    """Mirrors as words, oldest first; all synchronised unless given."""
    return QueueSample("q", master, tuple(mirrors.split()), tuple((synchronised or mirrors).split()), 0, 0)


def view(down: set[str]) -> MasterView:
    return MasterView(NODES, 0, lambda node: node not in down)


def test_first_sample_tells_the_mirrors_and_no_promotion() -> None:
    watched = view(set())
    kinds = [kind for kind, _ in watched.take(sample("n1", "n2 n3", "n2"))]
    assert kinds == [Kind.JOIN, Kind.JOIN, Kind.SYNC_BEGIN, Kind.SYNC_END]
    assert watched.promotions == []
    assert watched.take(sample("n1", "n2 n3", "n2")) == []


def test_oldest_synchronised_mirror_that_runs_should_win() -> None:
    down: set[str] = set()
    watched = view(down)
    watched.take(sample("n1", "n3 n2"))
    down.add("n1")
    assert watched.take(sample(None, "")) == []
    assert watched.take(sample("n1", "n3 n2")) == [], "a node that has not heard of it yet names the dead master"
    events = watched.take(sample("n3", "n2"))
    assert [kind for kind, _ in events] == [Kind.PROMOTE]
    fields = events[0][1]
    assert (fields["node_id"], fields["epoch"], fields["result"]) == (2, 2, 1)
    assert json.loads(str(fields["detail"]))["mirrors_before"] == ["n3", "n2"]


def test_promotion_past_the_oldest_synchronised_mirror_is_told() -> None:
    down: set[str] = set()
    watched = view(down)
    watched.take(sample("n1", "n3 n2", "n2"))
    down.add("n1")
    watched.take(sample("n3", "n2"))
    assert not watched.promotions[0].is_oldest_synchronised
    assert watched.promotions[0].expected_master == "n2"


def test_without_a_synchronised_mirror_no_promotion_is_the_right_one() -> None:
    down: set[str] = set()
    watched = view(down)
    watched.take(QueueSample("q", "n1", ("n2",), (), 0, 0))
    down.add("n1")
    watched.take(sample("n2", ""))
    assert watched.promotions[0].expected_master is None
    assert not watched.promotions[0].is_oldest_synchronised


def test_mirror_that_leaves_and_returns() -> None:
    watched = view(set())
    watched.take(sample("n1", "n2 n3"))
    assert [kind for kind, _ in watched.take(sample("n1", "n3"))] == [Kind.LEAVE]
    returned = watched.take(QueueSample("q", "n1", ("n3", "n2"), ("n3",), 0, 0))
    assert [kind for kind, _ in returned] == [Kind.JOIN, Kind.SYNC_BEGIN]
    assert [kind for kind, _ in watched.take(sample("n1", "n3 n2"))] == [Kind.SYNC_END]


def test_process_ids_as_listings_print_them() -> None:
    assert [node_of_pid(pid) for pid in ("<n1.1.34.0>", "<rabbit@n2.3.1.0>", "n3", "", None)] == [
        "n1", "n2", "n3", None, None,
    ]  # fmt: skip
    assert nodes_of_pids("[<n2.1.2.0>, <n3.1.2.0>]") == ("n2", "n3")
    assert nodes_of_pids(["<n2.1.2.0>", "<n3.1.2.0>"]) == ("n2", "n3")
    assert nodes_of_pids("") == ()
    row = {
        "name": "q", "pid": "<n1.1.2.0>", "slave_pids": "[<n2.1.2.0>]", "synchronised_slave_pids": "",
        "streaming_mirror_pids": ["<n2.1.2.0>"], "messages_ready": 3, "messages_unacknowledged": "",
    }  # fmt: skip
    assert sample_of_row(row) == QueueSample("q", "n1", ("n2",), (), 3, 0, ("n2",))
