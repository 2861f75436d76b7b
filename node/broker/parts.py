"""What a broker is made of, as its connections and their channels use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from node.auth import Authenticator
from node.flow.credit import FlowControl
from node.ids import NodeName
from node.queues.gateway import QueueGateway
from node.routing.router import Router
from node.topology.catalogue import Catalogue


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """Handed in from above, but for the router."""

    node: NodeName
    #: Exchanges, queues and bindings, and the way to change them.
    catalogue: Catalogue
    authenticator: Authenticator
    gateway: QueueGateway
    router: Router
    flow: FlowControl
    #: So many unpredictable bytes (message origins, names and identities).
    random_bytes: Callable[[int], bytes]
