"""A queue whose only node is gone: whoever publishes to it among others, without confirms, is not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.live_cluster import run_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

#: More than the credit towards a queue.
MESSAGES = 20_000


def test_a_queue_that_is_down_does_not_stop_who_publishes_to_an_exchange(tmp_path: Path) -> None:
    with run_cluster(tmp_path) as cluster:
        for node, queue in (("n2", "dead"), ("n1", "alive")):
            with cluster.channel(node) as channel:
                channel.queue_declare(queue, durable=True)
                channel.exchange_declare("all", "fanout", durable=True)
                channel.queue_bind(queue, "all")
        cluster.kill_and_notice("n2")
        with cluster.channel("n1") as channel:
            for _ in range(MESSAGES):
                channel.basic_publish("all", "", b"x")
            assert channel.queue_declare("alive", passive=True).method.message_count == MESSAGES
