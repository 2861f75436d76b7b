"""The tests that ask the cases which were given up as flaky once of real processes (``tests/integration``)."""

from __future__ import annotations

from collections.abc import Mapping

REAL = "integration/conformance/"

_NAMES: Mapping[str, Mapping[str, str]] = {
    "killed_masters": {
        "S4": "exclusive_queues_are_declared_again_on_another_node",
        "S6": "consuming_survives_sigkill",
        "S11": "confirms_survive_sigkill",
        "S14": "refusals_survive_sigkill",
    },
    "changing_policies": {
        "D20": "whatever_policies_come_the_last_one_holds",
        "D21": "sequences_that_once_failed",
        "P1": "a_mirror_without_the_head_and_with_unacked_messages_is_synchronised",
        "P2": "priorities_above_any_maximum_do_not_hold_a_synchronisation_up",
        "P3": "nor_do_they_with_unacked_messages",
        "P4": "gets_without_acks_leave_a_mirror_standing_while_its_neighbour_restarts",
        "P5": "after_a_synchronisation_and_a_stop_the_order_is_that_of_publishing",
        "P6": "ten_changes_of_the_policy",
        "P7": "ten_changes_of_the_policy_in_quick_succession",
        "P8": "fifteen_changes_that_nobody_waits_for",
    },
    "cut_links": {
        "N2": "who_is_left_alone_pauses_and_resumes",
        "N3": "who_is_cut_off_pauses_and_resumes",
        "N6": "no_false_promises_mirrored",
        "N7": "no_false_promises_unmirrored",
        "N10": "one_two_or_three_cut_links_heal_by_themselves",
        "N11": "it_heals_after_every_node_had_to_stop",
        "N12": "it_heals_after_six_partial_partitions",
        "N13": "stray_messages_of_the_past_change_nothing",
        "N14": "a_cut_to_a_node_that_is_dead_is_no_partition",
        "N15": "a_partial_cut_that_becomes_a_whole_one",
        "N16": "of_a_partial_cut_one_pauses_at_most",
        "N18": "a_hundred_questions_to_a_node_that_is_cut_off_cost_one_delay",
        "N19": "a_long_request_of_an_operator_is_not_taken_for_silence",
    },
    "cut_links_ignored": {
        "N1": "ignore_keeps_the_clients_of_a_minority_and_promises_them_nothing",
        "N8": "no_false_promises_mirrored_under_the_other_mode",
        "N9": "no_false_promises_unmirrored_under_the_other_mode",
        "N17": "of_a_partial_cut_nobody_pauses_under_ignore",
    },
    "cut_links_of_five": {
        "N4": "of_five_exactly_a_majority_goes_on_when_nodes_die",
        "N5": "of_five_exactly_a_majority_goes_on_when_links_are_cut",
    },
}

#: Case -> its test.
ON_PROCESSES: Mapping[str, str] = {
    case_id: f"{REAL}test_{module}.py::test_{case_id.lower()}_{name}"
    for module, names in _NAMES.items()
    for case_id, name in names.items()
}
