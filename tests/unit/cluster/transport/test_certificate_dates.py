"""Certificates of which a node says itself that they do not hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import trustme

from cluster.transport.certificate_dates import date_problem

BEGIN = datetime(2026, 5, 1, 12, tzinfo=UTC)


def certificate(end: datetime) -> bytes:
    return trustme.CA().issue_cert("127.0.0.1", not_before=BEGIN, not_after=end).cert_chain_pems[0].bytes()


@pytest.mark.parametrize("end", [datetime(2026, 6, 1, tzinfo=UTC), datetime(2051, 1, 1, tzinfo=UTC)])
def test_a_certificate_holds_from_its_beginning_to_its_end(end: datetime) -> None:
    """From 2050 on dates are written in another way."""
    pem = certificate(end)
    day = timedelta(days=1)
    assert date_problem(pem, (BEGIN + day).timestamp()) == ""
    assert date_problem(pem, (end - day).timestamp()) == ""
    assert date_problem(pem, (end + day).timestamp()) == f"the certificate expired at {end:%Y-%m-%d} 00:00:00 UTC"
    assert "holds from 2026-05-01 12:00:00 UTC on, and it is 2026-04-30" in date_problem(pem, (BEGIN - day).timestamp())


def test_what_is_no_certificate_is_left_to_whoever_reads_it() -> None:
    assert date_problem(b"", 0) == ""
    pem = certificate(BEGIN + timedelta(days=9))
    head, body, tail = pem[:28], pem[28:-26], pem[-26:]
    for length in range(0, len(body), 16):
        date_problem(head + body[:length] + b"\n" + tail, 0)
