"""Which policies are refused, and with which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.metadata.records import PolicyRecord
from cluster.policy.validation import CHECKS, PolicyError, usable_setting, validate_definition, validate_policy
from node.amqp.values import Timestamp
from node.queues.options import exchange_settings, queue_settings
from node.topology.arguments import TIMER_MS_MAX

POLICY = PolicyRecord("/", "p", "^", {"ha-mode": "all"}, 0, "all")


@pytest.mark.parametrize(
    "definition",
    [
        {"ha-mode": "all"},
        {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic", "ha-sync-batch-size": 1},
        {"ha-mode": "nodes", "ha-params": ["n1", "n2"], "ha-promote-on-failure": "when-synced"},
        {"ha-mode": "all", "ha-promote-on-shutdown": "always"},
        {"message-ttl": 0, "expires": 1, "max-length": 0, "max-length-bytes": 0},
        {"queue-mode": "lazy", "queue-version": 2, "overflow": "reject-publish-dlx"},
        {"dead-letter-exchange": "", "dead-letter-routing-key": "k", "alternate-exchange": "ae"},
        {"queue-master-locator": "min-masters"},
    ],
)
def test_good_definitions_pass(definition: dict[str, Any]) -> None:
    validate_definition(definition)


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({}, "Definition cannot be empty"),
        (
            {"max-lenght": 1},
            '[<<"max-lenght">>] are not recognised policy settings; there are: alternate-exchange, ha-mode, ha-par',
        ),
        ({"ha-param": 1}, "ha-mode, ha-params, ha-promote-on-failure"),
        ({"a": 1, "b": 2}, '[<<"a">>,<<"b">>] are not recognised policy settings'),
        ({"ha-mode": "some"}, '<<"some">> is not a valid ha-mode value; there are: all, exactly, nodes'),
        ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "exactly", "ha-params": "2"}, 'ha-mode="exactly" takes an integer, <<"2">> given'),
        ({"ha-mode": "exactly", "ha-params": 0}, 'ha-mode="exactly" takes an integer, 0 given'),
        ({"ha-mode": "exactly", "ha-params": True}, 'ha-mode="exactly" takes an integer, True given'),
        (
            {"ha-mode": "exactly"},
            'ha-mode="exactly" takes an integer, none given: set ha-params to a number of copies, 1 or more',
        ),
        (
            {"ha-mode": "nodes"},
            'ha-mode="nodes" takes a list of strings, none given: set ha-params to a list of names of nodes',
        ),
        ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters: leave ha-params out'),
        ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be nonempty'),
        ({"ha-mode": "nodes", "ha-params": [1]}, 'ha-mode="nodes" takes a list of strings, [1] given'),
        ({"ha-params": 2}, "ha-mode must be specified to specify ha-params"),
        ({"ha-sync-mode": "manual"}, "ha-mode must be specified to specify ha-params"),
        ({"ha-promote-on-failure": "always"}, "ha-mode must be specified to specify ha-params"),
        ({"ha-mode": "all", "ha-sync-mode": "auto"}, 'ha-sync-mode must be "manual" or "automatic", got <<"auto">>'),
        ({"ha-mode": "all", "ha-sync-batch-size": 0}, "ha-sync-batch-size takes an integer greater than 0"),
        (
            {"ha-mode": "all", "ha-promote-on-shutdown": "never"},
            'ha-promote-on-shutdown must be "always" or "when-synced", got <<"never">>',
        ),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"message-ttl": 2**40}, "1099511627776 is not a valid message TTL: value 1099511627776 is above the maximum"),
        ({"expires": 2**40}, "1099511627776 is not a valid queue expiry: value 1099511627776 is above the maximum"),
        ({"max-length": "5"}, '<<"5">> is not a valid maximum length'),
        ({"max-length": True}, "True is not a valid maximum length"),
        ({"queue-version": 3}, "3 is not a valid queue-version value"),
        ({"queue-mode": "eager"}, '<<"eager">> is not a valid queue-mode value'),
        ({"dead-letter-exchange": 5}, "5 is not a valid dead letter exchange name"),
    ],
)
def test_bad_definitions_are_refused_in_rabbitmqs_words(definition: dict[str, Any], text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        validate_definition(definition)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (replace(POLICY, pattern="("), "pattern should be regular expression"),
        (replace(POLICY, pattern="a" * 2000), "longer than 1024"),
        (replace(POLICY, apply_to="streams"), "apply-to should be one of"),
        (replace(POLICY, name=""), "a policy needs a name"),
        (replace(POLICY, priority=True), "priority should be a number"),
    ],
)
def test_bad_policies_are_refused(policy: PolicyRecord, text: str) -> None:
    validate_policy(POLICY)
    with pytest.raises(PolicyError, match=text):
        validate_policy(policy)


@pytest.mark.parametrize(("value", "used"), [(5, 5), (0, 16), ("5", 16), (None, 16), (5.0, 16), ([], 16)])
def test_a_setting_that_cannot_be_used_counts_as_absent(value: Any, used: int) -> None:
    assert usable_setting({"ha-sync-batch-size": value}, "ha-sync-batch-size", 16) == used
    assert usable_setting({}, "ha-sync-batch-size", 16) == 16


VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 2, 3, TIMER_MS_MAX, TIMER_MS_MAX + 1, 2**63 - 1, 1.0, True, None, "", "5", b"k", [], {}, Timestamp(1)),
    *("default", "lazy", "drop-head", "reject-publish", "reject-publish-dlx", "client-local", "min-masters", "random"),
)


@pytest.mark.parametrize("setting", [key for key in CHECKS if not key.startswith("ha-")])
def test_a_setting_that_is_accepted_is_used(setting: str) -> None:
    """What a policy may say and what counts when a queue or an exchange asks for it are the same."""
    settings = exchange_settings if setting == "alternate-exchange" else queue_settings
    for value in VALUES:
        is_used = settings({}, {setting: value}) == {setting: value}
        assert (CHECKS[setting](value) is None) == is_used, value
