"""Topic matching: a trie of the words of the binding keys.

Words are separated by dots; an empty key is zero words, and ``a..b`` has an empty word in the middle. In a binding key
``*`` stands for exactly one word (also an empty one) and ``#`` for zero or more.

Matching walks the trie with *all* positions in the routing keys at which a node can be reached, as the bits of a number
(bit n: behind the first n words of the first key; the others follow). The child of a literal word is reached behind
each of its places among them, the child ``*`` one further behind all of them, the child ``#`` everywhere from the first
of them on. So each node is looked at once, however many ways lead to it.

A client may name thousands of keys for one message. The numbers are as wide as the keys together, and each word has
one: cost and memory would grow with the square of the keys. So the keys are taken in portions, each with a walk of its
own, and only words that some binding key has are given a number. A match costs the words of the routing keys, and for
each portion of them no more than the binding keys have words.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from node.topology.bindings import Destination

ONE_WORD = "*"
ANY_WORDS = "#"
#: Positions in routing keys after which the keys that are left have a walk of their own (a key is not cut). A number
#: has half a kilobyte then, and to compute with it takes no longer than all else that is done at a node.
PORTION = 4096
#: Look-ups of words (two to this power) that count as one word looked at: they take about as long as a node.
LOOK_UPS_SHIFT = 3


class _Node:
    __slots__ = ("children", "destinations")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        #: Destinations of the binding keys that end here, with how many bindings each has (they differ in arguments).
        self.destinations: dict[Destination, int] = {}


def split_key(key: str) -> list[str]:
    """The words of a key: none for the empty key."""
    return key.split(".") if key else []


def _places(routing_keys: Sequence[str], known: Container[str]) -> tuple[dict[str, int], int, int, int]:
    """Where each known word is, where the keys begin and end, and how many keys that is: the first of these, up to a
    portion."""
    places: dict[str, int] = {}
    starts = ends = position = keys = 0
    for key in routing_keys:
        starts |= 1 << position
        for word in split_key(key):
            if word in known:
                places[word] = places.get(word, 0) | 1 << position
            position += 1
        ends |= 1 << position
        position += 2
        keys += 1
        if position >= PORTION:
            break
    return places, starts, ends, keys


class TopicTrie:
    """Binding keys with their destinations."""

    __slots__ = ("_root", "_words", "looked_at")

    def __init__(self) -> None:
        self._root = _Node()
        #: How often the binding keys have each word that is no wildcard. A routing key may contain the wildcard
        #: characters as plain words; no binding key has such words.
        self._words: dict[str, int] = {}
        #: Words that the last match has looked at: those of the routing keys and, for each portion of them, those of
        #: the binding keys that it came to.
        self.looked_at = 0

    def add(self, binding_key: str, destination: Destination) -> None:
        node = self._root
        for word in split_key(binding_key):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node()
            node = child
            if word not in (ONE_WORD, ANY_WORDS):
                self._words[word] = self._words.get(word, 0) + 1
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
        self._forget(words)
        for depth in range(len(words), 0, -1):
            if path[depth].children or path[depth].destinations:
                break
            del path[depth - 1].children[words[depth - 1]]

    def _forget(self, words: Sequence[str]) -> None:
        for word in words:
            if word not in (ONE_WORD, ANY_WORDS):
                self._words[word] -= 1
                if not self._words[word]:
                    del self._words[word]

    def match(self, *routing_keys: str) -> set[Destination]:
        """Destinations of every binding key that matches one of these."""
        found: set[Destination] = set()
        self.looked_at = 0
        rest: Sequence[str] = routing_keys
        while rest:
            places, starts, ends, keys = _places(rest, self._words)
            self.looked_at += ends.bit_length() + 1 - 2 * keys  # each key has as many positions as words, and two more
            self._walk(places, starts, ends, found)
            rest = rest[keys:]
        return found

    def _walk(self, places: Mapping[str, int], starts: int, ends: int, found: set[Destination]) -> None:
        """Add to ``found`` the destinations of what matches a portion."""
        within = 2 * ends  # the bit above each end is nobody's
        everywhere = within - starts
        looked_at = looked_up = 0
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
                looked_up += len(children)
                for word, child in children.items():
                    if here := reached & places.get(word, 0):
                        todo.append((child, here << 1))
            else:
                looked_up += len(places)
                for word, at in places.items():
                    if (known := children.get(word)) is not None and (here := reached & at):
                        todo.append((known, here << 1))
            one_word = children.get(ONE_WORD)
            if one_word is not None and (here := reached & ~ends):
                todo.append((one_word, here << 1))
            any_words = children.get(ANY_WORDS)
            if any_words is not None:
                # Of each key the first position, and from there on all of them: nothing is borrowed from the next key.
                first = reached & (within - reached)
                todo.append((any_words, (within - first) & everywhere))
        self.looked_at += looked_at + (looked_up >> LOOK_UPS_SHIFT)

    def check_invariants(self) -> None:
        todo = list(self._root.children.values())
        words = set(self._root.children)
        while todo:
            node = todo.pop()
            assert node.children or node.destinations, "a branch that leads nowhere was not cut off"
            assert all(count > 0 for count in node.destinations.values()), "a destination without bindings stayed"
            todo.extend(node.children.values())
            words.update(node.children)
        assert words - {ONE_WORD, ANY_WORDS} == set(self._words), "all words of the binding keys are known, no others"
