"""What rows look like to people, and to programs: `list_flow` names the chain and its slowest hop, or the alarm."""

from __future__ import annotations

import json

import pytest

from cluster.listing_columns import LISTINGS
from cluster.runtime.admin_rows import Row, alarm_row, exchange_row, flow_row
from node.flow.stage import HopView, SlowPath
from node.ids import QueueId
from node.topology.records import ExchangeRecord
from tests.support.queue_sets import N1, N2, mastership, queue_record

ORDERS = queue_record(7)
CHANNEL = HopView("channel 1", -12, 900, "blocked")
QUEUE = HopView(QueueId(7), -30, 1_000, "blocked")
MIRROR = HopView("mirror n3", -40, 1_200, "blocked")
FREE_CHANNEL, FREE_QUEUE = HopView("channel 1", 50, 0, "freed"), HopView(QueueId(7), 50, 0, "freed")
BYTES = HopView("unconfirmed bytes", -5, 300, "blocked")


def row(path: SlowPath, beyond: HopView | None) -> Row:
    return flow_row(N1, "<n1.1.4.0>", "a:1 -> b:2", path, ORDERS, mastership(ORDERS, N2), beyond)


@pytest.mark.parametrize(
    ("path", "beyond", "chain", "slowest_hop", "balance", "blocked_ms"),
    [
        (
            SlowPath(1, (CHANNEL, QUEUE), ORDERS.queue_id),
            MIRROR,
            "n1 connection a:1 -> b:2 -> channel 1 -> queue / q7 on n2 -> mirror n3: blocked",
            "queue / q7 on n2 -> mirror n3",
            -40,
            1_200,
        ),
        (  # the master grants in a moment, or it cannot be asked
            SlowPath(1, (CHANNEL, QUEUE), ORDERS.queue_id),
            None,
            "n1 connection a:1 -> b:2 -> channel 1 -> queue / q7 on n2: blocked",
            "channel 1 -> queue / q7 on n2",
            -30,
            1_000,
        ),
        (  # the store has just given credit, the queue's grant is on its way
            SlowPath(1, (CHANNEL, QUEUE), ORDERS.queue_id),
            HopView("store", 900, 0, "freed"),
            "n1 connection a:1 -> b:2 -> channel 1 -> queue / q7 on n2 -> store: blocked",
            "queue / q7 on n2 -> store",
            900,
            1_000,
        ),
        (  # everything beyond the queue keeps up: it is the way to its master that does not
            SlowPath(1, (CHANNEL, QUEUE), ORDERS.queue_id),
            HopView("store", 3_900, 0, "open"),
            "n1 connection a:1 -> b:2 -> channel 1 -> queue / q7 on n2: blocked",
            "channel 1 -> queue / q7 on n2",
            -30,
            1_000,
        ),
        (
            SlowPath(1, (FREE_CHANNEL, FREE_QUEUE), ORDERS.queue_id),
            HopView("store", 900, 0, "freed"),
            "n1 connection a:1 -> b:2 -> channel 1 -> queue / q7 on n2 -> store: freed",
            "queue / q7 on n2 -> store",
            900,
            0,
        ),
        (  # large messages: the hop that has most of them is named, though it counts messages and has credit left
            SlowPath(0, (BYTES,), ORDERS.queue_id),
            HopView("mirror n3", 3_990, 0, "open"),
            "n1 connection a:1 -> b:2 -> unconfirmed bytes -> queue / q7 on n2 -> mirror n3: blocked",
            "queue / q7 on n2 -> mirror n3",
            3_990,
            300,
        ),
    ],
)
def test_a_path_ends_at_its_slowest_hop(
    path: SlowPath, beyond: HopView | None, chain: str, slowest_hop: str, balance: int, blocked_ms: int
) -> None:
    got = row(path, beyond)
    assert (got["chain"], got["slowest_hop"]) == (chain, slowest_hop)
    assert (got["balance"], got["blocked_ms"]) == (balance, blocked_ms)
    assert got["state"] == ("blocked" if chain.endswith(": blocked") else "freed")


def test_a_row_says_what_it_is_about() -> None:
    got = row(SlowPath(1, (CHANNEL, QUEUE), ORDERS.queue_id), MIRROR)
    about = ("node", "connection", "name", "channel", "vhost", "queue", "master")
    assert [got[column] for column in about] == ["n1", "<n1.1.4.0>", "a:1 -> b:2", 1, "/", "q7", "n2"]


def test_a_link_has_no_queue() -> None:
    path = SlowPath(1, (CHANNEL, HopView("link to n2", 0, 400, "blocked")), None)
    got = flow_row(N1, "<n1.1.4.0>", "c", path, None, None, None)
    assert got["chain"] == "n1 connection c -> channel 1 -> link to n2: blocked"
    assert got["slowest_hop"] == "channel 1 -> link to n2"


def test_a_queue_that_was_deleted_meanwhile_is_no_error() -> None:
    path = SlowPath(1, (FREE_CHANNEL, FREE_QUEUE), ORDERS.queue_id)
    got = flow_row(N1, "<n1.1.4.0>", "c", path, None, None, None)
    assert got["chain"] == "n1 connection c -> channel 1 -> a deleted queue: freed"


def test_a_publisher_that_an_alarm_has_stopped_is_listed_with_the_reason() -> None:
    alarms = [{"resource": "memory", "node": "n2"}, {"resource": "disk", "node": "n3"}]
    got = alarm_row(N1, "<n1.1.4.0>", "a:1 -> b:2", "/", alarms, 700)
    assert got["chain"] == "n1 connection a:1 -> b:2 -> alarm: memory on n2, disk on n3: blocked"
    assert got["slowest_hop"] == "alarm: memory on n2, disk on n3"
    assert (got["state"], got["blocked_ms"], got["vhost"], got["node"]) == ("blocked", 700, "/", "n1")
    assert set(got) == set(LISTINGS["list_flow"].columns)
    assert set(row(SlowPath(1, (CHANNEL, QUEUE), ORDERS.queue_id), MIRROR)) == set(got)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_know_is_a_text(number: float) -> None:
    exchange = ExchangeRecord("/", "e", "direct", True, False, False, {"x-a": [number, 1.5]})
    arguments = exchange_row(exchange, None)["arguments"]
    assert json.loads(json.dumps(arguments), parse_constant=pytest.fail) == {"x-a": [str(number), 1.5]}
