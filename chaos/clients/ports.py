"""What the pure parts need of the world."""

from __future__ import annotations

from typing import Protocol

from chaos.record.kinds import Kind

#: Channels of one process: their numbers in the run are those of the process and these.
CHANNELS_PER_PROCESS_BITS = 20


class Recorder(Protocol):
    """Satisfied by `chaos.record.process_record.ProcessRecord`."""

    def add(self, kind: Kind, at_us: int, message: int = 0, channel: int = 0, tag: int = 0, flags: int = 0) -> None: ...

    def note(
        self,
        kind: Kind,
        at_us: int | None = None,
        since_us: int | None = None,
        message: int = 0,
        channel: int = 0,
        tag: int = 0,
        flags: int = 0,
        **others: int | str,
    ) -> None: ...


class ChannelNumbers:
    """Gives each channel of a process a number that no other channel of the run has."""

    def __init__(self, process: int) -> None:
        self._first = process << CHANNELS_PER_PROCESS_BITS
        self._count = 0

    def next(self) -> int:
        """Raises `OverflowError`: a process that has opened a million channels is begun anew."""
        self._count += 1
        if self._count >> CHANNELS_PER_PROCESS_BITS:
            raise OverflowError("a process has no numbers left for its channels")
        return self._first + self._count
