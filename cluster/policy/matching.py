"""Which policy holds for an object. What it says together with the object's arguments: `node.queues.options`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from cluster.metadata.records import PolicyRecord
from node.patterns import is_found

_KINDS = {
    "queue": frozenset({"all", "queues", "classic_queues"}),
    "exchange": frozenset({"all", "exchanges"}),
}


Kind = Literal["queue", "exchange"]
#: Objects whose policy is remembered: more, and all are forgotten.
_REMEMBERED_MAX = 100_000


class PolicyMatches:
    """The policies of a cluster by (vhost, name), and which of them holds for whom, remembered until they change."""

    def __init__(self) -> None:
        self._policies: dict[tuple[str, str], PolicyRecord] = {}
        #: For readers. Changed by `put`, `remove` and `restore` only.
        self.policies: Mapping[tuple[str, str], PolicyRecord] = self._policies
        self._matches: dict[tuple[str, str, Kind], PolicyRecord | None] = {}

    def put(self, policy: PolicyRecord) -> None:
        self._policies[policy.vhost, policy.name] = policy
        self._matches.clear()

    def remove(self, vhost: str, name: str) -> PolicyRecord | None:
        """The one that is gone; ``None`` if there was none."""
        self._matches.clear()
        return self._policies.pop((vhost, name), None)

    def restore(self, policies: Iterable[PolicyRecord]) -> None:
        """These, and no others."""
        self._policies.clear()
        self._policies.update(((policy.vhost, policy.name), policy) for policy in policies)
        self._matches.clear()

    def of(self, vhost: str, name: str, kind: Kind) -> PolicyRecord | None:
        """See `matching_policy`."""
        key = vhost, name, kind
        if key not in self._matches:
            if len(self._matches) >= _REMEMBERED_MAX:
                self._matches.clear()
            self._matches[key] = matching_policy(self._policies.values(), vhost, name, kind)
        return self._matches[key]

    def check_invariants(self) -> None:
        for (vhost, name, kind), found in self._matches.items():
            assert found == matching_policy(self._policies.values(), vhost, name, kind), "what is remembered holds"


def matching_policy(policies: Iterable[PolicyRecord], vhost: str, name: str, kind: Kind) -> PolicyRecord | None:
    """The one policy of an object: highest priority among those whose pattern is found in the name.

    RabbitMQ leaves open who wins among equal priorities; here it is the first by name, the same on every node.
    """
    kinds = _KINDS[kind]
    best: PolicyRecord | None = None
    for policy in policies:
        if policy.vhost != vhost or policy.apply_to not in kinds:
            continue
        if best is not None and (-policy.priority, policy.name) > (-best.priority, best.name):
            continue
        if is_found(policy.pattern, name):
            best = policy
    return best
