"""What every cluster has: the default user, the default vhost and what the one may do in the other; made once.

By one command, so that a node may die at any moment, and several may be at it at once. Whether it was done is kept for
ever, because an operator may have taken away what is missing.
"""

from __future__ import annotations

import logging
from random import Random

from cluster.metadata.commands import FoundCluster
from cluster.metadata.errors import AlreadyFoundedError, NoQuorumError
from cluster.runtime.metadata_group import MetadataGroup
from node.auth import SALT_BYTES, hash_password
from node.config import NodeConfig

log = logging.getLogger(__name__)


async def found(config: NodeConfig, metadata: MetadataGroup, chance: Random) -> None:
    """Does nothing in a cluster that is founded, and otherwise waits for a majority, as long as it takes.

    ``chance`` salts the password. Raises `WarrenError` for what waiting does not mend.
    """
    if metadata.state.is_founded:
        return
    password_hash = hash_password(config.default_pass, chance.randbytes(SALT_BYTES))
    command = FoundCluster(config.default_vhost, config.default_user, password_hash, ("administrator",))
    while not metadata.state.is_founded:
        try:
            await metadata.change(command)
        except NoQuorumError as error:
            log.warning("founding the cluster: %s", error)
        except AlreadyFoundedError as error:
            log.info("another node was faster: %s", error)
