"""As in `test_planted`, of what clients ask for besides: exchanges and bindings, rejections, deletions of what is
unused, channel.flow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

import chaos.sim
from chaos.sim.answers import OUT_OF_REACH
from chaos.sim.drawing import LEAVING_OUT, draw_schedule
from chaos.sim.run import Outcome, run_schedule
from chaos.sim.schedule import (
    ARGUED,
    BY_POLICY,
    DIRECT,
    HEADERS,
    TOPIC,
    WIRING_KINDS,
    Schedule,
    read_schedule,
    write_schedule,
)
from cluster.metadata.state import MetadataState
from cluster.metadata.view import MetadataView
from node.amqp import channel, deliveries
from node.amqp.channel import ChannelMachine
from node.amqp.channel_events import Settlement
from node.errors import ChannelError
from node.queues.queue_process import QueueProcess
from node.routing import exchange_matchers
from node.routing.exchange_matchers import DirectMatcher, TopicMatcher
from node.routing.router import Router
from node.topology.records import BindingRecord
from tests.support.simulated import publish, schedule

ROOT = Path(chaos.sim.__file__).parents[2]
WAY = "although it has a way"
NO_WAY = "although it has no way"


def wired(kind: str) -> Schedule:
    return schedule((100, "wiring", 0, 500, kind), consumers=0)


def said(tried: Schedule) -> str:
    """All violations."""
    return "\n".join(map(str, run_schedule(tried).violations))


@pytest.mark.parametrize("kind", WIRING_KINDS)
def test_exchanges_of_every_kind_come_and_go_in_a_sound_cluster(kind: str) -> None:
    outcome: Outcome = run_schedule(wired(kind))
    assert outcome.violations == []
    assert "a binding between exchanges went" in outcome.sightings
    assert "an unused queue was deleted on that condition" in outcome.sightings


def test_a_step_that_was_kept_before_there_were_kinds_is_of_the_first() -> None:
    assert said(schedule((100, "wiring", 0, 300))) == ""


# --- exchanges


def test_a_binding_that_stays_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for matcher, kind in ((DirectMatcher, DIRECT), (TopicMatcher, TOPIC)):
        monkeypatch.setattr(matcher, "remove", lambda _self, _binding: None)
        assert NO_WAY in said(wired(kind))


def test_an_unbinding_of_an_exchange_that_some_answer_survives_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node remembers where it has routed something, and does not forget it."""
    removed = Router.binding_removed

    def remember(self: Router, binding: BindingRecord) -> None:
        kept = dict(self.cached(binding.vhost))
        removed(self, binding)
        if binding.destination_kind == "exchange":
            self._caches[binding.vhost] = kept

    monkeypatch.setattr(Router, "binding_removed", remember)
    monkeypatch.setattr(Router, "check_invariants", lambda _self: None)
    assert NO_WAY in said(wired(DIRECT))


def test_a_topic_exchange_that_does_not_know_its_patterns_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicMatcher, "match", DirectMatcher.match)
    monkeypatch.setattr(TopicMatcher, "_by_key", {}, raising=False)
    assert WAY in said(wired(TOPIC))


def test_a_headers_exchange_that_is_content_with_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        exchange_matchers,
        "headers_match",
        lambda arguments, headers: any(headers.get(key) == value for key, value in arguments.items()),
    )
    assert NO_WAY in said(wired(HEADERS))


