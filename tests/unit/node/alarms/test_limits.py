"""What limits mean in bytes."""

from __future__ import annotations

import pytest

from node.alarms.limits import DiskFreeLimit, MemoryWatermark, available_memory_bytes
from node.config_keys import parse_amount, parse_factor

GIB = 1024**3


@pytest.mark.parametrize(
    ("watermark", "limit_bytes"),
    [
        (MemoryWatermark(), 4 * GIB // 10),
        (MemoryWatermark(0.0), 0),
        (MemoryWatermark(1.0), GIB),
        (MemoryWatermark(absolute_bytes=1000), 1000),
        (MemoryWatermark(0.5, absolute_bytes=0), 0),
        (MemoryWatermark(absolute_bytes=5 * GIB), GIB),
    ],
)
def test_a_memory_limit_is_a_fraction_or_bytes_and_never_more_than_there_is(
    watermark: MemoryWatermark, limit_bytes: int
) -> None:
    assert watermark.limit_bytes(GIB) == limit_bytes


def test_a_disk_limit_is_bytes_or_a_multiple_of_the_memory() -> None:
    assert DiskFreeLimit().limit_bytes(GIB) == 50_000_000
    assert DiskFreeLimit(7).limit_bytes(GIB) == 7
    assert DiskFreeLimit(relative=1.5).limit_bytes(GIB) == 3 * GIB // 2
    assert DiskFreeLimit(7, relative=0.0).limit_bytes(GIB) == 0


def test_limits_read_as_an_operator_would_say_them() -> None:
    assert str(MemoryWatermark(0.4)) == "0.4 of available memory"
    assert str(MemoryWatermark(absolute_bytes=5)) == "5 bytes"
    assert str(DiskFreeLimit(5)) == "5 bytes"
    assert str(DiskFreeLimit(relative=2.0)) == "2 times the total memory"


def test_the_least_limit_of_machine_and_groups_counts_unless_the_operator_knows_better() -> None:
    assert available_memory_bytes(GIB, [], None) == GIB
    assert available_memory_bytes(GIB, [2**63 - 4096, 1000, 2000], None) == 1000
    assert available_memory_bytes(GIB, [1000], 5) == 5


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("1k", 1024),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1kiB", 1024),
        ("2M", 2 * 1024**2),
        ("2MB", 2_000_000),
        ("2mb", 2_000_000),
        ("2MiB", 2 * 1024**2),
        ("3G", 3 * 1024**3),
        ("3GB", 3_000_000_000),
        ("3GiB", 3 * 1024**3),
        ("1 TB", 10**12),
        ("1TiB", 1024**4),
    ],
)
def test_amounts_take_the_references_units(text: str, size_bytes: int) -> None:
    assert parse_amount(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1", "1.5GB", "1 XB", "1GBps", "99999999TB"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_amount(text)


def test_factors_have_a_range() -> None:
    assert [parse_factor(text, 1.0) for text in ("0", "0.0", ".5", "0.40", "1", "1.0")] == [0, 0, 0.5, 0.4, 1, 1]
    assert parse_factor("2.5", 10.0) == 2.5
    for text in ("", "-0.1", "1.1", "40%", "nan", "1e-3", "inf"):
        with pytest.raises(ValueError, match="write a number from 0 to 1, for instance"):
            parse_factor(text, 1.0)
