"""Errors, sorted by who must act.

`AmqpError`    the client asked for something refused: a channel closes (`ChannelError`, soft) or the
               connection does (`ConnectionFailure`, hard), with the reply code of the specification.
`StorageError` a disk failed or holds damaged data: the store concerned goes out of service.
`ConfigError`  the operator wrote something we cannot use: the text names the key and what to do.

Our own mistakes are plain ``assert`` failures, or whatever Python raises. They are caught where they can be kept to one
thing: a queue, which goes out of service (`cluster.runtime.queue_set`), or a committed command, which is refused
(`cluster.metadata.state`).
"""

from __future__ import annotations

#: Names of the reply codes (AMQP 0-9-1 specification, section 1.2), as RabbitMQ prints them before the text.
REPLY_NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    313: "NO_CONSUMERS",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}


class WarrenError(Exception):
    """Root of every error that Warren raises on purpose."""


class AmqpError(WarrenError):
    """A request that the protocol refuses with a reply code.

    ``reply_text`` is ``NAME - text`` cut to the 255 bytes of a short string, as clients know it from RabbitMQ.
    """

    def __init__(self, reply_code: int, text: str) -> None:
        self.reply_code = reply_code
        full = f"{REPLY_NAMES[reply_code]} - {text}"
        self.reply_text = full.encode()[:255].decode(errors="ignore")
        super().__init__(self.reply_text)


class ChannelError(AmqpError):
    """Soft error: the server closes the channel, the connection lives on."""


class ConnectionFailure(AmqpError):
    """Hard error: the server closes the connection."""


class QueueMovedError(WarrenError):
    """What was checked at a queue's master may not hold any more: another master serves it. Check anew."""


class StorageError(WarrenError):
    """The disk refused an operation, or what it holds is damaged."""


class DirectoryGoneError(StorageError):
    """The data directory was removed, or another is in its place: what is written would not be found again."""


class ShortageError(StorageError):
    """Something is wanting: nothing was damaged, and the same operation may succeed when there is some of it again."""


class DiskFullError(ShortageError):
    """There is no room."""


class OpenFilesError(ShortageError):
    """The process, or the system, may open no more files until others have been closed."""


class ConfigError(WarrenError):
    """The configuration cannot be used; the text says which key and what to write instead."""
