"""How results are written: byte for byte as rabbitmqctl writes them, because scripts read it.

``table``: names, then rows, joined by tabs; nothing at all for an empty listing. Values that are not plain are
written as Erlang terms, as scripts know them: ``[a, b]``, ``[{"x-queue-mode","lazy"}]``, empty for "there is none".
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.cells import cell_len

from cluster.transport.admin_port import Table

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: Listed as a mapping, shown as the JSON text that ``set_policy`` was given.
_JSON_COLUMNS = frozenset({"definition"})


def to_json(value: Any) -> str:
    """Compact JSON on one line."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _escape(text: str) -> str:
    """Control characters as ``\\ooo``: a name must not break the line or command the terminal."""
    return _CONTROL.sub(lambda match: f"\\{ord(match[0]):03o}", text)


def _term(value: Any) -> str:
    """A value inside a table of arguments, as Erlang prints it."""
    if value is None:
        return "undefined"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + _escape(value.replace("\\", "\\\\").replace('"', '\\"')) + '"'
    if isinstance(value, Mapping):
        return "[" + ",".join(f"{{{_term(key)},{_term(item)}}}" for key, item in value.items()) + "]"
    if isinstance(value, Sequence):
        return "[" + ",".join(_term(item) for item in value) + "]"
    return str(value)


def format_cell(column: str, value: Any) -> str:
    """One cell of a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return _escape(value)
    if isinstance(value, Mapping):
        return to_json(value) if column in _JSON_COLUMNS else _term(value)
    if isinstance(value, Sequence):
        return "[" + ", ".join(format_cell(column, item) for item in value) + "]"
    return str(value)


def _cells(table: Table) -> list[list[str]]:
    return [[format_cell(column, cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows]


def format_table(table: Table, *, has_header: bool) -> str:
    if not table.rows:
        return ""
    lines = [*([list(table.columns)] if has_header else []), *_cells(table)]
    return "".join("\t".join(line) + "\n" for line in lines)


def format_json(table: Table) -> str:
    """One object per line, so that the listing of a million queues can be read as it comes."""
    objects = "".join(f"{',' if index else ''}{to_json(row)}\n" for index, row in enumerate(table.as_dicts()))
    return f"[\n{objects}]\n"


def format_csv(table: Table, *, has_header: bool) -> str:
    if not table.rows:
        return ""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if has_header:
        writer.writerow(table.columns)
    writer.writerows(_cells(table))
    return text.getvalue()


def format_pretty_table(table: Table, *, has_header: bool) -> str:
    """Boxes, with a rule between all rows."""
    lines = [*([list(table.columns)] if has_header else []), *_cells(table)]
    if not table.rows:
        return ""
    widths = [max(cell_len(line[index]) for line in lines) for index in range(len(table.columns))]

    def rule(left: str, middle: str, right: str) -> str:
        return left + middle.join("─" * (width + 2) for width in widths) + right + "\n"

    def row(line: Sequence[str]) -> str:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        return "│ " + " │ ".join(padded) + " │\n"

    return rule("┌", "┬", "┐") + rule("├", "┼", "┤").join(row(line) for line in lines) + rule("└", "┴", "┘")


def format_listing(table: Table, formatter: str, *, has_header: bool) -> str:
    """A listing in one of `FORMATTERS`."""
    formats: dict[str, Callable[[], str]] = {
        "table": lambda: format_table(table, has_header=has_header),
        "json": lambda: format_json(table),
        "csv": lambda: format_csv(table, has_header=has_header),
        "pretty_table": lambda: format_pretty_table(table, has_header=has_header),
    }
    return formats[formatter]()


FORMATTERS = ("table", "pretty_table", "json", "csv")
