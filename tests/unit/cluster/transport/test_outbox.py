"""The outbox keeps order, cuts frames to size and says when it is too full."""

from __future__ import annotations

from cluster.transport import outbox as module
from cluster.transport.outbox import Outbox, OutboxLimits


def fill(outbox: Outbox, *items: bytes) -> None:
    for item in items:
        outbox.append(item)
        outbox.check_invariants()


def take_all(outbox: Outbox) -> list[bytes]:
    frames = []
    while outbox:
        frames.append(outbox.take_frame())
        outbox.check_invariants()
    return frames


def test_items_leave_in_order_and_together() -> None:
    outbox = Outbox(OutboxLimits())
    fill(outbox, b"a", b"bb", b"ccc")
    assert take_all(outbox) == [b"abbccc"]
    assert outbox.take_frame() == b""


def test_a_frame_ends_before_the_item_that_does_not_fit() -> None:
    outbox = Outbox(OutboxLimits())
    half = b"x" * (module.MAX_FRAME_BYTES // 2)
    fill(outbox, half, half, b"y", b"z" * (2 * module.MAX_FRAME_BYTES), b"w")
    assert [len(frame) for frame in take_all(outbox)] == [module.MAX_FRAME_BYTES, 1, 2 * module.MAX_FRAME_BYTES, 1]


def test_a_frame_has_so_many_items() -> None:
    outbox = Outbox(OutboxLimits())
    fill(outbox, *[b"i"] * (module.MAX_FRAME_ITEMS + 3))
    assert [len(frame) for frame in take_all(outbox)] == [module.MAX_FRAME_ITEMS, 3]


def test_congestion_ends_at_half_the_limit() -> None:
    limit = 2 * module.MAX_FRAME_BYTES
    outbox = Outbox(OutboxLimits(congested_bytes=limit, overflow_bytes=4 * module.MAX_FRAME_BYTES))
    item = b"x" * module.MAX_FRAME_BYTES
    states = []
    for step in (item, item, b"more", None, None):
        if step is None:
            outbox.take_frame()
        else:
            fill(outbox, step)
        states.append(outbox.is_congested)
    assert states == [False, False, True, True, False]


def test_too_much_overflows() -> None:
    outbox = Outbox(OutboxLimits(congested_bytes=1, overflow_bytes=4))
    states = []
    for item in (b"ab", b"cd", b"e"):
        fill(outbox, item)
        states.append(outbox.is_overflowing)
    assert states == [False, False, True]


def test_it_is_full_while_it_is_congested_and_something_marked_is_part_of_that() -> None:
    limit = 4 * module.MAX_FRAME_BYTES
    outbox = Outbox(OutboxLimits(congested_bytes=limit, overflow_bytes=4 * limit))
    item = b"x" * module.MAX_FRAME_BYTES
    fill(outbox, *[item] * 5)
    assert outbox.is_congested
    assert not outbox.is_full, "nothing is marked: who would wait gets one share, whoever congests it"
    fill(outbox, b"share")
    outbox.mark()
    fill(outbox, *[item] * 5)
    states = []
    for _ in range(7):
        outbox.take_frame()
        outbox.check_invariants()
        states.append((outbox.is_congested, outbox.is_full))
    assert states[:4] == [(True, True)] * 4
    assert states[5:] == [(True, False)] * 2, "the share has gone, the next one may come"


def test_what_is_marked_fills_it_only_until_the_congestion_ends() -> None:
    outbox = Outbox(OutboxLimits(congested_bytes=2 * module.MAX_FRAME_BYTES, overflow_bytes=8 * module.MAX_FRAME_BYTES))
    item = b"x" * module.MAX_FRAME_BYTES
    states = []
    for step in (item, item, item, None, None):
        if step is None:
            outbox.take_frame()
        else:
            fill(outbox, step)
            outbox.mark()
        states.append(outbox.is_full)
    assert states == [False, False, True, True, False]
