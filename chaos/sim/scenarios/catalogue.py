"""The scenarios by name."""

from __future__ import annotations

from collections.abc import Mapping

from chaos.sim.drawing import draw_schedule
from chaos.sim.scenarios import disks, failovers, mirrors, operators, sharing, shortages, working
from chaos.sim.scenarios.scene import Scenario
from chaos.sim.schedule import Schedule

#: What a seed is drawn for if nobody names a scenario.
PLAIN_OPERATIONS = 200
PLAIN_LENGTH_MS = 20_000

SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario("ambush", "the master ends as a client hears of a confirm or a delivery", failovers.ambush),
        Scenario(
            "power_return",
            "all lose their power under manual synchronisation and return in part",
            failovers.power_return,
        ),
        Scenario("unnoticed_restart", "nodes restart before anybody misses them", failovers.unnoticed_restart),
        Scenario(
            "dark_confirm", "all lose their power at a confirm, and the master returns last", failovers.dark_confirm
        ),
        Scenario("backlog", "consumers come to a full queue, and the master ends as it delivers", failovers.backlog),
        Scenario("twice", "a master ends, and the next one at its first confirm", failovers.twice),
        Scenario("forced_promotion", "an operator has a copy serve that has missed some", failovers.forced_promotion),
        Scenario(
            "hostile_commands", "commands in the log that nobody should have proposed", operators.hostile_commands
        ),
        Scenario(
            "cut_off_master", "a master is cut off as it learns that a complete copy has gone", failovers.cut_off_master
        ),
        Scenario(
            "newcomer", "a mirror joins beside a slow disk, is not filled, and must take over", failovers.newcomer
        ),
        Scenario(
            "late_report", "what a master says of its mirror comes when the queue is down already", mirrors.late_report
        ),
        Scenario(
            "stalled_mirror", "a complete mirror is dropped for its silence, its master ends", mirrors.stalled_mirror
        ),
        Scenario("partition", "a node against the others, paused nodes, broken links, and a heal", failovers.partition),
        Scenario("sessions", "links between nodes break while consumers hold much and come and go", failovers.sessions),
        Scenario(
            "privileges",
            "consumers that want to be alone, first, or told of a new master, while masters end and move",
            failovers.privileges,
        ),
        Scenario("guests", "clients with queues of their own come and go, and nodes end", failovers.guests),
        Scenario(
            "elections",
            "voters lose their power as they vote, all of them as something is decided",
            failovers.elections,
        ),
        Scenario("orderly_restarts", "nodes stop and start, with the power going meanwhile", disks.orderly_restarts),
        Scenario("clean_stops", "nodes stop and start in order, and nothing else happens", disks.clean_stops),
        Scenario("single_disk", "queues without mirrors, and the power goes at a confirm", disks.single_disk),
        Scenario("wiped_disk", "a node comes back with an empty disk", disks.wiped_disk),
        Scenario("failed_disk", "a disk refuses to write, and its node is the last to be left", disks.failed_disk),
        Scenario("failed_sync", "a sync fails, the node starts again, and the power goes", disks.failed_sync),
        Scenario("full_disk", "disks are full while their nodes restart", disks.full_disk),
        Scenario(
            "full_log",
            "clients declare while a full disk keeps a node from following",
            disks.full_log,
            length_ms=10_000,
        ),
        Scenario("stale_metadata", "queues are made anew while a node cannot follow", disks.stale_metadata),
        Scenario("conditional_delete", "deletions under a condition around failovers", operators.conditional_delete),
        Scenario(
            "replacement",
            "a node is forgotten and joins anew, and one that is late hears it",
            operators.replacement,
            nodes_min=5,
        ),
        Scenario(
            "lost_majority",
            "machines are lost that the others need, and are forgotten on one that is down",
            operators.lost_majority,
        ),
        Scenario("growth", "machines that no configuration names come, and are told to join", operators.growth),
        Scenario("next_life", "publishers' node is back before what they published is safe", failovers.next_life),
        Scenario("tenants", "vhosts are made, used and deleted while nodes end", operators.tenants),
        Scenario("openings", "queues are deleted while their copies wait to be opened", working.openings),
        Scenario("returning", "publishes wait while channels that are reset give much back", working.returning),
        Scenario("lodgers", "users and vhosts are deleted under clients that are connected", working.lodgers),
        Scenario("wirings", "exchanges and bindings come and go while nodes end or lag behind", operators.wirings),
        Scenario("policy_changes", "policies with exactly and nodes while nodes come and go", operators.policy_changes),
        Scenario("rebalancing", "masters are spread anew, and one of those concerned may end", operators.rebalancing),
        Scenario("half_heard", "a mirror hears a master of before again, and the new one ends", failovers.half_heard),
        Scenario("quick_acks", "messages are settled before a slow disk has them", disks.quick_acks),
        Scenario("torn_stop", "the power goes while nodes stop", disks.torn_stop),
        Scenario("compaction", "the power goes while garbage is reclaimed", disks.compaction),
        Scenario("limits", "short queues, and consumers that give back", operators.limits),
        Scenario(
            "lost_answers", "short queues that refuse, and links that break with the answers", operators.lost_answers
        ),
        Scenario(
            "full_links", "more than may wait for slow links, of publishes and for consumers", operators.full_links
        ),
        Scenario(
            "small_frames", "turns that leave in many frames, and the master's death between", operators.small_frames
        ),
        Scenario("descriptors", "nodes may open no more files, or few, for a while", shortages.descriptors),
        Scenario(
            "same_epoch",
            "masters lose their copies for want of files, go on in their epoch, and end",
            shortages.same_epoch,
        ),
        Scenario("unreadable", "files of queues cannot be read for a while", shortages.unreadable),
        Scenario("fan_out", "large messages are in several queues at once, and nodes end", sharing.fan_out),
        Scenario(
            "work",
            "clients consume several queues on a channel, settle many at once, close it and open another",
            working.work,
        ),
        Scenario(
            "keepers",
            "auto-delete queues are kept for long while masters change and nodes are cut off",
            working.keepers,
        ),
        Scenario(
            "sent_away",
            "consumers come again to auto-delete queues that are not open, and hear that late",
            working.sent_away,
        ),
        Scenario(
            "overtaken",
            "consumers come to the new master of auto-delete queues before it hears even of older records",
            working.overtaken,
            nodes_min=5,
        ),
        Scenario("settings", "policies change version, mode and limits of queues under faults", sharing.settings),
        Scenario("one_kind_full", "there is no room for one kind of files", shortages.one_kind_full),
        Scenario("hung_disks", "no sync of a node returns for seconds", shortages.hung_disks),
        Scenario("long_faults", "faults that outlast every timeout", shortages.long_faults, operations=20),
    )
}


def draw(
    seed: int, nodes: int = 3, operations: int | None = None, length_ms: int | None = None, scenario: str = ""
) -> Schedule:
    """The schedule of a seed: of a scenario, or from everything there is. Raises `KeyError` for an unknown name."""
    if not scenario:
        return draw_schedule(seed, nodes, operations or PLAIN_OPERATIONS, length_ms or PLAIN_LENGTH_MS)
    return SCENARIOS[scenario].draw(seed, nodes, operations, length_ms)
