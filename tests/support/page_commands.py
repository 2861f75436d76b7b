"""Files and commands of a page, so that a test can do what a reader does.

A fenced block of ``toml NAME`` is a file, one of ``sh`` are commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(?P<kind>\w+)(?: (?P<name>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One of them; a file has a name."""

    kind: str
    name: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """In their order."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Block(found["kind"], found["name"] or "", found["text"])


def commands(page: Path) -> list[str]:
    """Every line of every block of ``sh``."""
    return [line for block in blocks(page) if block.kind == "sh" for line in block.text.splitlines() if line.strip()]
