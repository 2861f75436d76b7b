"""What counts as a broken promise in a simulated history, and what excuses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chaos.analysis.reference import AttemptKey
from chaos.history import Event, Kind, ProcKind
from chaos.sim.judge import Circumstances, HandOut, judge
from chaos.sim.loop import simulated_loop
from chaos.sim.record_watch import Holders, Ignorance, outlives
from chaos.sim.workload import MemoryHistory, Settlement


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

    def promote(self) -> Story:
        self.loop.run_until(self.loop.now_s + 1)
        self.log.record(Kind.PROMOTE, queue_id=0, epoch=2)
        return self

    def events(self) -> list[Event]:
        self.log.end()
        return self.history.events


KEY: AttemptKey = (0, 0, 1, 1)
#: In `Story` a message is published after one second and confirmed after two.
PUBLISHED, BETWEEN, BEFORE, AFTER = 1_000_001, 1_500_000, 500_000, 3_000_000


def kinds(story: Story, **circumstances: Any) -> list[str]:
    return [violation.kind for violation in judge(story.events(), Circumstances(**circumstances))]


def confirmed() -> Story:
    return Story().tell(Kind.PUB_INVOKE, Kind.CONFIRM)


def test_a_message_that_was_confirmed_delivered_and_acked_is_no_news() -> None:
    assert kinds(confirmed().tell(Kind.DELIVER, Kind.ACK_SENT)) == []


def test_a_confirmed_message_that_nobody_gets_is_lost() -> None:
    assert kinds(confirmed()) == ["lost"]


def test_a_message_that_went_back_to_its_queue_and_never_came_again_has_vanished() -> None:
    assert kinds(confirmed().tell(Kind.DELIVER)) == ["vanished"]


@pytest.mark.parametrize(("at_us", "found"), [(AFTER, []), (BETWEEN, []), (BEFORE, ["lost"])])
def test_only_what_was_published_before_a_removal_may_be_gone(at_us: int, found: list[str]) -> None:
    """Whatever an operator asked for and nobody answered: what counts is whether it was done, and when."""
    assert kinds(confirmed(), removals={0: [at_us]}) == found
    assert kinds(confirmed(), removals={1: [AFTER]}) == ["lost"], "of another queue"


@pytest.mark.parametrize("how", [Kind.DROP, Kind.PURGE, Kind.EXPIRE])
def test_what_has_left_its_queue_legally_is_not_lost(how: Kind) -> None:
    """Dropped by a limit, purged, handed out without acknowledgement: each message is named."""
    assert kinds(confirmed().tell(how)) == []


@pytest.mark.parametrize(("at_us", "found"), [(AFTER, ["lost"]), (BETWEEN, []), (BEFORE, ["lost"])])
def test_a_queue_that_was_deleted_as_empty_takes_nothing_that_was_confirmed_before(
    at_us: int, found: list[str]
) -> None:
    """What was confirmed after it was held back as the queue was sealed, and went nowhere."""
    assert kinds(confirmed(), empty_removals={0: [at_us]}) == found


@pytest.mark.parametrize(
    ("ignorance", "found"),
    [
        (Ignorance(BETWEEN, AFTER, "n2"), []),
        (Ignorance(BETWEEN, AFTER, "n1"), ["lost"]),
        (Ignorance(AFTER, AFTER, "n2"), ["lost"]),
        (Ignorance(BEFORE, BEFORE, "n2"), ["lost"]),
    ],
    ids=["it did not know", "another did not", "it was confirmed before there was anything to know", "it knew"],
)
def test_only_who_published_through_a_node_that_did_not_know_has_published_to_nowhere(
    ignorance: Ignorance, found: list[str]
) -> None:
    story = Story()
    story.log.record(Kind.CONN_OPEN, channel_id=1, node_id=1)
    told = story.tell(Kind.PUB_INVOKE, Kind.CONFIRM)
    assert kinds(told, ignorance={0: [ignorance]}, nodes=["n1", "n2"]) == found


@pytest.mark.parametrize(("sent_us", "found"), [(AFTER - 1, []), (AFTER + 1, ["lost"])])
def test_a_confirm_counts_from_when_it_was_sent(sent_us: int, found: list[str]) -> None:
    """A link that was cut may bring it long after the queue has been taken over."""
    assert kinds(confirmed_late(sent_us), lossy={0: [AFTER]}) == found
    assert kinds(confirmed_late(sent_us), empty_removals={0: [AFTER]}) == (["lost"] if not found else [])
    holders = {0: held((0, ["n1"]))}
    assert kinds(confirmed_late(sent_us), transient={KEY}, holders=holders, deaths={"n1": [AFTER]}) == found


def confirmed_late(sent_us: int) -> Story:
    """By a confirm that its client has heard a minute after."""
    story = Story().tell(Kind.PUB_INVOKE)
    story.loop.run_until(60)
    story.log.record(Kind.CONFIRM, t_lo_us=sent_us, queue_id=0, pub_id=0, seq=1, attempt=1, channel_id=1)
    return story


@pytest.mark.parametrize(("at_us", "found"), [(AFTER, []), (BEFORE, ["lost"])])
def test_only_a_lossy_promotion_after_the_confirm_excuses_a_loss(at_us: int, found: list[str]) -> None:
    assert kinds(confirmed(), lossy={0: [at_us]}) == found
    assert kinds(confirmed(), lossy={1: [AFTER]}) == ["lost"], "of another queue"


# --- what lives in memory


def held(*entries: tuple[float, Sequence[str]]) -> list[Holders]:
    """Holders from a second on, the master first; nobody: the queue is interrupted."""
    return [Holders(int(at_s * 1e6), nodes[0] if nodes else "n1", tuple(nodes), not nodes) for at_s, nodes in entries]


@pytest.mark.parametrize(
    ("deaths", "found"),
    [
        ({"n1": [AFTER], "n2": [AFTER]}, []),
        ({"n1": [AFTER], "n2": [BEFORE]}, ["lost"]),
        ({"n1": [AFTER], "n2": []}, ["lost"]),
    ],
)
def test_what_lives_in_memory_may_go_with_everybody_who_had_it(deaths: dict[str, list[int]], found: list[str]) -> None:
    holders = {0: held((0, ["n1", "n2"]))}
    assert kinds(confirmed(), transient={KEY}, holders=holders, deaths=deaths) == found
    assert kinds(confirmed(), holders=holders, deaths=deaths) == ["lost"], "a persistent one lives on disks"


def test_what_lives_in_memory_goes_with_a_copy_that_its_disk_has_ended() -> None:
    holders = {0: held((0, ["n1", "n2"]))}
    both = {0: [(AFTER, "n1"), (AFTER, "n2")]}
    assert kinds(confirmed(), transient={KEY}, holders=holders, given_up=both) == []
    assert kinds(confirmed(), transient={KEY}, holders=holders, given_up={0: both[0][:1]}) == ["lost"]
    assert kinds(confirmed(), transient={KEY}, holders=holders, given_up={1: both[0]}) == ["lost"], "another queue"
    assert kinds(confirmed(), holders=holders, given_up=both) == ["lost"], "a persistent one lives on disks"


@pytest.mark.parametrize(("at_us", "found"), [(BETWEEN, []), (BEFORE, ["lost"])])
def test_a_copy_may_be_given_up_while_its_confirm_is_on_its_way(at_us: int, found: list[str]) -> None:
    holders = {0: held((0, ["n1"]))}
    assert kinds(confirmed(), transient={KEY}, holders=holders, given_up={0: [(at_us, "n1")]}) == found


def test_where_nobody_is_known_to_have_held_it_there_is_no_excuse() -> None:
    assert kinds(confirmed(), transient={KEY}) == ["lost"]


def test_a_change_of_policy_excuses_only_if_it_took_every_copy_away() -> None:
    deaths = {"n1": [], "n2": [AFTER]}
    story = held((0, ["n1", "n2"]), (2.5, ["n2"]))
    assert kinds(confirmed(), transient={KEY}, holders={0: story}, deaths=deaths) == []
    story = held((0, ["n1", "n2"]), (2.5, ["n1"]))
    assert kinds(confirmed(), transient={KEY}, holders={0: story}, deaths=deaths) == ["lost"]


@pytest.mark.parametrize(
    ("story", "deaths", "is_there"),
    [
        ([(0, ["n1", "n2"])], [(5, "n1")], True),
        ([(0, ["n1", "n2"])], [(5, "n1"), (6, "n2")], False),
        ([(0, ["n1"]), (4, ["n1", "n2"])], [(5, "n1")], True),
        ([(0, ["n1"]), (6, ["n1", "n2"])], [(5, "n1")], False),
        ([(0, ["n1", "n2"]), (4, ["n2", "n1"])], [(5, "n1"), (5, "n2")], False),
        ([(0, ["n1", "n2"]), (4, ["n3"])], [], False),
        ([(0, ["n1", "n2"]), (4, []), (5, ["n1", "n2"])], [], False),
        ([(0, ["n1"]), (0.5, []), (0.7, ["n1"])], [], True),
        ([(2, ["n1"])], [], False),
    ],
    ids=[
        "one of two is left",
        "nobody is left",
        "a mirror was filled in time",
        "a mirror was filled by one that had begun anew",
        "a new master and its mirror die together",
        "somebody else took over",
        "an interruption",
        "an interruption before",
        "nobody held it yet",
    ],
)
def test_what_is_in_memory_lives_with_those_who_have_it_and_those_they_fill(
    story: list[tuple[int, list[str]]], deaths: list[tuple[int, str]], is_there: bool
) -> None:
    ended = [(int(at_s * 1e6), node) for at_s, node in deaths]
    assert outlives(held(*story), ended, 1_000_000) is is_there


# --- what was not synced


def found_under_flush(story: Story, **circumstances: Any) -> list[str]:
    """Of a queue that n1 and n2 hold, from the beginning on."""
    holders = {0: [Holders(0, "n1", ("n1", "n2"), is_interruption=False)]}
    return kinds(story, is_flush=True, holders=holders, **circumstances)


def test_without_syncs_before_confirms_only_what_was_unsynced_may_go() -> None:
    powers = {"n1": [AFTER]}
    early, late = {"n1": [(BEFORE, AFTER - 1)]}, {"n1": [(2_000_001, AFTER - 1)]}
    assert found_under_flush(confirmed(), powers=powers, syncs=early) == []
    assert found_under_flush(confirmed(), powers=powers, syncs=late) == ["lost"], "it was durable"
    assert found_under_flush(confirmed(), powers={"n1": [BEFORE]}) == ["lost"], "the power went before"
    assert found_under_flush(confirmed(), powers={"n3": [AFTER]}) == ["lost"], "it had nothing of the queue"
    assert kinds(confirmed(), powers=powers, syncs=early) == ["lost"], "these nodes sync first"


def test_a_confirm_may_be_on_its_way_while_the_power_goes() -> None:
    assert found_under_flush(confirmed(), powers={"n1": [BETWEEN]}) == []
    assert found_under_flush(confirmed(), powers={"n3": [BETWEEN]}) == ["lost"], "it had nothing of the queue"
    by_the_next_master = Story().tell(Kind.PUB_INVOKE).promote().tell(Kind.CONFIRM)
    assert found_under_flush(by_the_next_master, powers={"n1": [BETWEEN]}) == ["lost"]


def test_a_part_of_what_is_confirmed_together_may_have_been_confirmed_long_before() -> None:
    """Its part of the confirm is kept by the publisher's node, so the next master is not sent the message again."""

    def told() -> Story:
        return Story().tell(Kind.PUB_INVOKE).promote().tell(Kind.CONFIRM)

    after_us, before_us = 1_500_000, 500_000
    assert found_under_flush(told(), joint={KEY}, powers={"n1": [after_us]}) == []
    assert found_under_flush(told(), joint={KEY}, powers={"n1": [before_us]}) == ["lost"], "it was not published yet"
    assert found_under_flush(told(), powers={"n1": [after_us]}) == ["lost"], "the next master has confirmed it"
    assert kinds(told(), joint={KEY}, lossy={0: [after_us]}) == []
    assert kinds(told(), joint={KEY}, lossy={0: [before_us]}) == ["lost"], "it was not published yet"
    in_memory = {"transient": {KEY}, "holders": {0: held((0, ["n1"]), (2, ["n1"]))}}
    assert kinds(told(), joint={KEY}, deaths={"n1": [after_us]}, **in_memory) == []
    assert kinds(told(), joint={KEY}, deaths={"n1": [before_us]}, **in_memory) == ["lost"], "it was not published yet"