@pytest.mark.parametrize("kind", [ARGUED, BY_POLICY])
def test_an_alternate_exchange_that_is_passed_over_is_found(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(MetadataView, "exchange_settings", lambda _self, _exchange: {})
    assert WAY in said(wired(kind))


def test_an_alternate_exchange_that_has_what_others_take_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Router._step

    def both(self: Router, exchange: Any, *arguments: Any) -> list[str]:
        alternate = self._alternate_exchange(exchange)
        return [*step(self, exchange, *arguments), *([] if alternate is None else [alternate])]

    monkeypatch.setattr(Router, "_step", both)
    assert NO_WAY in said(wired(ARGUED))


def test_a_policy_that_routes_are_not_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    forgetful = property(lambda _self: lambda _vhost: None, lambda *_: None)
    monkeypatch.setattr(MetadataState, "on_policies_changed", forgetful, raising=False)
    monkeypatch.setattr(Router, "check_invariants", lambda _self: None)
    assert NO_WAY in said(wired(BY_POLICY))


@pytest.mark.slow
def test_a_node_knows_no_route_of_policies_that_it_does_not_have_any_more() -> None:
    """Between the pieces of the change, which are as many as there are queues."""
    slowly = schedule((100, "wiring", 0, 300, BY_POLICY), queues=3, slice_pieces=1)
    assert run_schedule(slowly, checks_every=1).violations == []


def test_what_a_wired_queue_loses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0

    def lose(original: Callable[..., Any]) -> Callable[..., Any]:
        def publish_and_lose(self: QueueProcess, *arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            came_of_it = original(self, *arguments, **options)
            if count == 5:
                self.purge()
            return came_of_it

        return publish_and_lose

    monkeypatch.setattr(QueueProcess, "publish", lose(QueueProcess.publish))
    assert "x0 has " in said(wired(TOPIC))


def test_what_is_out_of_reach_is_said_by_the_product() -> None:
    """Somebody who changes the wording would have the simulator call it missing."""
    said_by_nodes = "".join(path.read_text() for part in ("node", "cluster") for path in (ROOT / part).rglob("*.py"))
    assert all(text in said_by_nodes for text in OUT_OF_REACH)


# --- deletions of what is unused


def test_a_used_queue_that_is_deleted_as_unused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = QueueProcess.seal_for_delete
    monkeypatch.setattr(QueueProcess, "seal_for_delete", lambda self, _if_unused, if_empty: seal(self, False, if_empty))
    assert "was deleted as unused beside a consumer" in said(wired(DIRECT))


def test_an_unused_queue_that_is_not_deleted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = QueueProcess.seal_for_delete

    def refuse(self: QueueProcess, if_unused: bool, if_empty: bool) -> int:
        if if_unused:
            raise ChannelError(406, "in use")
        return seal(self, if_unused, if_empty)

    monkeypatch.setattr(QueueProcess, "seal_for_delete", refuse)
    assert "was not deleted as unused" in said(wired(DIRECT))


# --- rejections

REJECTED = schedule(publish(100, 9), (200, "consume", 0, 0), prefetch=1, reject_percent=100)


def misread(monkeypatch: pytest.MonkeyPatch, read: Settlement, meant: Settlement) -> None:
    settlement = deliveries._settlement
    monkeypatch.setattr(deliveries, "_settlement", lambda bits: read if settlement(bits) is meant else settlement(bits))


@pytest.mark.slow
def test_a_rejection_for_good_that_brings_the_message_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = run_schedule(REJECTED)
    assert outcome.violations == []
    assert {"a message was rejected for good", "an acknowledgement was proven"} <= set(outcome.sightings)
    misread(monkeypatch, Settlement.REQUEUE, Settlement.DISCARD)
    assert "resurrected" in said(REJECTED)


def test_a_rejection_that_does_not_bring_the_message_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    back = schedule(publish(100, 9), (200, "consume", 0, 0), reject_percent=100, requeue_percent=60)
    outcome = run_schedule(back)
    assert outcome.violations == []
    assert "a message was rejected and came back" in outcome.sightings
    misread(monkeypatch, Settlement.DISCARD, Settlement.REQUEUE)
    assert "vanished" in said(back)


# --- channel.flow


def test_a_promise_to_stop_the_flow_of_a_channel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = schedule(publish(100, 3), (200, "consume", 0, 0), (500, "flow", 0, 0), publish(700, 3), hold_percent=100)
    outcome = run_schedule(stopped)
    assert outcome.violations == []
    assert "a client was refused to stop the flow of a channel" in outcome.sightings

    def promise(self: ChannelMachine, method: commands.Channel.Flow) -> None:
        self._send(commands.Channel.FlowOk, method.active)

    monkeypatch.setitem(channel._HANDLERS, commands.Channel.Flow, promise)
    assert "has stopped the flow" in said(stopped)


def test_a_flow_that_need_not_be_changed_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = schedule((200, "consume", 0, 0), (500, "flow", 0, 1), publish(700, 3))
    assert said(goes_on) == ""
    stop = ChannelMachine._change_flow
    monkeypatch.setitem(
        channel._HANDLERS, commands.Channel.Flow, lambda self, _method: stop(self, commands.Channel.Flow(active=False))
    )
    assert "540 NOT_IMPLEMENTED" in said(goes_on)


# --- what is drawn


def test_seeds_ask_for_all_of_it_and_are_kept_as_they_are(tmp_path: Path) -> None:
    drawn = [draw_schedule(seed) for seed in range(100)]
    asked = [step for each in drawn for step in each.steps if step.kind in ("wiring", "flow")]
    assert {step.args[2] for step in asked if step.kind == "wiring"} == set(WIRING_KINDS)
    assert {step.args[1] for step in asked if step.kind == "flow"} == {0, 1}
    shares = [
        sum(map(bool, each))
        for each in zip(*((d.personality.wirings, d.personality.reject_percent) for d in drawn), strict=True)
    ]
    assert all(3 < share < 60 for share in shares), "neither never nor always"
    assert all(LEAVING_OUT.isdisjoint(each.personality.faults) for each in drawn if each.personality.wirings)
    wired_one = next(each for each in drawn if each.personality.wirings)
    write_schedule(wired_one, tmp_path / "kept.json", "nothing: at all")
    assert read_schedule(tmp_path / "kept.json") == wired_one


# --- limits of channels

LIMITED = schedule(
    (50, "consume", 0, 0), (60, "consume", 1, 0), publish(100, 20), has_channel_limits=True, prefetch=2, consumers=2
)


def test_a_limit_of_whole_channels_is_kept() -> None:
    assert said(LIMITED) == ""


def test_a_channel_that_does_not_keep_its_limit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    count = deliveries.Deliveries._send

    def forget_to_count(self: deliveries.Deliveries, *batch: Any) -> None:
        count(self, *batch)
        self._counted = 0

    monkeypatch.setattr(deliveries.Deliveries, "_send", forget_to_count)
    monkeypatch.setattr(deliveries.Deliveries, "check_invariants", lambda _self, _consumers: None)
    assert "and its limit is 2" in said(LIMITED)
