"""A disk that refuses one thing it is asked for, whatever that is: for tests that go through all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node.errors import StorageError
from node.store.disk.simulated import SimulatedDisk

#: Not syncs: one that fails ends the node.
OPERATIONS = ("open", "create", "rename", "unlink", "list", "mkdir", "before_read", "before_write")


class NthRefusal:
    """Refuses the ``number``-th operation (from 0) from now on, and no other; used as a context."""

    def __init__(self, disk: SimulatedDisk, number: int, error: type[StorageError]) -> None:
        self._disk = disk
        self._left = number
        self._error = error
        self._is_inside = False
        self.has_come = False

    def __enter__(self) -> NthRefusal:
        for name in OPERATIONS:
            setattr(self._disk, name, self._refusing(getattr(self._disk, name)))
        return self

    def __exit__(self, *_: object) -> None:
        for name in OPERATIONS:
            delattr(self._disk, name)

    def _refusing(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*arguments: Any) -> Any:
            if self._is_inside:
                return operation(*arguments)  # a part of another
            if not self._left and not self.has_come:
                self.has_come = True
                raise self._error(f"{operation.__name__} of {arguments[0]} failed: injected")
            self._left -= 1
            self._is_inside = True
            try:
                return operation(*arguments)
            finally:
                self._is_inside = False

        return refuse
