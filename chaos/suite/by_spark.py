"""Judging records of any size with Spark, in a process that is begun with the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from chaos.conduct.sheet import Sheet
from chaos.judge import judgement_file
from chaos.judge.facts_file import write_facts
from chaos.judge.judgement import Judgement
from chaos.suite.running import CannotJudge

#: Of what the judge prints, for whoever must find out why it ended.
LOG_NAME = "judge.log"
#: It ends by itself when its input does; this long it may take.
END_S = 20.0


class _NoAnswer(Exception):
    """It was not judged; the text says why."""


class SparkJudge:
    """`chaos.suite.running.Judge`, for one run or many. Use it as a context: its process ends with it."""

    def __init__(self, log_directory: Path, master_url: str | None = None, *, is_small: bool = True) -> None:
        """``is_small``: what is judged first has less than some 100,000 messages."""
        self._log_path = log_directory / LOG_NAME
        self._options = ["--small"] if is_small else []
        if master_url is not None:
            self._options += ["--master", master_url]
        self._process: subprocess.Popen[str] | None = None
        self._is_ready = False

    def prepare(self) -> None:
        """Begin the process, if it is not there: Java takes some seconds."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "chaos.spark_judge", "--serve", *self._options]
        with self._log_path.open("ab") as log:
            # A group of its own: what interrupts a run at the terminal ends it by closing its input.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, process_group=0
            )

    def __call__(self, directory: Path, sheet: Sheet) -> Judgement:
        """Raises `CannotJudge`."""
        self.prepare()
        facts = write_facts(directory, sheet.facts())
        try:
            if not self._is_ready:
                self._answer()
                self._is_ready = True
            self._ask({"run": directory.resolve().as_uri(), "facts": facts.resolve().as_uri()})
        except _NoAnswer as error:
            raise CannotJudge(
                f"{error}. The record is whole: `warren chaos analyse {directory}` judges it again, "
                "with --judge plain without Spark"
            ) from None
        return judgement_file.read(directory)

    def _ask(self, question: dict[str, str]) -> None:
        assert self._process is not None, "it was prepared"
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None
        self._answer()

    def _answer(self) -> None:
        assert self._process is not None, "it was prepared"
        assert self._process.stdout is not None, "it is a pipe"
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        if problem := json.loads(line)["problem"]:
            raise _NoAnswer(problem)

    def _ended(self) -> _NoAnswer:
        """Clears up behind the process: the next run gets another one."""
        self.close(at_once=True)
        return _NoAnswer(f"the judge's process has ended; {self._log_path} says why")

    def close(self, *, at_once: bool = False) -> None:
        """Its input ends, and so does it; ``at_once``: also in the middle of a judgement."""
        process, self._process, self._is_ready = self._process, None, False
        if process is None:
            return
        with process:
            if at_once:
                process.terminate()
            # What it was asked may still be in the pipe of one that is gone.
            with suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                # With its Java.
                os.killpg(process.pid, signal.SIGKILL)

    def __enter__(self) -> SparkJudge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(at_once=kind is not None)
