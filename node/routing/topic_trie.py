"""Topic matching: a trie of the words of the binding keys.

Words are separated by dots; an empty key is zero words, and ``a..b`` has an empty word in the middle. In a binding key
``*`` stands for exactly one word (also an empty one) and ``#`` for zero or more.

Matching walks the trie with *all* positions in the routing keys at which a node can be reached, as the bits of a number
(bit n: behind the first n words of the first key; the others follow). The child of a literal word is reached behind
each of its places among them, the child ``*`` one further behind all of them, the child ``#`` everywhere from the first
of them on. So each node is looked at once, however many ways lead to it, and however many keys a message has: a match
costs no more than the binding keys have words.
"""

from __future__ import annotations

from collections.abc import Sequence

from node.topology.bindings import Destination

ONE_WORD = "*"
ANY_WORDS = "#"


class _Node:
    __slots__ = ("children", "destinations")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        #: Destinations of the binding keys that end here, with how many bindings each has (they differ in arguments).
        self.destinations: dict[Destination, int] = {}


def split_key(key: str) -> list[str]:
    """The words of a key: none for the empty key."""
    return key.split(".") if key else []


def _places(routing_keys: Sequence[str]) -> tuple[dict[str, int], int, int]:
    """Where each word is, and where the keys begin and end. A routing key may contain the wildcard characters as plain
    words; they match only as such words, which no binding key has."""
    places: dict[str, int] = {}
    starts = ends = position = 0
    for key in routing_keys:
        starts |= 1 << position
        for word in split_key(key):
            if word not in (ONE_WORD, ANY_WORDS):
                places[word] = places.get(word, 0) | 1 << position
            position += 1
        ends |= 1 << position
        position += 2
    return places, starts, ends


class TopicTrie:
    """Binding keys with their destinations."""

    __slots__ = ("_root", "looked_at")

    def __init__(self) -> None:
        self._root = _Node()
        #: Words of binding keys that the last match has looked at.
        self.looked_at = 0

    def add(self, binding_key: str, destination: Destination) -> None:
        node = self._root
        for word in split_key(binding_key):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
            node = child
        node.destinations[destination] = node.destinations.get(destination, 0) + 1

    def remove(self, binding_key: str, destination: Destination) -> None:
        """Undo one `add`; branches that lead nowhere are cut off. Unknown bindings are an error of ours."""
        path = [self._root]
        words = split_key(binding_key)
        for word in words:
            path.append(path[-1].children[word])
        counts = path[-1].destinations
        counts[destination] -= 1
        if not counts[destination]:
            del counts[destination]
        for depth in range(len(words), 0, -1):
            if path[depth].children or path[depth].destinations:
                break
            del path[depth - 1].children[words[depth - 1]]

    def match(self, *routing_keys: str) -> set[Destination]:
        """Destinations of every binding key that matches one of these."""
        places, starts, ends = _places(routing_keys)
        within = 2 * ends  # the bit above each end is nobody's
        everywhere = within - starts
        found: set[Destination] = set()
        looked_at = 0
        todo = [(self._root, starts)]
        while todo:
            node, reached = todo.pop()
            looked_at += 1
            if reached & ends:
                found.update(node.destinations)
            children = node.children
            if not children:
                continue
            if len(children) <= len(places):
                for word, child in children.items():
                    if here := reached & places.get(word, 0):
                        todo.append((child, here << 1))
            else:
                for word, at in places.items():
                    if (here := reached & at) and (known := children.get(word)) is not None:
                        todo.append((known, here << 1))
            one_word = children.get(ONE_WORD)
            if one_word is not None and (here := reached & ~ends):
                todo.append((one_word, here << 1))
            any_words = children.get(ANY_WORDS)
            if any_words is not None:
                # Of each key the first position, and from there on all of them: nothing is borrowed from the next key.
                first = reached & (within - reached)
                todo.append((any_words, (within - first) & everywhere))
        self.looked_at = looked_at
        return found

    def check_invariants(self) -> None:
        todo = list(self._root.children.values())
        while todo:
            node = todo.pop()
            assert node.children or node.destinations, "a branch that leads nowhere was not cut off"
            assert all(count > 0 for count in node.destinations.values()), "a destination without bindings stayed"
            todo.extend(node.children.values())
