"""Several processes on one loop with virtual time: who owns what, what a kill, a pause and a jump of the clock do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from chaos.sim.loop import Process, SimulatedLoop, SimulationStuckError, simulated_loop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = simulated_loop()
    yield loop
    loop.close()


def test_an_hour_takes_no_time(loop: SimulatedLoop) -> None:
    async def sleeper() -> float:
        await asyncio.sleep(3600)
        return asyncio.get_running_loop().time()

    assert loop.run_until_complete(sleeper()) == 3600


def test_timers_come_in_the_order_of_time_and_then_of_scheduling(loop: SimulatedLoop) -> None:
    seen: list[str] = []
    for delay_s, name in ((2, "late"), (1, "early"), (1, "early too")):
        loop.call_later(delay_s, seen.append, name)
    loop.call_later(1.5, seen.append, "cancelled").cancel()
    loop.run_until(5)
    assert seen == ["early", "early too", "late"]
    assert loop.now_s == 5


def test_what_can_never_happen_is_said(loop: SimulatedLoop) -> None:
    with pytest.raises(SimulationStuckError, match="nothing is left to do"):
        loop.run_until_complete(loop.create_future())


def test_tasks_and_timers_belong_to_the_process_that_made_them(loop: SimulatedLoop) -> None:
    """However deep: a task of a task, a timer of a timer."""
    node = loop.start_process("n1")
    seen: list[str] = []

    async def child() -> None:
        await asyncio.sleep(1)
        seen.append("child")
        asyncio.get_running_loop().call_later(1, seen.append, "timer of the child")
        await asyncio.sleep(10)
        seen.append("never")

    async def parent() -> None:
        await asyncio.gather(asyncio.create_task(child()), child())

    node.create_task(parent())
    loop.call_later(5, node.kill)
    loop.run_until(20)
    assert seen == ["child", "child", "timer of the child", "timer of the child"]


def test_a_killed_process_runs_not_even_its_finally(loop: SimulatedLoop) -> None:
    node = loop.start_process("n1")
    seen: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            seen.append("finally")

    node.create_task(work())
    loop.run_until(1)
    node.kill()
    node.check_invariants()
    node.call_soon(seen.append, "bytes for a dead process")
    loop.run_until(30)
    assert seen == []


def test_a_kill_within_a_turn_ends_it_at_the_next_callback(loop: SimulatedLoop) -> None:
    node = loop.start_process("n1")
    seen: list[str] = []
    node.call_soon(seen.append, "before")
    node.call_soon(node.kill)
    node.call_soon(seen.append, "after")
    loop.run_until(1)
    assert seen == ["before"]


def test_a_paused_process_does_everything_late(loop: SimulatedLoop) -> None:
    node, other = loop.start_process("n1"), loop.start_process("n2")
    seen: list[tuple[str, float]] = []

    def note(name: str) -> None:
        seen.append((name, loop.now_s))

    node.call_later(1, note, "n1")
    node.call_later(4, note, "n1 again")
    other.call_later(2, note, "n2")
    node.pause()
    loop.run_until(3)
    node.call_soon(note, "bytes that came meanwhile")
    node.resume()
    loop.run_until(5)
    assert seen == [("n2", 2), ("bytes that came meanwhile", 3), ("n1", 3), ("n1 again", 4)]


def test_what_is_meant_for_another_process_dies_with_that_one(loop: SimulatedLoop) -> None:
    sender, receiver = loop.start_process("n1"), loop.start_process("n2")
    seen: list[str] = []
    sender.call_soon(lambda: receiver.call_later(1, seen.append, "bytes"))
    sender.call_soon(sender.kill)
    loop.run_until(2)
    assert seen == ["bytes"], "what was sent before the death of the sender arrives"


def test_whoever_polls_does_not_stop_time(loop: SimulatedLoop) -> None:
    """A turn costs time, so the other process gets its own, and the condition comes true."""
    poller = loop.start_process("n1", turn_cost_s=lambda: 0.001)
    is_there: list[bool] = []

    async def poll() -> int:
        tries = 0
        while not is_there:
            tries += 1
            await asyncio.sleep(0)
        return tries

    task = poller.create_task(poll())
    loop.call_later(0.01, is_there.append, True)
    assert loop.run_until_complete(task) == pytest.approx(10, abs=2)


def test_a_busy_process_does_not_hold_up_the_others(loop: SimulatedLoop) -> None:
    slow, quick = loop.start_process("n1", lambda: 1.0), loop.start_process("n2", lambda: 0.1)
    seen: list[tuple[str, float]] = []

    def work(process: Process, times: int) -> None:
        seen.append((process.name, round(loop.now_s, 3)))
        if times > 1:
            process.call_soon(work, process, times - 1)

    slow.call_soon(work, slow, 2)
    quick.call_soon(work, quick, 3)
    loop.run_until(5)
    assert seen == [("n1", 0), ("n2", 0), ("n2", 0.1), ("n2", 0.2), ("n1", 1.0)]


@pytest.mark.parametrize("by_s", [7, -7, 3600])
def test_a_jump_of_the_wall_clock_moves_no_timer(loop: SimulatedLoop, by_s: float) -> None:
    """A loop's time is monotonic: nobody can set it."""
    node, other = loop.start_process("n1"), loop.start_process("n2")
    seen: list[tuple[str, float, float]] = []

    def note(name: str) -> None:
        seen.append((name, loop.now_s, loop.time()))

    node.call_later(10, note, "n1")
    loop.run_until(1)
    before_s = node.wall_time_s()
    node.jump_clock(by_s)
    node.call_soon(lambda: loop.call_at(loop.time() + 1, note, "n1 later"))
    assert (node.wall_time_s() - before_s, other.wall_time_s()) == (by_s, before_s)
    loop.run_until(20)
    assert seen == [("n1 later", 2, 2), ("n1", 10, 10)]


def test_mistakes_of_the_living_are_told_and_those_of_the_dead_are_not(loop: SimulatedLoop) -> None:
    node = loop.start_process("n1")
    told: list[object] = []
    loop.set_exception_handler(lambda _loop, context: told.append(context["exception"]))
    error = ValueError("a mistake")

    def fail(*, dying: bool) -> None:
        if dying:
            node.kill()
        raise error

    node.call_soon(lambda: fail(dying=False))
    node.call_soon(lambda: fail(dying=True))
    loop.run_until(1)
    assert told == [error]


def test_the_same_schedule_has_the_same_fingerprint(loop: SimulatedLoop) -> None:
    def run(turn_cost_s: float) -> int:
        loop = simulated_loop()
        nodes = [loop.start_process(f"n{number}", lambda: turn_cost_s) for number in range(3)]

        async def chatter(node: Process) -> None:
            for _ in range(5):
                await asyncio.sleep(0.01)
                node.call_soon(lambda: None)

        for node in nodes:
            node.create_task(chatter(node))
        loop.run_until(1)
        loop.close()
        return loop.fingerprint

    assert run(0.001) == run(0.001) != run(0.003)
