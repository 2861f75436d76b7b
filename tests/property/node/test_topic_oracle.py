"""The topic trie against regular expressions: every binding key is also a regex over the words of a routing key."""

from __future__ import annotations

import re
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from node.routing import topic_trie
from node.routing.topic_trie import TopicTrie, split_key
from node.topology.bindings import Destination

routing_keys = st.lists(st.sampled_from(["a", "b", "", "cc"]), max_size=6).map(".".join)
binding_keys = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5).map(".".join)


def oracle(binding_key: str, routing_key: str) -> bool:
    """Each word of the routing key is written ``word/``; then ``*`` is one such group and ``#`` any number."""
    patterns = {"*": "[^/]*/", "#": "(?:[^/]*/)*"}
    pattern = "".join(patterns.get(word, re.escape(word) + "/") for word in split_key(binding_key))
    return re.fullmatch(pattern, "".join(word + "/" for word in split_key(routing_key))) is not None


@given(st.lists(binding_keys, max_size=12), st.lists(routing_keys, min_size=1, max_size=5), st.data())
def test_the_trie_agrees_with_regular_expressions(bound: list[str], keys: list[str], data: st.DataObject) -> None:
    trie = TopicTrie()
    live = []
    for number, binding_key in enumerate(bound):
        destination = Destination("queue", str(number))
        trie.add(binding_key, destination)
        live.append((binding_key, destination))
    for binding in data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []:
        trie.remove(*binding)
        live.remove(binding)
        trie.check_invariants()
    expected = [{destination for binding_key, destination in live if oracle(binding_key, key)} for key in keys]
    assert [trie.match(key) for key in keys] == expected
    with patch.object(topic_trie, "PORTION", data.draw(st.integers(1, 20))):
        assert trie.match(*keys) == set().union(*expected)
