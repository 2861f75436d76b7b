"""Processes and ports of a local cluster, with real ones."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from chaos.cluster_under_test.ports import PortInUseError, choose_amqp_ports, choose_free_ports, is_port_free
from chaos.cluster_under_test.processes import running_process, send_signal, spawn

pytestmark = pytest.mark.integration

HOST = "127.0.0.1"
#: Says that it runs, then waits for a signal.
WAITER = "import signal; print('ready', flush=True); signal.pause()"


def test_a_process_leads_its_own_session_and_is_signalled_with_its_group(tmp_path: Path) -> None:
    child, mark = spawn([sys.executable, "-c", WAITER], tmp_path / "log", tmp_path, os.environ)
    assert os.getsid(child.pid) == child.pid
    assert running_process(mark) is not None
    assert send_signal(mark, signal.SIGKILL)
    assert child.wait(timeout=10) == -signal.SIGKILL
    assert running_process(mark) is None
    assert not send_signal(mark, signal.SIGKILL)


def test_a_zombie_has_ended(tmp_path: Path) -> None:
    child, mark = spawn([sys.executable, "-c", "pass"], tmp_path / "log", tmp_path, os.environ)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert running_process(mark) is None
    child.wait(timeout=10)


def test_output_is_appended_to_the_log(tmp_path: Path) -> None:
    for word in ("first", "second"):
        child, _ = spawn([sys.executable, "-c", f"print('{word}')"], tmp_path / "log", tmp_path, os.environ)
        assert child.wait(timeout=10) == 0
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


def test_a_port_in_use_is_named() -> None:
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        assert not is_port_free(HOST, port)
        with pytest.raises(PortInUseError, match=f"port {port} on 127.0.0.1 is in use"):
            choose_amqp_ports(HOST, 1, port)
    assert is_port_free(HOST, port)


def test_free_ports_are_different_and_not_those_taken() -> None:
    first = choose_free_ports(HOST, 3)
    second = choose_free_ports(HOST, 3, taken=first)
    assert len({*first, *second}) == 6