# --- repetitions


#: In `Story`, what was delivered after three seconds and acknowledged after four, to the master of epoch 2.
SETTLED = Settlement(4_000_001, 4_500_000, 2)


def test_a_message_may_come_twice_if_the_second_time_says_so() -> None:
    story = confirmed().tell(Kind.DELIVER)
    assert kinds(story.tell(Kind.DELIVER, redelivered=True).tell(Kind.ACK_SENT)) == []
    assert kinds(confirmed().tell(Kind.DELIVER, Kind.DELIVER, Kind.ACK_SENT)) == ["duplicates_unflagged"]


@pytest.mark.parametrize(
    ("hand_outs", "found"),
    [
        ([(2_500_000, 1, True), (3_500_000, 2, False)], ["duplicates_unflagged"]),
        ([(2_500_000, 1, True), (3_500_000, 1, False)], ["duplicates_unflagged"]),
        ([(2_500_000, 1, True), (3_500_000, 2, True)], []),
        ([(2_500_000, 2, True), (3_500_000, 1, False)], []),
        ([(2_400_000, 1, False), (2_500_000, 2, True)], []),
    ],
    ids=[
        "the next master knew of nothing",
        "nor did the same one, opened anew",
        "it said so, and who was between has not",
        "its predecessor has yet to hear of it",
        "it was on its way before anybody had it",
    ],
)
def test_what_somebody_has_heard_is_flagged_from_then_on(
    hand_outs: list[tuple[int, int, bool]], found: list[str]
) -> None:
    """Also if it was flagged the first time, by a master that recovered its copy and knew no better."""
    story = confirmed().tell(Kind.DELIVER, redelivered=True).tell(Kind.DELIVER).tell(Kind.ACK_SENT)
    assert kinds(story, hand_outs={KEY: [HandOut(*each) for each in hand_outs]}) == found


