"""What counts as a broken promise in a simulated history, and what excuses it."""

from __future__ import annotations

import pytest

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind, ProcKind
from chaos.sim.judge import Circumstances, judge
from chaos.sim.loop import simulated_loop
from chaos.sim.workload import MemoryHistory


class Story:
    """The history of message 1 of publisher 0 in queue 0; an event a second."""

    def __init__(self) -> None:
        self.loop = simulated_loop()
        self.history = MemoryHistory(self.loop)
        self.log = self.history.process(ProcKind.PUBLISHER)

    def tell(self, *kinds: Kind, redelivered: bool = False) -> Story:
        for kind in kinds:
            self.loop.run_until(self.loop.now_s + 1)
            self.log.record(
                kind, queue_id=0, pub_id=0, seq=1, attempt=1, channel_id=1, redelivered=redelivered, crc_ok=True
            )
        return self

    def events(self) -> list[Event]:
        self.log.end()
        return self.history.events


KEY: AttemptKey = (0, 0, 1, 1)
#: In `Story` the confirm comes after two seconds.
BEFORE, AFTER = 1_000_000, 3_000_000
NOTHING = Circumstances({}, {}, {"n1": [], "n2": []})


def kinds(story: Story, circumstances: Circumstances = NOTHING) -> list[str]:
    return [violation.kind for violation in judge(story.events(), circumstances)]


def confirmed() -> Story:
    return Story().tell(Kind.PUB_INVOKE, Kind.CONFIRM)


def test_a_message_that_was_confirmed_delivered_and_acked_is_no_news() -> None:
    assert kinds(confirmed().tell(Kind.DELIVER, Kind.ACK_SENT)) == []


def test_a_confirmed_message_that_nobody_gets_is_lost() -> None:
    assert kinds(confirmed()) == ["lost"]


def test_a_message_that_went_back_to_its_queue_and_never_came_again_has_vanished() -> None:
    assert kinds(confirmed().tell(Kind.DELIVER)) == ["vanished"]


def test_a_purge_takes_it_away() -> None:
    assert kinds(confirmed().tell(Kind.PURGE)) == []


@pytest.mark.parametrize(("at_us", "found"), [(AFTER, []), (BEFORE, ["lost"])])
def test_only_a_lossy_promotion_after_the_confirm_excuses_a_loss(at_us: int, found: list[str]) -> None:
    assert kinds(confirmed(), Circumstances({0: [at_us]}, {}, {})) == found
    assert kinds(confirmed(), Circumstances({1: [AFTER]}, {}, {})) == ["lost"], "of another queue"


@pytest.mark.parametrize(
    ("deaths", "found"),
    [
        ({"n1": [AFTER], "n2": [AFTER]}, []),
        ({"n1": [AFTER], "n2": [BEFORE]}, ["lost"]),
        ({"n1": [AFTER], "n2": []}, ["lost"]),
    ],
)
def test_what_lives_in_memory_may_go_with_everybody_who_had_it(deaths: dict[str, list[int]], found: list[str]) -> None:
    holders = {KEY: frozenset({"n1", "n2"})}
    assert kinds(confirmed(), Circumstances({}, holders, deaths)) == found
    assert kinds(confirmed(), Circumstances({}, {}, deaths)) == ["lost"], "a persistent one lives on disks"


def test_what_lives_in_memory_goes_with_an_interruption_of_its_queue() -> None:
    holders = {KEY: frozenset({"n1"})}
    deaths: dict[str, list[int]] = {"n1": []}
    assert kinds(confirmed(), Circumstances({}, holders, deaths, interruptions={0: [AFTER]})) == []
    assert kinds(confirmed(), Circumstances({}, holders, deaths, interruptions={0: [BEFORE], 1: [AFTER]})) == ["lost"]
    assert kinds(confirmed(), Circumstances({}, {}, deaths, interruptions={0: [AFTER]})) == ["lost"]


def test_a_message_may_come_twice_if_the_second_time_says_so() -> None:
    story = confirmed().tell(Kind.DELIVER)
    assert kinds(story.tell(Kind.DELIVER, redelivered=True).tell(Kind.ACK_SENT)) == []
    assert kinds(confirmed().tell(Kind.DELIVER, Kind.DELIVER, Kind.ACK_SENT)) == ["duplicates_unflagged"]


def test_a_message_that_nobody_published_is_a_phantom() -> None:
    assert kinds(Story().tell(Kind.DELIVER, Kind.ACK_SENT)) == ["phantom"]


def test_an_answer_to_nothing_breaks_the_protocol() -> None:
    story = confirmed().tell(Kind.DELIVER, Kind.ACK_SENT)
    story.log.record(Kind.CONFIRM_STRAY)
    assert kinds(story) == ["confirm_violations"]


def test_a_log_with_a_hole_proves_nothing_and_is_said() -> None:
    story = confirmed().tell(Kind.DELIVER, Kind.ACK_SENT)
    del story.events()[2]
    assert "harness" in kinds(story)
