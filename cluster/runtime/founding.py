"""What every cluster has: the default vhost and user, made once in its life, by whichever node is first."""

from __future__ import annotations

import logging
from random import Random

from cluster.metadata.commands import AddUser, SetPermissions
from cluster.runtime.metadata_group import MetadataGroup
from node.auth import SALT_BYTES, hash_password
from node.config import NodeConfig
from node.errors import WarrenError
from node.topology.commands import CreateVhost

log = logging.getLogger(__name__)


async def found(config: NodeConfig, metadata: MetadataGroup, chance: Random) -> None:
    """Does nothing in a cluster that has a vhost. ``chance`` salts the password. Raises `WarrenError`."""
    if metadata.topology.vhosts():
        return
    await metadata.submit(CreateVhost(config.default_vhost))
    if metadata.state.users.user(config.default_user) is None:
        password_hash = hash_password(config.default_pass, chance.randbytes(SALT_BYTES))
        try:
            await metadata.change(AddUser(config.default_user, password_hash, ("administrator",)))
        except WarrenError as error:
            log.info("another node was faster: %s", error)
    await metadata.change(SetPermissions(config.default_vhost, config.default_user, ".*", ".*", ".*"))