def test_what_was_settled_for_sure_never_comes_again_in_its_epoch() -> None:
    settled = {KEY: [SETTLED]}

    def story() -> Story:
        return confirmed().tell(Kind.DELIVER, Kind.ACK_SENT)

    assert kinds(story().tell(Kind.DELIVER, redelivered=True), settled=settled) == ["resurrected"]
    assert kinds(story().tell(Kind.DELIVER, redelivered=True)) == [], "an acknowledgement alone proves nothing"
    again = story().promote().tell(Kind.DELIVER, redelivered=True)
    assert kinds(again, settled=settled) == [], "the next master may not have heard of it"


@pytest.mark.parametrize(
    ("given_up", "found"),
    [
        ((4_500_000, "n1"), []),
        ((4_500_000, "n2"), ["resurrected"]),
        ((3_500_000, "n1"), ["resurrected"]),
        ((5_500_000, "n1"), ["resurrected"]),
    ],
    ids=["the copy of the master", "that of a mirror", "before it was settled", "after it came again"],
)
def test_a_master_that_goes_on_with_what_its_disk_has_may_have_lost_an_acknowledgement(
    given_up: tuple[int, str], found: list[str]
) -> None:
    story = confirmed().tell(Kind.DELIVER, Kind.ACK_SENT).tell(Kind.DELIVER, redelivered=True)
    holders = {0: [Holders(0, "n1", ("n1", "n2"), False), Holders(6_000_000, "n2", ("n2",), False)]}
    assert kinds(story, settled={KEY: [SETTLED]}, holders=holders, given_up={0: [given_up]}) == found


