"""Threads beside the loop are there when a node starts, and a job that none takes has failed."""

from __future__ import annotations

import threading

import pytest

from cluster.real_world.world import ThreadWorker
from node.errors import StorageError


def refused(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_be_started_is_an_error_when_the_worker_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(StorageError, match=r'thread "sync" cannot be started.*`ulimit -u`.*TasksMax'):
        ThreadWorker("sync")


async def test_a_job_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = ThreadWorker("sync")
    monkeypatch.setattr(threading.Thread, "start", refused)
    names: list[str] = []
    await worker.run(lambda: names.append(threading.current_thread().name))
    worker.close()
    assert names == ["sync_0"]


async def test_a_job_that_is_not_taken_is_a_job_that_failed() -> None:
    worker = ThreadWorker("sync")
    worker.close()
    future = worker.run(lambda: None)
    with pytest.raises(RuntimeError, match="shutdown"):
        await future
