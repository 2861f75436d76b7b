"""What every cluster has: the default vhost, its user and what that may do; made once, by whichever nodes come first.

A node may die between any two of the steps, and several may be at it at once. So each step may be repeated, and what is
left after the first shows that the others are still due: the vhost comes after the user, the permissions last, and a
default user in a cluster where nobody may do anything was not left so by an operator. Once anybody may do anything, the
default user is made no more: who has deleted it wants it to be gone.
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
    if is_founded(config, metadata):
        return
    if metadata.state.users.user(config.default_user) is None:
        password_hash = hash_password(config.default_pass, chance.randbytes(SALT_BYTES))
        await _decide(metadata, AddUser(config.default_user, password_hash, ("administrator",)))
    await _decide(metadata, ChangeTopology(CreateVhost(config.default_vhost), config.node_name))
    await _decide(metadata, SetPermissions(config.default_vhost, config.default_user, ".*", ".*", ".*"))


def is_founded(config: NodeConfig, metadata: MetadataGroup) -> bool:
    """See the top of this module."""
    users = metadata.state.users
    has_vhost = bool(metadata.topology.vhosts())
    return has_vhost and (users.user(config.default_user) is None or bool(users.permissions()))


async def _decide(metadata: MetadataGroup, command: Command) -> None:
    while True:
        try:
            await metadata.change(command)
        except NoQuorumError as error:
            log.warning("founding the cluster: %s", error)
        except RefusedChangeError as error:
            log.info("another node was faster: %s", error)
            return
        else:
            return
