"""Work that nobody waits for: its failures are in the log."""

from __future__ import annotations

import asyncio
import logging

import pytest

from cluster.runtime.background import Background
from node.errors import WarrenError


async def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "is_stopping", "level"),
    [
        (WarrenError("refused"), False, logging.INFO),
        (WarrenError("refused"), True, logging.DEBUG),
        (TypeError("a mistake of ours"), False, logging.ERROR),
        (TypeError("a mistake of ours"), True, logging.ERROR),
    ],
)
async def test_a_failure_is_logged_by_who_must_act(
    error: Exception, is_stopping: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="cluster.runtime.background")
    background = Background(asyncio.get_running_loop())
    background.is_stopping = is_stopping
    background.spawn(fail(error), "a proposal")
    await asyncio.sleep(0)
    assert [(record.levelno, "a proposal" in record.getMessage()) for record in caplog.records] == [(level, True)]


async def test_a_stop_waits_until_everything_has_ended() -> None:
    background = Background(asyncio.get_running_loop())
    ended: list[str] = []

    async def last_words() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("said")

    background.spawn(last_words(), "waiting")
    await asyncio.sleep(0)
    await background.stop()
    assert ended == ["said"]


async def test_what_is_stopped_before_it_has_begun_is_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    background = Background(asyncio.get_running_loop())
    background.spawn(fail(AssertionError("it begins")), "a proposal")
    await background.stop()
    await asyncio.sleep(0)  # what had the answers of the tasks is gone now
    assert [str(warning.message) for warning in recwarn] == []
