"""``python -m chaos.generator --messages N --seed S --plant K OUT``: a record, its facts, what was planted in it."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from chaos.generator.history import Generated, History
from chaos.generator.run import write_run
from chaos.generator.shape import Shape

#: About, without and with what the broker tells.
_ROWS_PER_MESSAGE = (5.05, 9.1)
_NUMBERS = {
    "messages": "messages to publish",
    "seed": "the same seed makes the same record",
    "queues": "queues",
    "publishers": "publishers of each queue",
    "consumers": "consumers of each queue",
    "prefetch": "prefetch count of each consumer",
    "rate": "messages published in a second",
    "failovers": "failovers of one queue each",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Generate. Returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        shape = Shape(tap=options.tap, **{name: getattr(options, name) for name in _NUMBERS})
    except ValueError as error:
        sys.stderr.write(f"no such history: {error}\n")
        return 2
    history = History(shape, options.plant)
    directory: Path = options.out
    try:
        with _progress(round(shape.messages * _ROWS_PER_MESSAGE[shape.tap])) as advance:
            generated = write_run(history, directory, advance)
    except FileExistsError as error:
        sys.stderr.write(f"there is a record already: {error.filename}\n")
        return 2
    sys.stdout.write(_summary(shape, generated, options.plant))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.generator", description="Generate the record of a run.")
    for name, words in _NUMBERS.items():
        default = Shape.__dataclass_fields__[name].default
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{words} ({default})")
    parser.add_argument("--plant", type=int, default=0, metavar="K", help="anomalies of each class (0)")
    parser.add_argument("--tap", action="store_true", help="the broker tells, too: some classes of anomaly need it")
    parser.add_argument("out", type=Path, help="directory of the run, without a record")
    return parser


@contextmanager
def _progress(rows: int) -> Iterator[Callable[[int], None]]:
    """Shown on a terminal only."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} rows"))
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as (progress):
        task = progress.add_task("Generating", total=rows)
        yield lambda count: progress.advance(task, count)


def _summary(shape: Shape, generated: Generated, plant: int) -> str:
    anomalies = Counter(planted.anomaly for planted in generated.planted)
    lines = [f"{generated.rows:,} rows, {generated.failovers} failovers"]
    if generated.failovers < shape.failovers:
        lines.append(f"no room for {shape.failovers - generated.failovers} more failovers")
    if plant:
        lines.append(f"{len(generated.planted):,} findings of {len(anomalies)} classes of anomaly planted")
    if plant and not shape.tap:
        lines.append("without --tap, nothing was planted that only the broker can tell of")
    lines += [f"{name}: no place for {count} of {plant}" for name, count in sorted(generated.missing.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
