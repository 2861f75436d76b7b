"""What every cluster has: the default user, the default vhost and what the one may do in the other; made once.

A node may die between any two of the steps, and several may be at it at once. So each step may be repeated, and the
vhost shows that the cluster is founded: whoever finds one makes nothing any more, because an operator may have taken
away what is missing. (A founder that dies between its last two steps, with nobody else at it, leaves the permissions to
the operator.)
"""

from __future__ import annotations

import logging
from random import Random

from cluster.metadata.commands import AddUser, ChangeTopology, Command, SetPermissions
from cluster.metadata.errors import NoQuorumError, RefusedChangeError
from cluster.runtime.metadata_group import MetadataGroup
from node.auth import SALT_BYTES, hash_password
from node.config import NodeConfig
from node.topology.commands import CreateVhost

log = logging.getLogger(__name__)


async def found(config: NodeConfig, metadata: MetadataGroup, chance: Random) -> None:
    """Does nothing in a cluster that is founded, and otherwise waits for a majority, as long as it takes.

    ``chance`` salts the password. Raises `WarrenError` for what waiting does not mend.
    """
    if metadata.topology.vhosts():
        return
    user, vhost = config.default_user, config.default_vhost
    password_hash = hash_password(config.default_pass, chance.randbytes(SALT_BYTES))
    if await _decide(metadata, AddUser(user, password_hash, ("administrator",))):
        await _decide(metadata, ChangeTopology(CreateVhost(vhost), config.node_name))
        await _decide(metadata, SetPermissions(vhost, user, ".*", ".*", ".*"), is_last=True)


async def _decide(metadata: MetadataGroup, command: Command, *, is_last: bool = False) -> bool:
    """Until it is decided; false if somebody else has founded the cluster, before or meanwhile."""
    while is_last or not metadata.topology.vhosts():
        try:
            await metadata.change(command)
        except NoQuorumError as error:
            log.warning("founding the cluster: %s", error)
        except RefusedChangeError as error:
            log.info("another node was faster: %s", error)
            return True
        else:
            return True
    return False
