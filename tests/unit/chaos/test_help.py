"""What `warren` says of its commands."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from chaos.cli import main
from chaos.interrupts import EXIT_INTERRUPTED
from chaos.judge.verdict import ExitCode
from chaos.suite.commands import EXIT_NO_JAVA, EXIT_SKIPPED


def help_of(*words: str) -> str:
    result = CliRunner().invoke(main, [*words, "--help"], terminal_width=80)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("words", [[], ["chaos"], ["cluster"], ["sim"], ["store"]], ids=" ".join)
def test_no_summary_of_a_command_is_cut_short(words: list[str]) -> None:
    summaries = help_of(*words).partition("Commands:\n")[2].splitlines()
    assert len(summaries) > 0
    assert [line for line in summaries if line.endswith("...")] == []


def test_a_run_of_the_laboratory_tells_its_exit_codes() -> None:
    said = " ".join(help_of("chaos", "run").split())
    for code in (*ExitCode, EXIT_SKIPPED, EXIT_NO_JAVA, EXIT_INTERRUPTED):
        assert f" {int(code)} " in said, code
