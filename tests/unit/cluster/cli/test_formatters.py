"""Listings byte for byte: scripts cut these lines at tabs."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.cli.formatters import format_cell, format_listing
from cluster.transport.admin_port import Table

QUEUES = Table(("name", "messages", "arguments"), (("q1", 3, {"x-queue-mode": "lazy"}), ("q2", 0, {})))
EMPTY = Table(("name", "messages"), ())


@pytest.mark.parametrize(
    ("formatter", "text"),
    [
        ("table", 'name\tmessages\targuments\nq1\t3\t[{"x-queue-mode","lazy"}]\nq2\t0\t[]\n'),
        (
            "json",
            '[\n{"name":"q1","messages":3,"arguments":{"x-queue-mode":"lazy"}}\n'
            ',{"name":"q2","messages":0,"arguments":{}}\n]\n',
        ),
        ("csv", 'name,messages,arguments\nq1,3,"[{""x-queue-mode"",""lazy""}]"\nq2,0,[]\n'),
        (
            "pretty_table",
            "┌──────┬──────────┬───────────────────────────┐\n"
            "│ name │ messages │ arguments                 │\n"
            "├──────┼──────────┼───────────────────────────┤\n"
            '│ q1   │ 3        │ [{"x-queue-mode","lazy"}] │\n'
            "├──────┼──────────┼───────────────────────────┤\n"
            "│ q2   │ 0        │ []                        │\n"
            "└──────┴──────────┴───────────────────────────┘\n",
        ),
    ],
)
def test_a_listing(formatter: str, text: str) -> None:
    assert format_listing(QUEUES, formatter, has_header=True) == text


@pytest.mark.parametrize(("formatter", "text"), [("table", ""), ("json", "[\n]\n"), ("csv", ""), ("pretty_table", "")])
def test_an_empty_listing_has_no_header(formatter: str, text: str) -> None:
    assert format_listing(EMPTY, formatter, has_header=True) == text


def test_the_header_can_be_left_out() -> None:
    table = Table(("name",), (("q",),))
    assert format_listing(table, "table", has_header=False) == "q\n"
    assert format_listing(table, "csv", has_header=False) == "q\n"
    assert format_listing(table, "pretty_table", has_header=False) == "┌───┐\n│ q │\n└───┘\n"


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("policy", None, ""),
        ("durable", True, "true"),
        ("messages", 7, "7"),
        ("slave_pids", ["<n2.1.2.0>", "<n3.1.2.0>"], "[<n2.1.2.0>, <n3.1.2.0>]"),
        ("tags", [], "[]"),
        ("arguments", {"x-max": 5, "x-on": True, "list": ["a", 1]}, '[{"x-max",5},{"x-on",true},{"list",["a",1]}]'),
        ("arguments", {"x": 'a"b'}, '[{"x","a\\"b"}]'),
        ("definition", {"ha-mode": "all"}, '{"ha-mode":"all"}'),
        ("name", "tab\there", "tab\\011here"),
        ("name", "\x1b[31mred", "\\033[31mred"),
        ("name", "Grüße", "Grüße"),
    ],
)
def test_a_cell(column: str, value: Any, text: str) -> None:
    assert format_cell(column, value) == text


def test_wide_characters_keep_the_boxes_straight() -> None:
    table = Table(("name",), (("兎",), ("abc",)))
    assert format_listing(table, "pretty_table", has_header=True).splitlines()[3] == "│ 兎   │"
