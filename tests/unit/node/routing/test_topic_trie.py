"""Topic patterns by example; `tests/property/node/test_topic_oracle.py` compares with regular expressions."""

from __future__ import annotations

import pytest

from node.routing.topic_trie import TopicTrie
from node.topology.bindings import Destination

Q = Destination("queue", "q")


@pytest.mark.parametrize(
    ("binding_key", "matching", "others"),
    [
        ("", [""], ["a", "."]),
        ("a.b", ["a.b"], ["a", "a.b.c", "b.a", ""]),
        ("*", ["a", "#"], ["", "a.b"]),
        ("#", ["", "a", "a.b.c", "..", "*"], []),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["", "b.a"]),
        ("#.z", ["z", "a.z", "a.z.z"], ["", "z.a"]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.z.b"]),
        ("#.*", ["a", "a.b"], [""]),
        ("#.m.#", ["m", "a.m", "m.b", "a.m.b"], ["", "a.b"]),
        ("*.*", [".", "a.b"], ["a", "a.b.c"]),
    ],
)
def test_what_a_binding_key_matches(binding_key: str, matching: list[str], others: list[str]) -> None:
    trie = TopicTrie()
    trie.add(binding_key, Q)
    trie.check_invariants()
    assert [key for key in matching if not trie.match(key)] == []
    assert [key for key in others if trie.match(key)] == []


def test_a_destination_is_found_once_however_many_keys_match() -> None:
    trie = TopicTrie()
    other = Destination("exchange", "q")
    for key in ("a.b", "a.*", "#", "#.b"):
        trie.add(key, Q)
    trie.add("*.b", other)
    assert trie.match("a.b") == {Q, other}


def test_removing_takes_away_one_binding_and_cuts_dead_branches() -> None:
    trie = TopicTrie()
    trie.add("a.#.b", Q)
    trie.add("a.#.b", Q)
    trie.add("a", Q)
    trie.remove("a.#.b", Q)
    assert trie.match("a.x.b") == {Q}
    trie.remove("a.#.b", Q)
    trie.check_invariants()
    assert trie.match("a.x.b") == set()
    assert trie.match("a") == {Q}


def test_many_hashes_do_not_take_exponential_time() -> None:
    trie = TopicTrie()
    trie.add(".".join(["#"] * 20) + ".end", Q)
    assert trie.match(".".join(["x"] * 120)) == set()
    assert trie.match(".".join(["x"] * 120) + ".end") == {Q}
