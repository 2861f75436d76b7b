"""Credit {200, 50} as a reader would do it on paper, and the time that listings remember."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.flow.credit import Credit, FlowControl, Hop, MeasuredHop, Tally
from node.flow.stage import CONNECTION_MEMORY_MS, Stage

CREDIT = Credit(200, 50)


def test_a_sender_is_blocked_when_its_credit_is_used_up_and_freed_by_a_grant() -> None:
    hop, tally = Hop("queue", CREDIT), Tally(CREDIT.more_after)
    assert not hop.change(-199)
    assert hop.change(-1)
    assert hop.is_blocked
    tally.pending += 49
    assert tally.take() == 0, "grants come in steps"
    tally.pending += 1
    assert hop.change(tally.take())
    assert (hop.balance, hop.is_blocked) == (50, False)


def test_a_batch_is_never_cut_and_overdraws_by_what_it_is_too_large() -> None:
    hop, tally = Hop("queue", CREDIT), Tally(CREDIT.more_after)
    assert hop.change(-500)
    assert hop.balance == -300
    tally.pending += 349
    assert not hop.change(tally.take())
    assert (hop.balance, tally.pending) == (0, 49)
    tally.pending += 151
    assert hop.change(tally.take())
    assert (hop.balance, tally.pending) == (200, 0)


def test_a_batch_that_is_processed_at_once_blocks_nobody_however_large_it_is() -> None:
    hop, tally = Hop("channel 1", CREDIT), Tally(CREDIT.more_after)
    tally.pending += 1234
    assert not hop.change(tally.take() - 1234)
    assert (hop.balance, tally.pending) == (166, 34)


def test_credit_begins_anew_with_another_receiver() -> None:
    hop = Hop("queue", CREDIT)
    hop.change(-500)
    assert hop.reset(Credit(4000, 800))
    assert (hop.balance, hop.credit.more_after) == (4000, 800)
    assert not hop.reset()


def test_a_measured_hop_follows_what_is_in_flight() -> None:
    store = MeasuredHop("store", CREDIT)
    blocked = []
    for in_flight in (150, 199, 200, 260, 211, 199, 161, 160, 0):
        store.measure(in_flight)
        store.check_invariants()
        blocked.append((in_flight, store.balance, store.is_blocked))
    assert blocked == [
        (150, 50, False),
        (199, 1, False),
        (200, 0, True),
        (260, -60, True),
        (211, -60, True),  # 49 are processed: not yet a grant
        (199, -10, True),
        (161, -10, True),
        (160, 40, False),
        (0, 190, False),
    ]


def test_credit_that_could_never_be_granted_is_refused() -> None:
    with pytest.raises(AssertionError, match="wait for ever"):
        FlowControl(store=Credit(100, 101))


def test_a_stage_is_blocked_while_one_of_its_hops_is() -> None:
    flow = FlowControl()
    stage, one, two = Stage(flow), Hop("one", CREDIT), Hop("two", CREDIT)
    one.change(-200)
    two.change(-200)
    assert stage.note(one)
    assert not stage.note(two), "it was blocked already"
    one.change(200)
    assert not stage.note(one)
    assert stage.slow_hops(0) == [two]
    two.change(200)
    assert stage.note(two)
    assert not stage.is_blocked


def test_flow_is_shown_for_a_while_after_it_is_over() -> None:
    flow = FlowControl()
    stage, hop = Stage(flow), Hop("queue", CREDIT)
    flow.advance(10_000)
    assert (stage.state(CONNECTION_MEMORY_MS), stage.slow_hops(CONNECTION_MEMORY_MS)) == ("running", [])
    hop.change(-200)
    stage.note(hop)
    flow.advance(12_000)
    assert stage.view(hop, 0) == ("queue", 0, 2_000, "blocked")
    hop.change(50)
    stage.note(hop)
    flow.advance(12_000 + CONNECTION_MEMORY_MS)
    assert (stage.state(CONNECTION_MEMORY_MS), stage.slow_hops(CONNECTION_MEMORY_MS)) == ("flow", [hop])
    assert stage.view(hop, CONNECTION_MEMORY_MS) == ("queue", 50, 0, "freed")
    assert stage.state(1_000) == "running", "a channel remembers a second"
    flow.advance(12_001 + CONNECTION_MEMORY_MS)
    assert (stage.state(CONNECTION_MEMORY_MS), stage.slow_hops(CONNECTION_MEMORY_MS)) == ("running", [])


credits = st.integers(1, 20).flatmap(lambda initial: st.builds(Credit, st.just(initial), st.integers(1, initial)))
#: Send so many, process so many of those in flight, or change whether the receiver is blocked.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 30)),
        st.tuples(st.just("process"), st.integers(1, 30)),
        st.tuples(st.just("receiver"), st.booleans()),
    )
)


@given(credits, steps)
def test_credit_is_conserved_and_nobody_waits_for_ever(credit: Credit, history: list[tuple[str, int]]) -> None:
    hop, tally = Hop("receiver", credit), Tally(credit.more_after)
    in_flight = 0
    receiver_is_blocked = False

    def grant() -> None:
        if not receiver_is_blocked:
            hop.change(tally.take())
            assert not tally.is_due

    for what, number in history:
        was_blocked = hop.is_blocked
        if what == "send" and not was_blocked:  # an honest sender
            assert hop.change(-number) is hop.is_blocked
            in_flight += number
        elif what == "process":
            processed = min(number, in_flight)
            in_flight -= processed
            tally.pending += processed
        elif what == "receiver":
            receiver_is_blocked = bool(number)
        grant()
        assert hop.balance + in_flight + tally.pending == credit.initial
        assert in_flight + tally.pending < credit.initial + 30, "one batch beyond the credit, at most"
    receiver_is_blocked = False
    tally.pending, in_flight = tally.pending + in_flight, 0
    grant()
    assert not hop.is_blocked, "all is processed, the receiver is free: so is the sender"
