"""Topic patterns by example; `tests/property/node/test_topic_oracle.py` compares with regular expressions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from node.routing import topic_trie
from node.routing.topic_trie import PORTION, TopicTrie
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


class CountedChildren(dict[str, Any]):
    """Of one node: how often a child is asked for or looked at."""

    looks = 0

    def get(self, word: str, default: Any = None) -> Any:
        CountedChildren.looks += 1
        return super().get(word, default)

    def items(self) -> Any:
        CountedChildren.looks += len(self)
        return super().items()


def test_a_portion_looks_at_each_word_of_the_binding_keys_once() -> None:
    """Not at each with each word of the routing key: clients choose both, and all others wait meanwhile."""
    trie = TopicTrie()
    for number in range(20):
        trie.add(f"#.{number}." + ".".join(["#", "a"] * 60), Q)
        trie.add("#." + ".".join(["*"] * number) + ".#." + ".".join(["*", "#", "a"] * 40), Q)
    nodes = 0
    todo = [trie._root]
    while todo:
        node = todo.pop()
        nodes += 1
        todo += node.children.values()
        node.children = CountedChildren(node.children)
    keys = (".".join(["a"] * 127), *(f"{number}" + ".a" * 100 for number in range(30)))
    assert sum(key.count(".") + 3 for key in keys) < PORTION
    trie.match(*keys)
    assert 0 < CountedChildren.looks <= 4 * nodes


@pytest.mark.parametrize("portion", [1, 5, PORTION])
def test_keys_of_one_message_are_matched_each_by_itself(portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_trie, "PORTION", portion)
    trie = TopicTrie()
    for number, key in enumerate(("a.*", "b", "#.b", "c.#", "*.*.*", "#.d.#", "*.c", "")):
        trie.add(key, Destination("queue", f"{number} {key}"))
    keys = ("a", "b.c", "", "c", "x.d", "d.b", "*", "#.#")
    for count in range(len(keys) + 1):
        together = trie.match(*keys[:count])
        assert together == set().union(*(trie.match(key) for key in keys[:count]))


@dataclass
class WatchedPlaces:
    """Computes the numbers of a match, and notes how many there were and how wide the widest was."""

    compute: Callable[..., Any]
    widest: int = 0
    most: int = 0

    def __call__(self, *arguments: Any) -> Any:
        places, starts, ends, *others = self.compute(*arguments)
        self.widest = max(self.widest, *(number.bit_length() for number in (starts, ends, *places.values())))
        self.most = max(self.most, len(places))
        return places, starts, ends, *others


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> WatchedPlaces:
    places = WatchedPlaces(topic_trie._places)
    monkeypatch.setattr(topic_trie, "_places", places)
    return places


def test_numbers_are_no_wider_than_a_portion_and_one_key_however_many_keys_there_are(watched: WatchedPlaces) -> None:
    """There is one for each word: cost and memory would grow with the square of the keys of one message."""
    trie = TopicTrie()
    for number in range(5_000):
        trie.add(f"{number}.#", Destination("queue", str(number)))
    longest_key = ".".join(["x"] * 128)
    found = trie.match(*(f"{number}" for number in range(5_000)), *[longest_key] * 50)
    assert len(found) == 5_000
    assert watched.widest <= PORTION + 128 + 1
    assert watched.most <= PORTION


def test_only_words_of_binding_keys_are_given_a_number(watched: WatchedPlaces) -> None:
    """A single key may be as long as a frame, and cannot be taken in portions."""
    trie = TopicTrie()
    trie.add("#.7.#", Q)
    trie.add("#.8.#", Q)
    trie.remove("#.8.#", Q)
    assert trie.match(".".join(map(str, range(10_000)))) == {Q}
    assert watched.most == 1


def test_the_words_of_the_routing_keys_count_as_looked_at() -> None:
    trie = TopicTrie()
    trie.add("a.*", Q)
    trie.match(*(f"{number}.b" for number in range(10_000)))
    assert 20_000 <= trie.looked_at <= 21_000
    trie.match("a.b")
    assert trie.looked_at == 2 + 3


def test_children_that_are_looked_up_count_as_well() -> None:
    trie = TopicTrie()
    for number in range(1_000):
        trie.add(f"a.{number}", Q)
    assert trie.match("a.x") == set()
    assert trie.looked_at == 2 + 2, "the smaller side of a comparison is gone through"
    trie.match(*map(str, range(1_000)), "a")
    assert trie.looked_at >= 1_001 + 1_000 // 8