FIRST = HandOut(2_500_000, 2)


@pytest.mark.parametrize(
    ("hand_out", "found"),
    [
        (HandOut(4_500_000, 1), []),
        (HandOut(3_500_000, 1), []),
        (HandOut(3_500_000, 2), []),
        (None, ["resurrected"]),
        (HandOut(5_500_000, 1), ["resurrected"]),
        (HandOut(4_500_000, 2), ["resurrected"]),
    ],
    ids=[
        "by an earlier master, since",
        "by an earlier master, before",
        "by the master that took the acknowledgement, before: it was on its way",
        "never",
        "later than it came",
        "by the master that took the acknowledgement, since",
    ],
)
def test_what_comes_again_after_it_was_settled_must_have_been_handed_out_by_somebody_who_did_not_know(
    hand_out: HandOut | None, found: list[str]
) -> None:
    story = confirmed().tell(Kind.DELIVER, Kind.ACK_SENT).tell(Kind.DELIVER, redelivered=True)
    hand_outs = sorted([FIRST, hand_out] if hand_out else [FIRST])
    assert kinds(story, settled={KEY: [SETTLED]}, hand_outs={KEY: hand_outs}) == found


@pytest.mark.parametrize(
    ("settled", "found"),
    [
        (SETTLED._replace(epoch=3), []),
        (SETTLED._replace(began_us=FIRST.at_us + 1), []),
        (SETTLED._replace(began_us=FIRST.at_us), ["resurrected"]),
    ],
    ids=["by the master before", "in the session before", "in this session"],
)
def test_an_acknowledgement_of_what_was_handed_out_before_the_session_settles_nothing(
    settled: Settlement, found: list[str]
) -> None:
    """It was on its way to the consumer when the session began, and the acknowledgement is nobody's."""
    again = HandOut(4_500_000, settled.epoch, is_flagged=True)
    story = confirmed().tell(Kind.DELIVER, Kind.ACK_SENT).tell(Kind.DELIVER, redelivered=True)
    assert kinds(story, settled={KEY: [settled]}, hand_outs={KEY: [FIRST, again]}) == found


