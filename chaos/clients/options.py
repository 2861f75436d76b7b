"""Orders of a client process: what it is, and how it behaves. They travel as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from chaos.clients.body import BODY_BYTES_MIN
from chaos.record.message_key import ATTEMPTS_MAX, PUBLISHERS_MAX, QUEUES_MAX

#: What a publisher may have outstanding: far less than it remembers of what was answered.
WINDOW_MAX = 32_768
PREFETCH_MAX = 65_535
CONSUMERS_MAX = 1_000
_Options = TypeVar("_Options")


class Role(StrEnum):
    """What a process does."""

    PUBLISHER = "publisher"
    CONSUMER = "consumer"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to connect to."""

    #: Index in the run's nodes, from 1; 0 if it is no certain node.
    node: int
    name: str
    #: ``amqp://user:password@host:port/vhost``, with the options of pika. Never shown.
    url: str = field(repr=False)

    def scrub(self, text: str) -> str:
        """The text without the password."""
        quoted = urlsplit(self.url).password or ""
        for secret in filter(None, (quoted, unquote(quoted))):
            text = text.replace(secret, "***")
        return text


@dataclass(frozen=True, slots=True)
class QueueTarget:
    """A queue of the run."""

    #: In the run's queues, from 1.
    index: int
    name: str
    #: How a publisher reaches it; empty: by its name.
    routing_key: str = ""


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """How a publisher behaves. `check` says what is valid."""

    #: In the run, from 1. Every life of a publisher is another one.
    publisher: int
    #: They get the messages in turn.
    queues: tuple[QueueTarget, ...]
    exchange: str = ""
    #: Messages a second; 0: as many as the window permits.
    rate_per_s: float = 0.0
    #: Attempts that have no answer yet, and messages that are to be attempted again, together.
    window: int = 500
    #: New messages in all; 0: until it is told to stop.
    messages_max: int = 0
    body_bytes: int = 256
    is_persistent: bool = True
    is_mandatory: bool = False
    attempts_max: int = ATTEMPTS_MAX
    #: What was refused or returned is attempted again after so long: a queue that is down is not helped by haste.
    retry_pause_ms: int = 100

    def check(self) -> None:
        """Raise `ValueError`."""
        _require(0 < self.publisher <= PUBLISHERS_MAX, "publisher")
        _check_queues(self.queues)
        _require(self.rate_per_s >= 0, "rate_per_s")
        _require(0 < self.window <= WINDOW_MAX, "window")
        _require(self.messages_max >= 0, "messages_max")
        _require(self.body_bytes >= BODY_BYTES_MIN, "body_bytes")
        _require(0 < self.attempts_max <= ATTEMPTS_MAX, "attempts_max")
        _require(self.retry_pause_ms >= 0, "retry_pause_ms")


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How the consumers of one process behave, each on a connection of its own. `check` says what is valid."""

    queues: tuple[QueueTarget, ...]
    #: On each queue.
    consumers: int = 1
    #: Of each consumer.
    prefetch: int = 200
    #: Deliveries that are settled together.
    group: int = 16
    #: Fewer are settled together if the oldest has waited for so long, beyond what all are held.
    group_wait_ms: int = 20
    #: Every delivery is held for so long.
    hold_ms: int = 0
    #: Of what is settled, this part is given back instead of acknowledged.
    requeue_share: float = 0.0
    #: Of the chance that says which.
    seed: int = 1

    def check(self) -> None:
        """Raise `ValueError`."""
        _check_queues(self.queues)
        _require(0 < self.consumers <= CONSUMERS_MAX, "consumers")
        _require(0 < self.prefetch <= PREFETCH_MAX, "prefetch")
        _require(0 < self.group <= self.prefetch, "group")
        _require(self.group_wait_ms >= 0, "group_wait_ms")
        _require(self.hold_ms >= 0, "hold_ms")
        _require(0 <= self.requeue_share < 1, "requeue_share")


@dataclass(frozen=True, slots=True)
class Orders:
    """All that a process is told before it begins."""

    role: Role
    #: In the roster of the run, from 1.
    process: int
    run: str
    run_directory: Path
    #: Of the run's `chaos.record.process_record.RunClock`.
    clock_offset_us: int
    #: The first is tried first; consumers of a process begin at different ones, in turn.
    endpoints: tuple[Endpoint, ...]
    publisher: PublisherOptions | None = None
    consumer: ConsumerOptions | None = None
    heartbeat_s: int = 5
    connect_timeout_ms: int = 5_000
    #: Between two connections; it doubles while none can be had.
    reconnect_pause_ms: int = 100
    reconnect_pause_max_ms: int = 2_000
    #: For an orderly end.
    stop_timeout_ms: int = 10_000

    def check(self) -> None:
        """Raise `ValueError`."""
        _require(self.process > 0, "process")
        _require(bool(self.run), "run")
        _require(bool(self.endpoints), "endpoints")
        _require(all(each.node >= 0 for each in self.endpoints), "endpoints")
        _require(self.heartbeat_s >= 0, "heartbeat_s")
        _require(self.connect_timeout_ms > 0, "connect_timeout_ms")
        _require(0 < self.reconnect_pause_ms <= self.reconnect_pause_max_ms, "reconnect_pause_ms")
        _require(self.stop_timeout_ms > 0, "stop_timeout_ms")
        for role, options in ((Role.PUBLISHER, self.publisher), (Role.CONSUMER, self.consumer)):
            _require((options is not None) == (self.role is role), f"{role} (exactly the options of the role)")
            if options is not None:
                options.check()

    def scrub(self, text: str) -> str:
        """The text without any password."""
        for endpoint in self.endpoints:
            text = endpoint.scrub(text)
        return text

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), default=str)

    @classmethod
    def from_json(cls, line: str | bytes) -> Orders:
        """Raises `ValueError`, which shows no value."""
        try:
            values = json.loads(line)
        except ValueError:
            raise ValueError("the orders are not JSON") from None
        orders = _read(
            cls,
            values,
            role=_read_role,
            run_directory=Path,
            endpoints=lambda each: tuple(_read(Endpoint, endpoint) for endpoint in each),
            publisher=lambda each: None if each is None else _read(PublisherOptions, each, queues=_read_queues),
            consumer=lambda each: None if each is None else _read(ConsumerOptions, each, queues=_read_queues),
        )
        try:
            orders.check()
        except TypeError:
            raise ValueError("a value of the orders has the wrong type") from None
        return orders


def _read(options: type[_Options], values: Any, **readers: Any) -> _Options:
    if not isinstance(values, Mapping):
        raise ValueError(f"{options.__name__} is not an object")
    known = {each.name for each in fields(options)}  # type: ignore[arg-type]
    unknown = values.keys() - known
    if unknown:
        raise ValueError(f"{options.__name__} has no {', '.join(sorted(unknown))}")
    try:
        return options(**{name: readers.get(name, _same)(value) for name, value in values.items()})
    except TypeError:
        raise ValueError(f"{options.__name__} lacks something, or has something of another type") from None


def _read_role(value: Any) -> Role:
    _require(value in list(Role), "role")
    return Role(value)


def _read_queues(values: Any) -> tuple[QueueTarget, ...]:
    return tuple(_read(QueueTarget, each) for each in values)


def _same(value: Any) -> Any:
    return value


def _check_queues(queues: tuple[QueueTarget, ...]) -> None:
    _require(bool(queues), "queues")
    _require(all(0 < each.index <= QUEUES_MAX for each in queues), "queues (index)")
    _require(len({each.index for each in queues}) == len(queues), "queues (each once)")


def _require(holds: bool, name: str) -> None:
    if not holds:
        raise ValueError(f"not valid: {name}")
