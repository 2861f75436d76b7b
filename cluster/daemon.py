"""One node as a process: signals, logging and exit codes. What a node is stands in `cluster.composition`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from dataclasses import replace

import uvloop

from cluster.composition import Node, compose_node
from cluster.home_cookie import read_or_make_home_cookie
from cluster.real_world.collector import tune_collector
from cluster.real_world.native_lines import capture_native_lines
from cluster.real_world.system_probe import raise_open_files_limit
from cluster.real_world.world import real_world
from cluster.runtime.client_service import cannot_listen
from cluster.transport.admin_port import ExitCode
from cluster.transport.probe import bind_failure
from node.config import NodeConfig
from node.errors import ConfigError, StorageError

log = logging.getLogger(__name__)

#: A node that does nothing yet has some 35 open.
OPEN_FILES_MIN = 100


class Daemon:
    """Runs a node until a signal, an operator or a failure ends it."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._node: Node | None = None

    async def run(self) -> int:
        """The exit code of the process. Raises `ConfigError` and `StorageError` if the node cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # What comes while the node is composed is heard when the loop goes on.
            loop.add_signal_handler(number, self.stop)
        node = self._node = compose_node(self._config, real_world(self._config))
        tune_collector(loop)
        await node.run()
        while node.begins_again:
            node = self._node = compose_node(self._config, real_world(self._config))
            await node.run()
        if node.failure is not None:
            log.error("stopped: %s", node.failure.reason)
            return node.failure.exit_code
        log.info("stopped")
        return ExitCode.OK

    def stop(self) -> None:
        """Begin an orderly stop."""
        if self._node is not None:
            self._node.stop()


async def require_addresses(config: NodeConfig) -> None:
    """See that a node could listen where it is to, before it has written anything. Raises `ConfigError`."""
    for key, address in (
        ("cluster.listener", config.cluster_listener),
        ("listeners.tcp.default", config.amqp_listener),
    ):
        error = await bind_failure(str(address))
        if error is not None:
            raise cannot_listen(key, address, error)


def configure_logging(config: NodeConfig) -> None:
    if config.log_file is None:
        handler: logging.Handler = logging.StreamHandler()
    else:
        config.log_file.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(config.log_file)
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s.%(msecs)03d [%(levelname)s] %(name)s: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        handlers=[handler],
    )


def run(config: NodeConfig) -> int:
    """Run one node in the foreground until SIGTERM or SIGINT; returns the exit code."""
    capture_native_lines()
    try:
        configure_logging(config)
    except OSError as error:
        print(f"`log.file` {config.log_file} cannot be written: {error.strerror}", file=sys.stderr)
        return ExitCode.CONFIG
    try:
        _require_open_files(raise_open_files_limit())
        if not config.cluster_cookie:
            config = replace(config, cluster_cookie=read_or_make_home_cookie(os.environ))
        return uvloop.run(_run(config))
    except ConfigError as error:
        log.error("%s", error)
        return ExitCode.CONFIG
    except (StorageError, OSError) as error:
        log.error("cannot start: %s", error)
        return ExitCode.SOFTWARE


def _require_open_files(limit: int) -> None:
    """Raises `ConfigError` where a node would serve nobody, and hold up others that wait for its copies."""
    if limit < OPEN_FILES_MIN:
        raise ConfigError(
            f"this process may have {limit} files open: a node needs {OPEN_FILES_MIN}, and more for each queue and "
            "client; raise the limit (`ulimit -Hn`, LimitNOFILE of systemd)"
        )
    log.debug("at most %d files can be open", limit)


async def _run(config: NodeConfig) -> int:
    await require_addresses(config)
    return await Daemon(config).run()