def test_each_time_that_a_message_is_handed_out_excuses_one_delivery() -> None:
    story = confirmed().tell(Kind.DELIVER, Kind.ACK_SENT).tell(Kind.DELIVER, Kind.DELIVER, redelivered=True)
    hand_outs = {KEY: [FIRST, HandOut(4_500_000, 1)]}
    assert kinds(story, settled={KEY: [SETTLED]}, hand_outs=hand_outs) == ["resurrected"]


@pytest.mark.parametrize("refusal", [Kind.NACK, Kind.RETURN])
def test_what_was_refused_is_never_delivered(refusal: Kind) -> None:
    story = Story().tell(Kind.PUB_INVOKE, refusal, Kind.DELIVER, Kind.ACK_SENT)
    assert kinds(story) == ["refused_but_delivered"]


def test_the_next_master_may_refuse_what_the_one_before_had_delivered() -> None:
    """It has reached its limit, and knows nothing of that message."""
    delivered = Story().tell(Kind.PUB_INVOKE, Kind.DELIVER, Kind.ACK_SENT)
    assert kinds(delivered.promote().tell(Kind.NACK)) == []
    at_once = Story().tell(Kind.PUB_INVOKE, Kind.DELIVER, Kind.NACK)
    assert kinds(at_once.promote().tell(Kind.ACK_SENT)) == ["refused_but_delivered"], "by the same one"
    after = Story().tell(Kind.PUB_INVOKE, Kind.DELIVER).promote().tell(Kind.NACK, Kind.DELIVER)
    assert kinds(after.tell(Kind.ACK_SENT)) == ["duplicates_unflagged", "refused_but_delivered"], "nor ever after it"


@pytest.mark.parametrize(("epoch", "found"), [(1, []), (2, ["refused_but_delivered"])])
def test_a_master_may_deliver_what_its_successor_refuses_as_long_as_it_has_not_heard_of_it(
    epoch: int, found: list[str]
) -> None:
    """A change of policy moves the queue, and ends nobody (22682)."""
    story = Story().tell(Kind.PUB_INVOKE).promote().tell(Kind.DELIVER, Kind.NACK, Kind.ACK_SENT)
    assert kinds(story, hand_outs={KEY: [HandOut(2_500_000, epoch)]}) == found


