"""Many seeds of the cases that depend on one: ``python -m tests.conformance.ha --seeds 1..2000 --case N6``.

Without ``--case`` every one of them. Whatever fails is told with its seed as it comes; one seed of one case tells its
story. ``--write-table`` brings the table of docs/conformance.md up to date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.conformance.ha import table
from tests.conformance.ha.campaign import campaign
from tests.conformance.ha.revived import SEEDED


def seed_range(text: str) -> range:
    """``7``, or ``1..200``: both ends included."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def cases_named(names: Sequence[str]) -> list[str]:
    """The cases of these ids with all their variants; all of them if none is named."""
    chosen = [case_id for case_id in SEEDED if not names or case_id in names or case_id.partition("-")[0] in names]
    unknown = [name for name in names if name not in SEEDED and name not in {each.partition("-")[0] for each in SEEDED}]
    if unknown:
        sys.exit(f"no case that depends on a seed: {', '.join(unknown)}; there are {', '.join(SEEDED)}")
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.ha", description=__doc__)
    parser.add_argument("--seeds", type=seed_range, default=range(1, 101), help="one, as 7, or a range, as 1..2000")
    parser.add_argument("--case", action="append", default=[], help="id of a case, as N6; may be given several times")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--write-table", action="store_true", help="bring docs/conformance.md up to date")
    options = parser.parse_args()
    if options.write_table:
        table.write()
        return
    sys.exit(campaign(cases_named(options.case), options.seeds, options.jobs))


if __name__ == "__main__":
    main()
