"""``python -m chaos.spark_judge RUN [--facts FILE]``: what a record shows, and the evidence beside it.

With ``--serve`` instead of a run it judges those that it is asked for (`chaos.spark_judge.serving`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path

from pyspark.errors import AnalysisException
from rich.console import Console
from rich.table import Column, Table

from chaos.java import JavaMissingError
from chaos.judge.facts_file import FACTS_FILE
from chaos.judge.findings import VIOLATIONS, Name
from chaos.judge.judgement import Judgement
from chaos.record.message_key import unpack
from chaos.record.schema import EVENTS_DIRECTORY
from chaos.spark_judge.evidence import FINDINGS_DIRECTORY, judge_run
from chaos.spark_judge.serving import serve
from chaos.spark_judge.session import open_session

#: A record that is judged before Java has warmed up.
_SMALL_BYTES = 8 << 20
_EXAMPLES_SHOWN = 3


class ExitCode(IntEnum):
    """What the command returns to the shell."""

    PASS = 0
    FAIL = 1
    USAGE = 2
    UNKNOWN = 3
    NO_JAVA = 69


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge. Returns the exit status: see `exit_code`."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if (options.run is None) != options.serve:
        parser.error("either RUN or --serve")
    try:
        if options.serve:
            serve(options.master, memory_mb=options.memory, is_small=options.small)
            return ExitCode.PASS
        run = _uri(options.run)
        facts_uri = _uri(options.facts) if options.facts else f"{run}/{FACTS_FILE}"
        is_small = options.small or _is_small(options.run)
        with open_session(options.master, is_small=is_small, memory_mb=options.memory) as spark:
            judgement = judge_run(spark, run, facts_uri)
    except JavaMissingError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.NO_JAVA
    except AnalysisException as error:
        sys.stderr.write(f"there is no record that can be judged: {str(error).splitlines()[0]}\n")
        return ExitCode.USAGE
    show(judgement, Console())
    sys.stdout.write(f"all findings: {run}/{FINDINGS_DIRECTORY}\n")
    return exit_code(judgement)


def exit_code(judgement: Judgement) -> ExitCode:
    """What is wrong is wrong, whatever is missing; without anything wrong, nothing may be missing."""
    if judgement.violations:
        return ExitCode.FAIL
    return ExitCode.UNKNOWN if judgement.incomplete or judgement.unjudged_messages else ExitCode.PASS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.spark_judge", description="Judge the record of a run.")
    parser.add_argument("run", nargs="?", metavar="RUN", help="directory of the run, or its URI (s3a://, hdfs://, ...)")
    parser.add_argument("--facts", metavar="FILE", help=f"what must be known of the run (RUN/{FACTS_FILE})")
    parser.add_argument("--master", metavar="URL", help="of a Spark cluster (this machine)")
    parser.add_argument("--memory", type=int, metavar="MB", help="of the Java machine (half of what is free)")
    parser.add_argument("--small", action="store_true", help="compile fast rather than well (seen from the files)")
    parser.add_argument("--serve", action="store_true", help="judge what standard input asks for, line by line")
    return parser


def _uri(path: str) -> str:
    return path.rstrip("/") if "://" in path else Path(path).resolve().as_uri()


def _is_small(run: str) -> bool:
    if "://" in run:
        return False
    return sum(path.stat().st_size for path in Path(run, EVENTS_DIRECTORY).rglob("*.parquet")) < _SMALL_BYTES


def show(judgement: Judgement, console: Console) -> None:
    """As a table, violations first."""
    title = f"{judgement.messages:,} messages, {judgement.rows:,} rows"
    table = Table(
        "finding", Column("count", justify="right"), "queue/publisher/number/attempt at process:event", title=title
    )
    for name, count in sorted(judgement.counts.items(), key=lambda item: (item[0] not in VIOLATIONS, item[0])):
        table.add_row(f"{name}" if name in VIOLATIONS else f"({name})", f"{count:,}", _examples(judgement, name))
    console.print(table)
    if Name.LOST in judgement.counts:
        places = ", ".join(f"{count:,} {place}" for place, count in sorted(judgement.places.items()))
        console.print(f"lost: {places}")
    console.print(f"order was judged of {judgement.pairs_compared:,} pairs")
    if judgement.incomplete:
        processes = ", ".join(map(str, sorted(judgement.incomplete)))
        console.print(f"of processes {processes} something is missing: nothing was concluded from absences")
    if judgement.unjudged_messages:
        console.print(f"{judgement.unjudged_messages:,} messages were delivered too often to be judged")


def _examples(judgement: Judgement, name: Name) -> str:
    return "; ".join(
        f"{'/'.join(map(str, unpack(each.message))) if each.message else '-'} at {each.process}:{each.event}"
        for each in judgement.examples[name][:_EXAMPLES_SHOWN]
    )


if __name__ == "__main__":
    sys.exit(main())
