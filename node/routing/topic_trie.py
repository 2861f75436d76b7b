"""Topic matching: a trie of the words of the binding keys.

Words are separated by dots; an empty key is zero words, and ``a..b`` has an empty word in the middle. In a binding key
``*`` stands for exactly one word (also an empty one) and ``#`` for zero or more. Matching walks the trie with the
routing key: at each node it follows the child of the literal word and the child ``*`` past one word, and the child
``#`` past every number of remaining words.
"""

from __future__ import annotations

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


class TopicTrie:
    """Binding keys with their destinations."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node()

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

    def match(self, routing_key: str) -> set[Destination]:
        """Destinations of every binding key that matches."""
        words = split_key(routing_key)
        found: set[Destination] = set()
        # Where a "#" has led: without it "#.#.#" would visit the same place exponentially often.
        seen: set[tuple[int, int]] = set()
        todo = [(self._root, 0)]
        while todo:
            node, position = todo.pop()
            if position == len(words):
                found.update(node.destinations)
            elif node.children:
                word = words[position]
                child = node.children.get(word)
                # A routing key may contain the wildcard characters as plain words; they match only as such words.
                if child is not None and word not in (ONE_WORD, ANY_WORDS):
                    todo.append((child, position + 1))
                child = node.children.get(ONE_WORD)
                if child is not None:
                    todo.append((child, position + 1))
            child = node.children.get(ANY_WORDS)
            if child is not None:
                for end in range(position, len(words) + 1):
                    state = (id(child), end)
                    if state in seen:
                        break  # whoever came here before went on to every later position as well
                    seen.add(state)
                    todo.append((child, end))
        return found

    def check_invariants(self) -> None:
        todo = list(self._root.children.values())
        while todo:
            node = todo.pop()
            assert node.children or node.destinations, "a branch that leads nowhere was not cut off"
            assert all(count > 0 for count in node.destinations.values()), "a destination without bindings stayed"
            todo.extend(node.children.values())
