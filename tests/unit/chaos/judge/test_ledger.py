"""What each failover cost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chaos.judge.ledger import Failover, FaultTime, Row, ledger
from chaos.judge.windows import AFTERMATH_US, BUCKET_US, Bucket, Service, Window

S = 1_000_000
FAULT = FaultTime(1, 100 * S, 110 * S, {"stored": 2000})
FAILOVER = Failover(1, 2, 3, 101 * S, 102 * S)


def rows(
    failovers: Sequence[Failover] = (FAILOVER,),
    faults: Sequence[FaultTime] = (FAULT,),
    windows: Sequence[Window] = (),
    lost: Sequence[int] = (),
    repeats: Sequence[int] = (),
    synchronised: Sequence[int] = (),
) -> list[Row]:
    return ledger(failovers, faults, windows, {1: buckets(lost, repeats)}, {1: synchronised})


def buckets(lost: Sequence[int], repeats: Sequence[int] = ()) -> list[Bucket]:
    """One in which each of these was."""
    numbers = sorted({at_us // BUCKET_US for at_us in [*lost, *repeats]})
    counts = [[at_us // BUCKET_US for at_us in moments] for moments in (lost, repeats)]
    return [Bucket(each, lost=counts[0].count(each), repeats=counts[1].count(each)) for each in numbers]


def test_times_count_from_the_beginning_of_the_fault() -> None:
    windows = [
        Window(Service.PUBLISH, 1, 100 * S, 103 * S),
        Window(Service.CONSUME, 1, 101 * S, 105 * S),
        Window(Service.PUBLISH, 1, 200 * S, 290 * S),
        Window(Service.PUBLISH, 2, 100 * S, 190 * S),
    ]
    [row] = rows(windows=windows, synchronised=[99 * S, 112 * S, 115 * S])
    assert row == Row(
        failover=FAILOVER,
        fault=1,
        detected_us=(1 * S, 2 * S),
        publish_gap_us=3 * S,
        consume_gap_us=5 * S,
        lost=0,
        repeats=0,
        at_risk={"stored": 2000},
        caught_up_us=15 * S,
    )


def test_without_a_window_service_went_on_and_without_a_mirror_nothing_was_caught_up() -> None:
    [row] = rows(synchronised=[99 * S])
    assert (row.publish_gap_us, row.consume_gap_us, row.caught_up_us) == (0, 0, None)


@pytest.mark.parametrize(
    ("faults", "number"),
    [
        ([], None),
        ([FaultTime(1, 103 * S, None)], None),
        ([FaultTime(1, 50 * S, 101 * S - AFTERMATH_US - 1)], None),
        ([FaultTime(1, 50 * S, 101 * S - AFTERMATH_US)], 1),
        ([FaultTime(1, 50 * S, None), FaultTime(2, 90 * S, 91 * S)], 2),
        ([FaultTime(1, 90 * S, None), FaultTime(2, 50 * S, None)], 1),
    ],
)
def test_a_failover_is_put_down_to_the_fault_that_began_last(faults: list[FaultTime], number: int | None) -> None:
    [row] = rows(faults=faults)
    assert row.fault == number


def test_an_order_of_an_operator_counts_from_the_failover_itself() -> None:
    [row] = rows(faults=[], windows=[Window(Service.PUBLISH, 1, 101 * S, 104 * S)])
    assert (row.detected_us, row.publish_gap_us, row.at_risk) == ((0, 1 * S), 3 * S, {})


def test_what_is_lost_is_put_down_to_the_first_failover_behind_its_confirm_and_repeats_to_the_last_before_them() -> (
    None
):
    second = Failover(1, 3, 2, 200 * S, 201 * S)
    lost = [50 * S, 102 * S, 102 * S + BUCKET_US, 150 * S, 300 * S]
    repeats = [10 * S, 102 * S, 103 * S, 201 * S, 202 * S, 400 * S]
    first, last = rows([second, FAILOVER], lost=lost, repeats=repeats)
    assert (first.failover, first.lost, first.repeats) == (FAILOVER, 2, 2)
    assert (last.failover, last.lost, last.repeats) == (second, 2, 3)


def test_a_mirror_that_caught_up_behind_the_next_failover_is_of_that_one() -> None:
    second = Failover(1, 3, 2, 200 * S, 201 * S)
    first, last = rows([FAILOVER, second], faults=[], synchronised=[120 * S, 230 * S])
    assert first.caught_up_us == 19 * S
    assert last.caught_up_us == 30 * S


def test_queues_have_rows_of_their_own() -> None:
    other = Failover(2, 5, 1, 101 * S, 102 * S)
    first, second = ledger([other, FAILOVER], [FAULT], [], {2: buckets([50 * S])}, {})
    assert (first.failover, first.lost) == (FAILOVER, 0)
    assert (second.failover, second.lost) == (other, 1)
