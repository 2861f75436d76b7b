"""What a run says about how to repeat it, and where the client library's complaints go."""

from __future__ import annotations

import logging
from pathlib import Path

from chaos.runner import client_log, replay_command
from chaos.scenarios.model import RunOptions


def test_only_what_differs_from_the_defaults_is_said() -> None:
    defaults = RunOptions(messages=100, failovers=2)
    assert replay_command("control", 3, 7, defaults, defaults) == "warren chaos run control --nodes 3 --seed 7"
    smaller = RunOptions(messages=50, failovers=1)
    assert replay_command("control", 3, 7, smaller, defaults) == (
        "warren chaos run control --nodes 3 --seed 7 --messages 50 --failovers 1"
    )


def test_the_clients_complaints_are_kept_in_a_file(tmp_path: Path) -> None:
    with client_log(tmp_path / "client.log"):
        logging.getLogger("aiormq.connection").warning("the server has gone away")
    assert "the server has gone away" in (tmp_path / "client.log").read_text()
    assert logging.getLogger("aiormq").handlers == []
