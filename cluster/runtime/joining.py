"""`join_cluster` and `reset`: a node that is alone begins again with an empty directory, for a cluster or for itself.

A node joins with an empty directory only (`cluster.runtime.admission`), so to join is to begin again, and that costs
what the node has. Therefore it is refused to a node that has anything which was not there when it was founded; `reset`
is the word for giving that up. The members are learned from the one that was named, and kept
(`cluster.runtime.fresh_start`), so no configuration has to be changed, neither here nor there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import Any, Protocol

from cluster.metadata.state import MetadataState
from cluster.raft.core import RaftCore
from cluster.runtime.fresh_start import JoinedCluster, order_reset
from cluster.runtime.group_members import group_members
from cluster.runtime.identity import IdentityFile
from cluster.transport.admin_caller import AdminCaller
from cluster.transport.admin_port import AdminRefused, ExitCode, WrongCookie
from node.config import NodeConfig, parse_address
from node.ids import NodeName
from node.store.disk.disk import Disk
from node.topology.names import PREDECLARED_EXCHANGES

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0


class Group(Protocol):
    """The metadata group of this node."""

    @property
    def core(self) -> RaftCore:
        """To be looked at."""

    @property
    def applied_index(self) -> int: ...


class Joining:
    """See the top of this module."""

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        group: Group,
        state: MetadataState,
        identity: IdentityFile,
        caller: AdminCaller,
        begin_again: Callable[[], None],
    ) -> None:
        self._config = config
        self._node = config.node_name
        self._disk = disk
        self._group = group
        self._state = state
        self._identity = identity
        self._caller = caller
        self._begin_again = begin_again
        #: What this process was told to begin again for; empty: nothing yet.
        self._order = ""

    def document(self) -> dict[str, Any]:
        """What a node that wants to join has to know."""
        members = {name: self._address_of(name) for name in self._members()}
        return {"group": self._identity.current.group, "members": members}

    async def join(self, address: str) -> Mapping[str, Any]:
        """See `AdminPort.join_cluster`."""
        try:
            where = str(parse_address(address))
        except ValueError as error:
            raise AdminRefused(ExitCode.USAGE, f"bad address '{address}': {error}") from None
        self._require_fresh()
        document = await self._ask(where)
        joined = self._cluster_of(document, where)
        self._require_fresh()  # a client may have declared something meanwhile
        names = ", ".join(document["members"])
        self._begin_again_for(f"join the cluster of {names}", joined)
        return {"cluster": list(joined.members)}

    def reset(self) -> None:
        """See `AdminPort.reset`."""
        self._require_alone("be reset")
        self._begin_again_for("begin again with nothing", None)

    def _begin_again_for(self, order: str, joined: JoinedCluster | None) -> None:
        """Only the first order is carried out: who has been answered is not to be told otherwise by what comes of it.
        Raises `AdminRefused`, `StorageError`."""
        if self._order:
            raise AdminRefused(
                ExitCode.TEMPORARY,
                f"{self._node} was told just before to {self._order}, by another command, and is at it: this one is "
                "not carried out. `warrenctl cluster_status` says what it is a member of when it serves again; run "
                "this again then, if it is still meant",
            )
        order_reset(self._disk, str(self._config.data_dir), joined)
        self._order = order
        log.warning("%s begins again: it was told to %s", self._node, order)
        self._begin_again()

    # --- this node ---

    def _members(self) -> tuple[NodeName, ...]:
        return group_members(self._group, self._state)

    def _address_of(self, name: NodeName) -> str:
        member = self._state.members.get(name)
        if member is not None:
            return member.cluster_address
        admitted = self._state.admissions.admitted.get(name)
        if admitted is not None:
            return admitted.cluster_address
        return next((str(each.cluster_address) for each in self._config.members if each.name == name), "")

    def _require_alone(self, what: str) -> None:
        """Alone, or waiting for a cluster of which it has nothing yet."""
        others = [name for name in self._members() if name != self._node]
        if others:
            raise AdminRefused(
                ExitCode.SOFTWARE,
                f"{self._node} is a member of the cluster of {', '.join((self._node, *others))} and cannot {what}: "
                f"stop it, run `warrenctl forget_cluster_node {self._node}` on another member, and start it with an "
                "empty data directory",
            )

    def _require_fresh(self) -> None:
        self._require_alone("join another")
        if not self._members():
            names = ", ".join(member.name for member in self._config.members)
            raise AdminRefused(
                ExitCode.SOFTWARE,
                f"{self._node} waits to be taken into the cluster of {names}; `warrenctl reset` ends that",
            )
        if has := self._belongings():
            raise AdminRefused(
                ExitCode.SOFTWARE,
                f"{self._node} has {has}, which would be lost: `warrenctl reset --confirm` gives everything up, and "
                "then it can join",
            )

    def _belongings(self) -> str:
        """What was not there when this node was founded."""
        state, config = self._state, self._config
        exchanges = sum(
            each.name not in PREDECLARED_EXCHANGES
            for vhost in state.topology.vhosts()
            for each in state.topology.exchanges(vhost)
        )
        counts = {
            "queues": sum(1 for _ in state.topology.all_queues()),
            "exchanges": exchanges,
            "policies": len(state.policies),
            "users besides the default one": sum(each.name != config.default_user for each in state.users.users()),
            "virtual hosts besides the default one": sum(
                each != config.default_vhost for each in state.topology.vhosts()
            ),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)

    # --- the cluster ---

    async def _ask(self, address: str) -> Mapping[str, Any]:
        """What a node says of its cluster. Raises `AdminRefused`, in words for an operator who has named two nodes."""
        try:
            return await self._caller.cluster_status(address, timeout_s=ASK_TIMEOUT_S)
        except WrongCookie:
            raise AdminRefused(
                ExitCode.SOFTWARE,
                f"{self._node}'s cookie is not that of the node at {address}: give {self._node} the cluster's, by "
                f"`cluster.cookie` or `cluster.cookie_file` in its configuration (without them it has that of "
                "~/.warren.cookie), and start it again",
            ) from None
        except AdminRefused as error:
            if error.exit_code is not ExitCode.UNAVAILABLE:
                raise
            raise AdminRefused(
                ExitCode.TEMPORARY,
                f"{self._node} could not ask a node at {address}: {error.message}. This must be the address of its "
                f"cluster listener (`cluster.listener`), not its AMQP port, and {self._node} must reach it; both use "
                "TLS, or neither",
            ) from None

    def _cluster_of(self, document: Mapping[str, Any], address: str) -> JoinedCluster:
        """Raises `AdminRefused` if this node cannot be of the cluster that has said this of itself."""
        members, group = document.get("members"), document.get("group")
        if not members or not group:
            raise AdminRefused(
                ExitCode.SOFTWARE, f"the node at {address} has no cluster yet, or runs an earlier release"
            )
        if group == self._identity.current.group:
            raise AdminRefused(ExitCode.SOFTWARE, f"the node at {address} is {self._node} itself")
        names = ", ".join(members)
        if self._node in members:
            raise AdminRefused(
                ExitCode.SOFTWARE,
                f"the cluster of {names} has a member called {self._node}: set another `node_name`, or run `warrenctl "
                f"forget_cluster_node {self._node}` there, if that member is gone for good",
            )
        own = self._config.cluster_advertised_address
        if _is_loopback(own.host) and not all(_is_loopback(parse_address(at).host) for at in members.values() if at):
            raise AdminRefused(
                ExitCode.SOFTWARE,
                f"{self._node} says that it is at {own}, where the members of {names} would not find it: set "
                "`cluster.advertised_address`",
            )
        if document.get("leader") is None:
            raise AdminRefused(ExitCode.TEMPORARY, f"the cluster of {names} has no majority now, so it takes nobody in")
        return JoinedCluster(group, {NodeName(name): at for name, at in members.items() if at})


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
