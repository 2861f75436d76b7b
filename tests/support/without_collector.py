"""What is freed by counting references alone, while the garbage collector rests.

A node has it look at what has lived for some time once an hour only (`cluster.real_world.collector`), so whatever waits
for it is as much as comes and goes in that time.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Nor is anything logged: what keeps the lines of a test keeps the errors in them, and these where they were."""
    logging.disable()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        logging.disable(logging.NOTSET)


def alive(*modules: str) -> Counter[str]:
    """How many objects there are of each class of modules whose names begin so."""
    kinds = Counter(type(each) for each in gc.get_objects())
    return Counter({kind.__qualname__: kinds[kind] for kind in kinds if str(kind.__module__).startswith(modules)})