def test_a_third_master_may_deliver_what_the_second_refused_and_it_has_from_the_first() -> None:
    story = Story().tell(Kind.PUB_INVOKE).promote().tell(Kind.NACK)
    assert kinds(story.promote().tell(Kind.DELIVER, Kind.ACK_SENT)) == []
    same_master = Story().tell(Kind.PUB_INVOKE).promote().tell(Kind.NACK, Kind.DELIVER, Kind.ACK_SENT)
    assert kinds(same_master) == ["refused_but_delivered"]
    not_before = Story().tell(Kind.PUB_INVOKE, Kind.NACK).promote().tell(Kind.DELIVER, Kind.ACK_SENT)
    assert kinds(not_before) == ["refused_but_delivered"], "the first of its masters refused it"


@pytest.mark.parametrize(
    ("given_up", "found"),
    [
        ((2_500_000, "n1"), []),
        ((2_500_000, "n2"), ["refused_but_delivered"]),
        ((500_000, "n1"), ["refused_but_delivered"]),
        ((3_500_000, "n1"), ["refused_but_delivered"]),
    ],
)
def test_a_master_may_refuse_what_it_had_delivered_before_its_disk_ended_its_copy(
    given_up: tuple[int, str], found: list[str]
) -> None:
    """It goes on in its epoch, with what the disk has (13191, five nodes)."""
    story = Story().tell(Kind.PUB_INVOKE, Kind.DELIVER, Kind.NACK, Kind.ACK_SENT)
    holders = {0: [Holders(0, "n1", ("n1", "n2"), is_interruption=False)]}
    assert kinds(story, holders=holders, given_up={0: [given_up]}) == found


def test_what_was_returned_is_confirmed_and_gone() -> None:
    assert kinds(Story().tell(Kind.PUB_INVOKE, Kind.RETURN, Kind.CONFIRM)) == []


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


class Pair:
    """Two messages of one channel, of which each is published, confirmed, delivered and settled."""

    KEYS: tuple[AttemptKey, AttemptKey] = ((0, 0, 1, 1), (0, 0, 2, 1))

    def __init__(self, *, is_promoted: bool = False) -> None:
        loop = simulated_loop()
        self.history = MemoryHistory(loop)
        publisher, consumers = self.history.process(ProcKind.PUBLISHER), []
        for kind in (Kind.PUB_INVOKE, Kind.CONFIRM, Kind.DELIVER, Kind.ACK_SENT):
            for number in (1, 2):
                loop.run_until(loop.now_s + 1)
                if kind == Kind.DELIVER:  # each by another client
                    consumers.append(self.history.process(ProcKind.CONSUMER))
                log = consumers[number - 1] if kind in (Kind.DELIVER, Kind.ACK_SENT) else publisher
                log.record(kind, queue_id=0, pub_id=0, seq=number, attempt=1, channel_id=1, crc_ok=True)
            if is_promoted:
                publisher.record(Kind.PROMOTE, queue_id=0, epoch=2)
        for log in self.history.logs:
            log.end()

    def found(self, first: HandOut, second: HandOut) -> list[str]:
        hand_outs = {self.KEYS[0]: [first], self.KEYS[1]: [second]}
        return [violation.kind for violation in judge(self.history.events, Circumstances(hand_outs=hand_outs))]


@pytest.mark.parametrize("is_promoted", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (HandOut(4_500_000, 1, position=1), HandOut(4_500_000, 1, position=2), []),
        (HandOut(4_500_000, 1, position=2), HandOut(4_500_000, 1, position=1), ["order"]),
        (HandOut(4_500_000, 1, is_flagged=True, position=2), HandOut(4_500_000, 1, position=1), []),
        (HandOut(4_500_000, 1, position=2), HandOut(4_500_000, 1, is_flagged=True, position=1), []),
        (HandOut(4_500_000, 2, position=2), HandOut(4_500_000, 1, position=1), []),
        (HandOut(4_500_000, 1, position=2, queue_id=7), HandOut(4_500_000, 1, position=1, queue_id=9), []),
    ],
)
def test_a_master_hands_out_in_the_order_of_publishing_whoever_gets_it(
    first: HandOut, second: HandOut, found: list[str], is_promoted: bool
) -> None:
    """Also if masters change meanwhile, which excuses what clients hear. Not the masters of two queues of one name: who
    has yet to hear that its queue is deleted goes on."""
    assert Pair(is_promoted=is_promoted).found(first, second) == found
