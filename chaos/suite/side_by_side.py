"""What several targets made of the same scenarios, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from chaos.judge.findings import LOSSES, Name
from chaos.judge.windows import Service
from chaos.report.drawing import duration
from chaos.suite.results import Result

#: Deliveries of what had been delivered before, whether they may be or not.
REPEATS = frozenset(
    {
        Name.CAUSED,
        Name.AFTER_ACK,
        Name.UNFLAGGED,
        Name.RESURRECTED,
        Name.DOUBLE_OWNER,
        Name.SPONTANEOUS,
    }
)


def table(results: Sequence[Result]) -> str:
    """As Markdown: a row for each scenario, a column for each target; of several runs sums, and the longest gap."""
    targets = sorted({result.target for result in results})
    titles = {result.scenario: result.title for result in results}
    lines = [
        f"| scenario | {' | '.join(targets)} |",
        f"| --- |{' --- |' * len(targets)}",
    ]
    for scenario, title in sorted(titles.items()):
        cells = [
            _cell([each for each in results if (each.scenario, each.target) == (scenario, target)])
            for target in targets
        ]
        lines.append(f"| {scenario} {title} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(results: Sequence[Result]) -> str:
    run = [result for result in results if result.verdict is not None]
    if not run:
        return "not run" if not results else f"skipped: {results[0].reasons[0]}"
    verdicts = Counter(str(result.verdict) for result in run)
    told = [" ".join([name] + ([f"({count} runs)"] if count > 1 else [])) for name, count in sorted(verdicts.items())]
    counts = _sum([result.counts for result in run])
    lost = sum(counts[str(name)] for name in LOSSES)
    repeats = sum(counts[str(name)] for name in REPEATS)
    gaps = [
        f"{what} {duration(longest_us) if longest_us else 'short'}"
        for service, what in ((Service.PUBLISH, "no confirm"), (Service.CONSUME, "no delivery"))
        for longest_us in [max(result.longest_gap_us.get(str(service), 0) for result in run)]
    ]
    return f"{', '.join(told)}: {lost:,} lost, {repeats:,} repeated; {', '.join(gaps)}"


def _sum(tables: Sequence[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in tables:
        total.update(each)
    return total
