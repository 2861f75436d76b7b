"""All cases that are functions of a seed: importing their tests registers them."""

from tests.conformance.ha import (
    test_dynamic_ha,
    test_partitions,
    test_priority_mirrors,
    test_simple_ha,
    test_synchronisation,
)
from tests.conformance.ha.runs import SEEDED

__all__ = ["MODULES", "SEEDED"]

MODULES = (test_simple_ha, test_dynamic_ha, test_synchronisation, test_priority_mirrors, test_partitions)
