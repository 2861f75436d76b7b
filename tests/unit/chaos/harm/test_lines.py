"""What proxies must be like, when several faults lie on them and end in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.harm.lines import (
    CLIENTS,
    DOWNSTREAM,
    UPSTREAM,
    Line,
    LineFaults,
    ProxyState,
    Toxic,
    all_lines,
    directed,
    of_connections,
    swizzled,
)

THREE = all_lines([1, 2, 3], with_clients=True)
CLEAR = ProxyState()


def toxics(faults: LineFaults, line: Line) -> set[tuple[str, str]]:
    return {(toxic.type, toxic.stream) for toxic in faults.state(line).toxics}


def test_there_is_a_line_each_way_and_one_from_clients() -> None:
    assert all_lines([1, 2], with_clients=True) == {Line(1, 2), Line(2, 1), Line(CLIENTS, 1), Line(CLIENTS, 2)}
    assert all_lines([1, 2], with_clients=False) == {Line(1, 2), Line(2, 1)}
    assert (Line(1, 2).proxy, Line(CLIENTS, 3).proxy) == ("n1-n2", "clients-n3")


def test_what_one_sends_to_the_other_passes_two_proxies() -> None:
    faults = LineFaults(THREE)
    assert faults.lay(1, "black hole", [Line(1, 2)], {}) == {Line(1, 2), Line(2, 1)}
    assert toxics(faults, Line(1, 2)) == {("timeout", UPSTREAM)}
    assert toxics(faults, Line(2, 1)) == {("timeout", DOWNSTREAM)}
    assert faults.state(Line(1, 3)) == CLEAR


def test_clients_open_all_their_connections() -> None:
    faults = LineFaults(THREE)
    faults.lay(1, "black hole", [Line(CLIENTS, 1), Line(2, CLIENTS)], {})
    assert toxics(faults, Line(CLIENTS, 1)) == {("timeout", UPSTREAM)}
    assert toxics(faults, Line(CLIENTS, 2)) == {("timeout", DOWNSTREAM)}


def test_both_ways_is_every_stream() -> None:
    faults = LineFaults(THREE)
    faults.lay(1, "delay", directed([1], [2], is_both_ways=True), {"latency": 0.2, "jitter": 0.05})
    for line in (Line(1, 2), Line(2, 1)):
        assert faults.state(line).toxics == {
            Toxic(f"f1_{stream}", "latency", stream, (("jitter", 50), ("latency", 200)))
            for stream in (UPSTREAM, DOWNSTREAM)
        }


@pytest.mark.parametrize(
    ("fault", "told", "kind", "attributes"),
    [
        ("delay", {"latency": 2.0}, "latency", (("jitter", 0), ("latency", 2000))),
        ("throttle", {"rate": 64_000}, "bandwidth", (("rate", 64),)),
        ("throttle", {"rate": 10}, "bandwidth", (("rate", 1),)),
        ("slice", {"size": 7, "pause": 0.001}, "slicer", (("average_size", 7), ("delay", 1000), ("size_variation", 0))),
        ("limit", {"size": 1013}, "limit_data", (("bytes", 1013),)),
    ],
)
def test_faults_of_bytes(
    fault: str, told: dict[str, float], kind: str, attributes: tuple[tuple[str, int], ...]
) -> None:
    faults = LineFaults(THREE)
    faults.lay(4, fault, [Line(CLIENTS, 1)], told)
    assert faults.state(Line(CLIENTS, 1)).toxics == {Toxic("f4_upstream", kind, UPSTREAM, attributes)}


def test_a_cut_outweighs_what_else_lies_there() -> None:
    faults = LineFaults(THREE)
    faults.lay(1, "cut", [Line(1, 2)], {})
    faults.lay(2, "reset", [Line(1, 2)], {})
    assert not faults.state(Line(1, 2)).is_enabled
    assert faults.state(Line(2, 1)) == CLEAR, "the other's connections"
    assert faults.lift(1) == {Line(1, 2)}
    assert faults.state(Line(1, 2)).is_enabled
    assert toxics(faults, Line(1, 2)) == {("reset_peer", UPSTREAM), ("reset_peer", DOWNSTREAM)}
    assert faults.lift(1) == set(), "it has ended"


def test_a_line_of_a_fault_may_come_back_before_the_others() -> None:
    faults = LineFaults(THREE)
    faults.lay(1, "swizzle", [Line(1, 2), Line(2, 1)], {})
    assert faults.lift(1, only=Line(1, 2)) == {Line(1, 2)}
    assert faults.state(Line(1, 2)) == CLEAR
    assert not faults.state(Line(2, 1)).is_enabled
    assert not faults.is_clear
    faults.lift(1, only=Line(2, 1))
    assert faults.is_clear


FAULTS = st.tuples(
    st.sampled_from(["cut", "black hole", "reset", "limit"]),
    st.sets(st.sampled_from(sorted(THREE)), min_size=1),
)


@given(st.lists(FAULTS, max_size=6), st.randoms(use_true_random=False))
def test_when_all_have_ended_nothing_is_left(drawn: list[tuple[str, set[Line]]], chance: random.Random) -> None:
    faults = LineFaults(THREE)
    for number, (fault, on) in enumerate(drawn, 1):
        changed = faults.lay(number, fault, on, {"size": 5})
        assert all(faults.state(line) != CLEAR for line in changed)
        faults.check_invariants()
    ending = list(range(1, len(drawn) + 1))
    chance.shuffle(ending)
    for number in ending:
        faults.lift(number)
        faults.check_invariants()
    assert faults.is_clear
    assert {faults.state(line) for line in THREE} == {CLEAR}


def test_pairs_of_nodes() -> None:
    assert directed([1], [1, 2, 3], is_both_ways=False) == [Line(1, 2), Line(1, 3)]
    assert directed([1], [2], is_both_ways=True) == [Line(1, 2), Line(2, 1)]
    assert directed([1, 2], [1, 2], is_both_ways=True) == [Line(1, 2), Line(2, 1)]
    assert of_connections(directed([CLIENTS], [1, 2], is_both_ways=True)) == [Line(CLIENTS, 1), Line(CLIENTS, 2)]
    assert of_connections([Line(2, 1), Line(1, CLIENTS)]) == [Line(CLIENTS, 1), Line(2, 1)]


def test_a_swizzle_takes_every_line_once_in_an_order_by_chance() -> None:
    lines = sorted(THREE)
    drawn = swizzled(lines, random.Random(1), 9.0)
    assert sorted(line for _, line in drawn) == lines
    assert [at for at, _ in drawn] == pytest.approx([number for number in range(9)])
    assert drawn == swizzled(lines, random.Random(1), 9.0)
    assert [line for _, line in drawn] != [line for _, line in swizzled(lines, random.Random(2), 9.0)]
