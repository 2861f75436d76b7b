"""``python -m chaos.suite --out DIR SCENARIO...``: runs on processes of this machine, judged in plain Python."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from chaos.plan.reading import catalogue
from chaos.suite.by_reference import judge_by_reference
from chaos.suite.results import append, read, summarise
from chaos.suite.running import Setting, TargetMaker, run_scenario
from chaos.targets.local import LocalTarget
from chaos.targets.rabbitmq import RabbitMqTarget

TARGETS: dict[str, TargetMaker] = {"local": LocalTarget, "rabbitmq": RabbitMqTarget}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS), default="local")
    parser.add_argument("scenarios", nargs="+")
    options = parser.parse_args()
    setting = Setting(TARGETS[options.target], judge_by_reference, lambda text: print(f"  {text}", file=sys.stderr))
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in range(options.seed, options.seed + options.repeat):
        for name in options.scenarios:
            directory = options.out / f"{name}-{seed}"
            directory.mkdir()
            sys.stderr.write(f"{name}, seed {seed}\n")
            result = asyncio.run(run_scenario(catalogue()[name], directory, seed, setting))
            append(options.out, result)
            sys.stdout.write(result.to_json() + "\n")
    summary = summarise(read(options.out))
    sys.stdout.write(f"{summary} {summary.bounds}\n")
    return int(any(result.is_bad for result in read(options.out)))


if __name__ == "__main__":
    sys.exit(main())
