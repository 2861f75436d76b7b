"""The number that a message is known by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.record.message_key import (
    ATTEMPTS_MAX,
    PUBLISHERS_MAX,
    QUEUES_MAX,
    SEQUENCE_MAX,
    MessageKey,
    any_attempt,
    unpack,
)

KEYS = st.builds(
    MessageKey,
    st.integers(1, QUEUES_MAX),
    st.integers(1, PUBLISHERS_MAX),
    st.integers(1, SEQUENCE_MAX),
    st.integers(1, ATTEMPTS_MAX),
)


@given(KEYS, KEYS)
def test_keys_are_ordered_as_their_parts(one: MessageKey, other: MessageKey) -> None:
    assert unpack(one.pack()) == one
    assert 0 < one.pack() < 1 << 63
    assert (one.pack() < other.pack()) == (one < other)
    assert (any_attempt(one.pack()) == any_attempt(other.pack())) == (one[:3] == other[:3])


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("value", [0, -1, 1 << 33])
def test_what_does_not_fit_is_refused(part: int, value: int) -> None:
    parts = [1, 1, 1, 1]
    parts[part] = value
    with pytest.raises(OverflowError, match="does not fit"):
        MessageKey(*parts).pack()
