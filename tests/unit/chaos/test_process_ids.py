from __future__ import annotations

from chaos.cluster_under_test.process_ids import node_of_pid, nodes_of_pids


def test_process_ids_as_listings_print_them() -> None:
    assert [node_of_pid(pid) for pid in ("<n1.1.34.0>", "<rabbit@n2.3.1.0>", "n3", "", None)] == [
        "n1", "n2", "n3", None, None,
    ]  # fmt: skip
    assert nodes_of_pids("[<n2.1.2.0>, <n3.1.2.0>]") == ("n2", "n3")
    assert nodes_of_pids(["<n2.1.2.0>", "<n3.1.2.0>"]) == ("n2", "n3")
    assert nodes_of_pids("") == ()
