"""Judging as a process of its own: Java has started by the time that there is something to judge, and does so once.

Whoever runs it writes a line of JSON for each run, ``{"run": URI, "facts": URI}``, and reads one for each: `Answer`.
The first line, before any is asked for, says that it is ready. It ends when its input does, and at once by SIGTERM.
What Spark or Java print goes to standard error.

Java starts while the run begins of which it will be asked; what measures that run comes first.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO, TypedDict

from pyspark.errors import PySparkException

from chaos.interrupts import sigterm_as_interrupt
from chaos.java import JavaMissingError
from chaos.spark_judge.evidence import judge_run
from chaos.spark_judge.session import open_session

#: To what else its user runs: a tenth of a busy processor, all of an idle one.
_NICENESS = 10


class Answer(TypedDict):
    """``problem`` is empty if the run is judged: what came of it is beside the run's record."""

    problem: str


def serve(master_url: str | None, *, memory_mb: int | None, is_small: bool) -> None:
    """Until standard input ends."""
    answers = _own_output()
    os.nice(_NICENESS)
    try:
        with sigterm_as_interrupt(), open_session(master_url, is_small=is_small, memory_mb=memory_mb) as spark:
            _answer(answers, "")
            for line in sys.stdin:
                asked: dict[str, Any] = json.loads(line)
                try:
                    judge_run(spark, asked["run"], asked["facts"])
                except (PySparkException, ValueError, OSError) as error:
                    _answer(answers, str(error).splitlines()[0])
                else:
                    _answer(answers, "")
    except JavaMissingError as error:
        _answer(answers, str(error))
    except KeyboardInterrupt:
        # Whoever asked wants no answer any more; Java has ended.
        return


def _own_output() -> TextIO:
    """Standard output, for answers alone: what anybody else prints goes to standard error from now on."""
    sys.stdout.flush()
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _answer(answers: TextIO, problem: str) -> None:
    answers.write(json.dumps(Answer(problem=problem)) + "\n")
    answers.flush()
