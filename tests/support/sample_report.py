"""A report of a run that never was, with something of everything on it."""

from __future__ import annotations

from chaos.conduct.sheet import QueueEntry, RosterEntry, Sheet, State
from chaos.judge.findings import Name
from chaos.judge.ledger import Failover, Row
from chaos.judge.verdict import Judged, Verdict
from chaos.judge.windows import Service, Window
from chaos.report.model import Actor, Deed, Depth, Lane, Mark, Moment, Report, Story

BEGAN_US = 1_790_000_000_000_000
S = 1_000_000


def at(seconds: float) -> int:
    """Of the run."""
    return BEGAN_US + round(seconds * S)


def sample_report(verdict: Verdict = Verdict.FAIL, title: str = "The master is killed under load") -> Report:
    """Two failovers, one of which loses messages."""
    sheet = Sheet(
        run="K01-7",
        scenario="K01",
        title=title,
        holds="Nothing is lost and nothing vanishes; every publish is answered",
        target="local",
        seed=7,
        began_at="2026-09-21T13:46:40+00:00",
        nodes=[{"number": number, "name": f"n{number}", "log": ""} for number in (1, 2, 3)],
        queues=[QueueEntry("orders", False, True, True), QueueEntry("invoices", False, True, True)],
        roster=[RosterEntry(1, "conductor"), RosterEntry(2, "publisher", [1])],
        state=State.FINISHED,
        wanted_at_risk={"stored": 4000, "failovers": 2},
        at_risk={"stored": 4280, "failovers": 2, "held": 0, "outstanding": 140, "confirmed": 20662},
        took_s={"prepare": 5.1, "warm": 3.0, "steps": 35.1, "drain": 0.6},
        notes=["one note of the conductor"],
    )
    ledger = [
        Row(Failover(1, 2, 2, at(10.1), at(10.6)), 1, (100_000, 600_000), 2_010_000, 3_000_000, 0, 214,
            {"stored": 2140, "outstanding": 70}, 9_300_000),
        Row(Failover(1, 3, 3, at(25.2), at(25.4)), 2, (200_000, 400_000), 0, 420_000, 3, 12, {"stored": 2140}, None),
    ]  # fmt: skip
    reasons = ("3 lost",) if verdict is Verdict.FAIL else ()
    return Report(
        sheet=sheet,
        judged=Judged(verdict, reasons),
        counts={Name.LOST: 3 if verdict is Verdict.FAIL else 0, Name.CAUSED: 226, Name.COPIES: 94},
        places={"middle": 2, "postfix": 1},
        moments=_moments(),
        depths={
            "orders": [Depth(at(second), 2000 if second in (9, 10, 11, 24, 25) else 12) for second in range(40)],
            "invoices": [Depth(at(second), 3) for second in range(40)],
        },
        marks=_marks(),
        windows=[Window(Service.PUBLISH, 1, at(10), at(12.01))],
        ledger=ledger,
        coverage={"kill": {"publishes under way": 2, "deliveries held": 0, "messages stored": 2}},
        stories=[_story()],
        replay="warren chaos run K01 --seed 7",
        files={"record": "events/", "findings": "findings/"},
    )


def _moments() -> list[Moment]:
    return [
        Moment(
            at(second / 4),
            0 if 40 <= second < 48 else 125 + second % 7,
            0 if 38 <= second < 52 else 120 + (second * 37) % 50,
            60 if 52 <= second < 56 else 0,
            None if 40 <= second < 48 else 1800 + 40 * (second % 9),
            None if 40 <= second < 48 else 9_000 + 900 * (second % 5),
            None if 40 <= second < 48 else 30_000 + (1_900_000 if second == 48 else 0),
        )
        for second in range(160)
    ]


def _marks() -> list[Mark]:
    return [
        Mark(Lane.FAULTS, at(10), at(14), "1 kill: n1"),
        Mark(Lane.FAULTS, at(25), at(29), "2 kill: n2"),
        Mark(Lane.PROMOTIONS, at(10.1), at(10.6), "orders: n2, epoch 2"),
        Mark(Lane.PROMOTIONS, at(25.2), at(25.4), "orders: n3, epoch 3"),
        Mark(Lane.NO_PUBLISH, at(10), at(12.01), "orders: 2 s"),
        Mark(Lane.NO_CONSUME, at(9.5), at(13), "orders: 3 s"),
        Mark(Lane.MIRRORS, at(19.3), at(19.4), "n1 has everything again"),
        Mark(Lane.CLIENTS, at(10), at(10.3), "publisher 1 was cut off"),
        Mark(Lane.STALLS, at(31), at(31.4), "consumer 2 stood still"),
    ]


def _story() -> Story:
    return Story(
        77,
        "message 2140 of publisher 1, queue orders",
        [Name.LOST],
        [
            Deed(at(24.9), at(24.9), Actor.PUBLISHER, "publisher 1", "publishes it, tag 801"),
            Deed(at(24.91), at(24.91), Actor.PUBLISHER, "publisher 1", "hears that it was taken", is_finding=True),
            Deed(at(25), at(25.05), Actor.CONDUCTOR, "conductor", "kills n2, the master"),
            Deed(at(25.2), at(25.4), Actor.NODE, "n3", "is promoted"),
        ],
        [("n3", "promoted <script>alert(1)</script> for queue 'orders'")],
    )
