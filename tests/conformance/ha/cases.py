"""The named cases of RabbitMQ's high-availability suites, and the test here that asks the same.

Ids are those of the table in docs/conformance.md, which is made out of this. A case has tests, or is *pending*: what it
asks for does not exist here yet. Its *difference* says what Warren promises otherwise, on purpose; its *defect*, what a
test of it expects to fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.conformance.ha.on_processes import ON_PROCESSES

HERE = "conformance/ha/"


@dataclass(frozen=True)
class Case:
    """``tests``: node ids below ``tests``."""

    #: What RabbitMQ's case asks.
    asks: str
    tests: tuple[str, ...] = ()
    difference: str = ""
    defect: str = ""
    pending: str = ""
    #: RabbitMQ removed or disabled it: it is a function of a seed here, as far as it depends on moments.
    is_revived: bool = False


def _in(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{HERE}test_{module}.py::test_{name}" for name in names)


_FAILOVER = "integration/cluster/test_queues_failover.py::"
_SHARED = "Two nodes there; three here, since one of two is no majority."

SIMPLE: Mapping[str, Case] = {
    "S1": Case(
        "declare and delete a mirrored queue twenty times in a row",
        (
            *_in("simple_ha", "s1_declaring_and_deleting_in_quick_succession_never_fails"),
            f"{_FAILOVER}test_redeclaring_quickly_never_fails",
        ),
    ),
    "S2": Case(
        "the mirror exists by declare-ok: the only message survives the kill of the master",
        (
            *_in("simple_ha", "s2_the_mirror_exists_when_the_declaration_is_answered"),
            f"{_FAILOVER}test_a_confirmed_message_survives_the_master_at_once",
        ),
        _SHARED,
    ),
    "S3": Case(
        "an exclusive queue goes with its killed node, everywhere and for good",
        _in("simple_ha", "s3_exclusive_queues_go_with_the_node_of_their_connection"),
    ),
    "S4": Case(
        "ten exclusive queues, a node is killed: cancels for the lost, which are declared again",
        _in("simple_ha", "s4_exclusive_queues_are_declared_again_on_another_node"),
        "An exclusive queue lives where its connection does: the end of another node costs none.",
        is_revived=True,
    ),
    "S5": Case("a consumer survives the stop of the master", _in("simple_ha", "s5_consuming_survives_a_stop")),
    "S6": Case(
        "a consumer survives the kill of the master",
        _in("simple_ha", "s6_consuming_survives_sigkill"),
        is_revived=True,
    ),
    "S7": Case(
        "a consumer survives a policy that moves the master", _in("simple_ha", "s7_consuming_survives_a_policy")
    ),
    "S8": Case(
        "a consumer that did not ask to be told goes on by itself",
        (
            *_in("simple_ha", "s8_a_consumer_goes_on_by_itself"),
            f"{_FAILOVER}test_a_consumer_on_a_surviving_node_goes_on",
        ),
    ),
    "S9": Case("so does one that cannot be told", _in("simple_ha", "s9_so_does_one_that_cannot_be_told")),
    "S10": Case(
        "every publish is confirmed across a stop",
        _in(
            "simple_ha",
            "s10_confirms_survive_a_stop",
            "s10_the_queue_keeps_the_order_of_all_that_was_published_before",
        ),
    ),
    "S11": Case(
        "every publish is confirmed across a kill", _in("simple_ha", "s11_confirms_survive_sigkill"), is_revived=True
    ),
    "S12": Case("every publish is confirmed across a move", _in("simple_ha", "s12_confirms_survive_a_policy")),
    "S13": Case(
        "a full queue refuses every publish across a stop, and keeps what it has",
        _in("simple_ha", "s13_refusals_survive_a_stop"),
    ),
    "S14": Case(
        "likewise across a kill",
        _in(
            "simple_ha",
            "s14_refusals_survive_sigkill",
            "s14_refusals_with_dead_lettering_survive_sigkill",
        ),
        is_revived=True,
    ),
    "S15": Case("likewise across a move", _in("simple_ha", "s15_refusals_survive_a_policy")),
}

_VHOSTS = "A vhost is no process here: what fails alone is the copy of a queue, and it comes back with its node."
_REBALANCING = "unit/chaos/sim/test_rebalancing.py::test_"

DYNAMIC: Mapping[str, Case] = {
    "D1": Case("which nodes a policy chooses, as a table", _in("dynamic_ha", "d1_which_nodes_a_policy_chooses")),
    "D2": Case(
        "policies change: only known states in between",
        _in("dynamic_ha", "d2_a_queue_follows_its_policy_through_known_states_only"),
    ),
    "D3": Case(
        "nodes that join the cluster are recruited as mirrors",
        _in("dynamic_ha", "d3_nodes_that_join_are_recruited_as_mirrors"),
    ),
    "D4": Case(
        "a hundred short lives of a queue while its policy comes and goes",
        _in("dynamic_ha", "d4_no_operation_fails_while_policies_come_and_go"),
    ),
    "D5": Case(
        "a nodes policy picks a synchronised master from its list, or keeps a synchronised one",
        _in("dynamic_ha", "d5_a_nodes_policy_picks_its_master_among_synchronised_mirrors"),
    ),
    "D6": Case(
        "each mirror boots alone after an orderly end, the others forgotten offline",
        (
            *_in("dynamic_ha", "d6_each_mirror_alone_has_everything_after_an_orderly_end"),
            "integration/cluster/test_members.py::test_a_survivor_forgets_the_majority_offline",
        ),
    ),
    "D7": Case(
        "a new mirror that cannot start must not crash the master",
        _in("dynamic_ha", "d7_a_mirror_that_cannot_be_opened_does_not_disturb_the_master"),
        "There its vhost is dead; here its disk refuses the copy.",
    ),
    "D8": Case(
        "a vhost with a mirrored queue can be deleted",
        _in("dynamic_ha", "d8_a_vhost_with_a_mirrored_queue_can_be_deleted"),
    ),
    "D9": Case(
        "a queue without a master is refused with 404, can be deleted, and not if-empty",
        _in(
            "dynamic_ha",
            "d9_a_queue_whose_master_is_gone_is_refused_by_name",
            "d9_a_queue_whose_master_is_gone_can_be_deleted",
        ),
        "If-empty is refused with 404 and the name of the node that knows, there with 406; if-unused likewise.",
    ),
    "D10": Case(
        "who may be promoted after a kill",
        (
            *_in("dynamic_ha", "d10_promotion_after_a_kill"),
            f"{_FAILOVER}test_a_queue_waits_for_its_messages_if_the_policy_says_so",
            f"{_FAILOVER}test_an_incomplete_mirror_takes_over_if_the_policy_says_so",
        ),
    ),
    "D11": Case(
        "who may be promoted after a stop",
        _in("dynamic_ha", "d11_promotion_after_a_stop"),
    ),
    "D12": Case(
        "a mirror recovers after the failure of its vhost",
        _in("crashing_queues", "d12_a_mirror_that_failed_recovers_with_its_node"),
        _VHOSTS,
    ),
    "D13": Case(
        "a mirror recovers after its vhost was stopped and started",
        _in("crashing_queues", "d13_a_mirror_that_failed_recovers_with_its_node_in_an_orderly_way"),
        _VHOSTS,
    ),
    "D14": Case(
        "the master moves when its vhost goes down",
        _in("crashing_queues", "d14_the_master_moves_when_its_copy_fails"),
        _VHOSTS,
    ),
    "D15": Case(
        "a mirror recovers after its vhost went down and the master moved",
        _in("crashing_queues", "d15_who_was_the_master_when_its_copy_failed_recovers_as_a_mirror"),
        _VHOSTS,
    ),
    "D16": Case(
        "masters are rebalanced under ha-mode all",
        (f"{_REBALANCING}masters_are_spread_to_synchronised_mirrors",),
        "Every plan is the most even one with the fewest moves, however long queues are: moving copies nothing.",
    ),
    "D17": Case("masters are rebalanced under ha-mode exactly", (f"{_REBALANCING}masters_under_exactly_are_spread",)),
    "D18": Case(
        "masters are rebalanced under ha-mode nodes", (f"{_REBALANCING}queues_without_synchronised_mirrors_stay",)
    ),
    "D19": Case(
        "a second rebalance at the same time is refused",
        (f"{_REBALANCING}two_at_the_same_time_do_each_others_work",),
        "It is not refused: of each move that the other one has made already it says so.",
    ),
    "D20": Case(
        "any policies in any order: the last one holds",
        _in("dynamic_ha", "d20_whatever_policies_come_the_last_one_holds"),
        is_revived=True,
    ),
    "D21": Case(
        "three sequences of policies that once failed",
        _in(
            "dynamic_ha",
            "d21_a_nodes_policy_that_shrinks",
            "d21_mirrors_everywhere_and_then_one_elsewhere",
            "d21_nine_changes",
        ),
        is_revived=True,
    ),
}

SYNCHRONISATION: Mapping[str, Case] = {
    "Y1": Case(
        "a restarted mirror is unsynchronised until what it missed is acked",
        _in(
            "synchronisation",
            "y1_a_mirror_is_unsynchronised_until_what_it_missed_is_gone",
            "y1_a_mirror_that_missed_nothing_is_synchronised_when_it_is_back",
        ),
        "A mirror keeps what it had; there it begins empty.",
    ),
    "Y2": Case(
        "the same when messages expire",
        _in("synchronisation", "y2_what_the_queue_drops_by_itself_synchronises_as_acks_do"),
        "Driven by max-length: expiry is not carried out yet.",
    ),
    "E1": Case(
        "synchronised between restarts nothing is lost, otherwise all; again: nothing to do; unacked ones, too",
        _in(
            "synchronisation",
            "e1_without_synchronisation_a_new_mirror_has_nothing_to_serve",
            "e1_synchronised_between_two_restarts_nothing_is_lost",
            "e1_who_comes_back_with_its_content_needs_no_synchronisation",
            "e1_unacked_messages_are_synchronised_too",
            "e1_a_queue_without_mirrors_cannot_be_synchronised",
        ),
        "Two restarts without synchronisation lose nothing; there they lose all.",
    ),
    "E2": Case(
        "a cancelled synchronisation leaves the queue running and the mirror unsynchronised",
        _in("synchronisation", "e2_a_cancelled_synchronisation_leaves_the_queue_running_and_the_mirror_behind"),
        "What has arrived stays on the mirror; there it is thrown away.",
    ),
    "E3": Case(
        "automatic synchronisation keeps all through rolling restarts",
        _in(
            "synchronisation",
            "e3_with_automatic_synchronisation_nodes_may_be_restarted_one_after_the_other",
        ),
    ),
    "E4": Case(
        "a policy that becomes automatic synchronises",
        _in("synchronisation", "e4_a_policy_that_becomes_automatic_synchronises"),
    ),
    "E5": Case(
        "messages requeued before or after a synchronisation are kept",
        _in("synchronisation", "e5_messages_that_go_back_around_a_synchronisation_are_kept"),
    ),
    "M1": Case(
        "master and three mirrors of six are killed in turn, the consumer gets all",
        _in("synchronisation", "m1_master_and_three_mirrors_are_killed_one_after_the_other"),
        "Of nine: two of six are no majority.",
    ),
}

_NO_PRIORITIES = "Without priorities, which are not carried out."

PRIORITY: Mapping[str, Case] = {
    "P1": Case(
        "a mirror without the head, some messages unacked: the synchronisation ends",
        _in("priority_mirrors", "p1_a_mirror_without_the_head_and_with_unacked_messages_is_synchronised"),
        _NO_PRIORITIES,
        is_revived=True,
    ),
    "P2": Case(
        "priorities above the maximum do not hang it",
        _in("priority_mirrors", "p2_priorities_above_any_maximum_do_not_hold_a_synchronisation_up"),
        _NO_PRIORITIES,
        is_revived=True,
    ),
    "P3": Case(
        "nor with unacked messages",
        _in("priority_mirrors", "p3_nor_do_they_with_unacked_messages"),
        _NO_PRIORITIES,
        is_revived=True,
    ),
    "P4": Case(
        "gets without acks do not crash a mirror whose neighbour restarts",
        _in("priority_mirrors", "p4_gets_without_acks_leave_a_mirror_standing_while_its_neighbour_restarts"),
        is_revived=True,
    ),
    "P5": Case(
        "after a synchronisation and a stop the order is as before",
        _in("priority_mirrors", "p5_after_a_synchronisation_and_a_stop_the_order_is_that_of_publishing"),
        "The order is that of publishing alone: priorities are not carried out.",
        is_revived=True,
    ),
    "P6": Case(
        "ten changes of the policy: the master never crashes and mirrors are filled",
        _in("priority_mirrors", "p6_ten_changes_of_the_policy"),
        _NO_PRIORITIES,
        is_revived=True,
    ),
    "P7": Case(
        "ten quick ones",
        _in("priority_mirrors", "p7_ten_changes_of_the_policy_in_quick_succession"),
        _NO_PRIORITIES,
        is_revived=True,
    ),
    "P8": Case(
        "fifteen without waiting for mirrors to stop",
        _in("priority_mirrors", "p8_fifteen_changes_that_nobody_waits_for"),
        _NO_PRIORITIES,
        is_revived=True,
    ),
}

_PROTOCOL = "unit/cluster/mirroring/test_master_and_mirror.py::"

PARTS: Mapping[str, Case] = {
    "G1": Case("members join and leave a group", _in("group", "g1_members_join_and_leave")),
    "G2": Case("a broadcast reaches every member once", _in("group", "g2_what_is_said_reaches_every_member_once")),
    "G3": Case(
        "it is confirmed when all have it", _in("group", "g3_it_is_confirmed_when_the_last_member_has_it_on_disk")
    ),
    "G4": Case("all survivors learn of a death", _in("group", "g4_all_survivors_learn_of_a_death")),
    "G5": Case(
        "a thousand messages of two senders arrive in the order of each",
        _in("group", "g5_what_two_members_say_at_once_stands_in_the_order_of_each_everywhere"),
    ),
    "G6": Case(
        "a message that nobody expects is ignored",
        (
            f"{_PROTOCOL}test_frames_of_an_earlier_attach_are_ignored",
            f"{_PROTOCOL}test_an_acknowledgement_of_what_was_never_sent_releases_nothing",
        ),
    ),
    "G7": Case(
        "the group is deleted while a death is handled: a clean end",
        _in("group", "g7_a_queue_that_is_deleted_as_a_member_dies_ends_cleanly"),
    ),
    "T1": Case(
        "a batch is sent when it has its messages, its bytes, or nothing follows",
        _in(
            "sync_batches",
            "t1_a_batch_ends_with_its_number_of_messages",
            "t1_a_batch_ends_with_its_number_of_bytes",
            "t1_a_batch_ends_with_what_is_to_be_sent",
        ),
    ),
    "T2": Case(
        "the arithmetic of the throttle",
        (
            *_in(
                "sync_batches",
                "t2_what_may_be_sent_follows_from_the_time_that_has_passed",
                "t2_without_a_limit_everything_may_be_sent_at_once",
            ),
            f"{_PROTOCOL}test_the_throttle_limits_bytes_per_second",
        ),
    ),
    "T3": Case(
        "messages gather in a batch with their sizes",
        _in("sync_batches", "t3_a_batch_keeps_the_order_and_knows_its_size_and_leaves_out_what_is_settled"),
    ),
    "T4": Case("units of the speed limit: 100MB is not 100MiB", ("unit/node/test_config.py::test_sizes_take_units",)),
    "L1": Case(
        "a policy whose nodes do not exist hinders no declaration",
        _in("master_location", "l1_a_policy_whose_nodes_do_not_exist_hinders_nobody"),
    ),
    "L2": Case(
        "min-masters among listed nodes",
        _in("master_location", "l2_among_listed_nodes_the_one_with_the_fewest_masters"),
    ),
    "L3": Case(
        "min-masters among all nodes", _in("master_location", "l3_among_all_nodes_the_one_with_the_fewest_masters")
    ),
    "L4": Case(
        "min-masters under exactly",
        _in("master_location", "l4_exactly_so_many_copies_beginning_with_the_node_of_the_fewest_masters"),
    ),
    "K1": Case(
        "the process of a mirrored queue crashes while others declare: both messages and a mirror are left",
        _in(
            "crashing_queues",
            "k1_a_mirrored_queue_survives_with_all_its_messages_and_one_mirror",
            "k1_of_exactly_two_copies_the_one_that_failed_is_replaced",
        ),
        "The crashed copy stays out of service until its node restarts.",
    ),
    "K2": Case(
        "without mirrors, the persistent message is left",
        _in("crashing_queues", "k2_without_mirrors_what_is_persistent_is_there_after_a_restart"),
        "After a restart of the node: who met a mistake would meet it again.",
    ),
    "K3": Case(
        "of a queue that is not durable, nothing",
        _in("crashing_queues", "k3_of_a_queue_that_is_not_durable_nothing_is_left"),
    ),
    "K4": Case(
        "a queue that crashed for good can be deleted and declared again, and goes down with its node",
        _in(
            "crashing_queues",
            "k4_a_crashed_queue_is_refused_by_name_and_other_queues_work",
            "k4_a_crashed_queue_can_be_deleted_and_declared_again",
        ),
        "For good is at once.",
    ),
    "C1": Case(
        "the producer counts down and wants one kind of answer to everything",
        _in(
            "oracles",
            "c1_a_producer_wants_an_answer_to_everything_and_the_same",
            "c1_a_producer_does_not_wait_for_ever",
        ),
    ),
    "C2": Case(
        "the consumer wants the next number, or one it has seen with the flag",
        _in(
            "oracles",
            "c2_a_consumer_is_content_with_everything_in_its_order",
            "c2_a_consumer_takes_again_what_is_flagged",
            "c2_a_consumer_finds_what_is_missing_and_what_is_there_twice",
        ),
    ),
    "C3": Case(
        "it subscribes again after a cancel that it asked for, and takes no other",
        _in(
            "oracles",
            "c3_a_consumer_that_asked_to_be_told_subscribes_again_on_the_same_channel",
            "c3_a_cancel_that_nobody_asked_for_is_a_mistake",
        ),
    ),
    "C4": Case(
        "20,000 messages, faults 50 and 100 ms after the start",
        _in("oracles", "c4_twenty_thousand_messages_and_a_fault_every_fifty_milliseconds"),
        "The other tests take about 200, published as long as a failover lasts.",
    ),
}

_OTHER_MODE = "pause_if_all_down is refused by name: a quorum has no use for it. Asked of ignore."
_BY_ITSELF = "Healing needs no mode: nobody ever served beside the majority."

PARTITIONS: Mapping[str, Case] = {
    "N1": Case(
        "ignore: both sides go on",
        _in("partitions", "n1_ignore_keeps_the_clients_of_a_minority_and_promises_them_nothing"),
        "A minority keeps its clients and confirms nothing; nobody has to choose a side.",
        is_revived=True,
    ),
    "N2": Case(
        "pause_minority, nodes go down: who is left alone pauses",
        _in("partitions", "n2_who_is_left_alone_pauses_and_resumes"),
        is_revived=True,
    ),
    "N3": Case(
        "pause_minority, links are cut: who is cut off pauses",
        _in("partitions", "n3_who_is_cut_off_pauses_and_resumes"),
        is_revived=True,
    ),
    "N4": Case(
        "pause_if_all_down, nodes go down: who stops, who goes on",
        _in(
            "partitions",
            "n4_of_five_exactly_a_majority_goes_on_when_nodes_die",
            "n4_modes_that_a_quorum_has_no_use_for_are_refused",
        ),
        "pause_if_all_down is refused by name; a majority decides.",
        is_revived=True,
    ),
    "N5": Case(
        "pause_if_all_down, links are cut",
        _in("partitions", "n5_of_five_exactly_a_majority_goes_on_when_links_are_cut"),
        "As N4.",
        is_revived=True,
    ),
    "N6": Case(
        "pause_minority: what was confirmed around a cut survives, mirrored",
        _in("partitions", "n6_no_false_promises_mirrored"),
        is_revived=True,
    ),
    "N7": Case("and without mirrors", _in("partitions", "n7_no_false_promises_unmirrored"), is_revived=True),
    "N8": Case(
        "pause_if_all_down: what was confirmed survives, mirrored",
        _in("partitions", "n8_no_false_promises_mirrored_under_the_other_mode"),
        _OTHER_MODE,
        is_revived=True,
    ),
    "N9": Case(
        "and without mirrors",
        _in("partitions", "n9_no_false_promises_unmirrored_under_the_other_mode"),
        _OTHER_MODE,
        is_revived=True,
    ),
    "N10": Case(
        "autoheal after one, two or three cut links",
        _in("partitions", "n10_one_two_or_three_cut_links_heal_by_themselves"),
        _BY_ITSELF,
        is_revived=True,
    ),
    "N11": Case(
        "autoheal after all nodes have paused",
        _in("partitions", "n11_it_heals_after_every_node_had_to_stop"),
        _BY_ITSELF,
        is_revived=True,
    ),
    "N12": Case(
        "autoheal after six partial partitions",
        _in("partitions", "n12_it_heals_after_six_partial_partitions"),
        _BY_ITSELF,
        is_revived=True,
    ),
    "N13": Case(
        "a stray message of the healing changes nothing",
        _in("partitions", "n13_stray_messages_of_the_past_change_nothing"),
        "Asked of the messages of the metadata group.",
        is_revived=True,
    ),
    "N14": Case(
        "a dead node is not taken for a partial partition",
        _in("partitions", "n14_a_cut_to_a_node_that_is_dead_is_no_partition"),
        is_revived=True,
    ),
    "N15": Case(
        "a partial partition is made a whole one",
        _in("partitions", "n15_a_partial_cut_that_becomes_a_whole_one"),
        "It stays partial until it is whole; then the majority goes on.",
        is_revived=True,
    ),
    "N16": Case(
        "a partial partition under pause_minority ends in a legal state",
        _in(
            "partitions",
            "n16_of_a_partial_cut_one_pauses_at_most",
            "n16_a_master_goes_on_without_a_mirror_that_only_it_cannot_reach",
        ),
        "Legal: all three serve, or the one that both see and one of the two.",
        is_revived=True,
    ),
    "N17": Case(
        "a partial partition under pause_if_all_down",
        _in("partitions", "n17_of_a_partial_cut_nobody_pauses_under_ignore"),
        _OTHER_MODE,
        is_revived=True,
    ),
    "N18": Case(
        "a hundred queues on a node that is cut off are listed after one delay",
        _in("partitions", "n18_a_hundred_questions_to_a_node_that_is_cut_off_cost_one_delay"),
        is_revived=True,
    ),
    "N19": Case(
        "an operator's long request is not taken for silence",
        _in("partitions", "n19_a_long_request_of_an_operator_is_not_taken_for_silence"),
        is_revived=True,
    ),
}


def _also_on_processes(cases: Mapping[str, Case]) -> Mapping[str, Case]:
    return {
        case_id: replace(case, tests=(*case.tests, ON_PROCESSES[case_id])) if case_id in ON_PROCESSES else case
        for case_id, case in cases.items()
    }


#: Suite -> its cases.
SUITES: Mapping[str, Mapping[str, Case]] = {
    "simple_ha": _also_on_processes(SIMPLE),
    "dynamic_ha": _also_on_processes(DYNAMIC),
    "sync_detection, eager_sync, many_node_ha": SYNCHRONISATION,
    "priority_queue (mirror cases)": _also_on_processes(PRIORITY),
    "partitions": _also_on_processes(PARTITIONS),
    "gm, sync throttling, queue_master_location, crashing_queues, the oracles": PARTS,
}
CASES: Mapping[str, Case] = {case_id: case for suite in SUITES.values() for case_id, case in suite.items()}
