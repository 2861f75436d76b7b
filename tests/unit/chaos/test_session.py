"""An interrupted analysis is an interrupt, wherever it hits."""

from __future__ import annotations

import logging
import signal
from contextlib import suppress

import pytest

from chaos.java import java_ended_by_interrupt


def analyse_with_a_clean_up_that_fails(*, is_interrupted: bool) -> None:
    with java_ended_by_interrupt() as was_interrupted:
        try:
            if is_interrupted:
                signal.raise_signal(signal.SIGINT)
        finally:
            assert was_interrupted() == is_interrupted
            logging.getLogger("py4j.java_gateway").error("something else")
            raise ConnectionError("no answer from Java")


def test_an_error_of_the_clean_up_does_not_hide_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        analyse_with_a_clean_up_that_fails(is_interrupted=True)
    assert isinstance(raised.value.__cause__, ConnectionError)


def test_an_interrupt_that_a_finaliser_swallowed_counts() -> None:
    with pytest.raises(KeyboardInterrupt), java_ended_by_interrupt(), suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_error_without_an_interrupt_is_what_it_is(caplog: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ConnectionError):
        analyse_with_a_clean_up_that_fails(is_interrupted=False)
    assert signal.getsignal(signal.SIGINT) is before
    assert [record.msg for record in caplog.records] == ["something else"]
