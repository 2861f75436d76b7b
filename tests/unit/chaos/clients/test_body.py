"""Bodies that say what they are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.clients.body import BODY_BYTES_MIN, Bodies, Identity
from chaos.record.message_key import ATTEMPTS_MAX, PUBLISHERS_MAX, QUEUES_MAX, SEQUENCE_MAX, MessageKey

KEY = MessageKey(queue=2, publisher=3, sequence=70_000, attempt=1).pack()
LAST_KEY = MessageKey(QUEUES_MAX, PUBLISHERS_MAX, SEQUENCE_MAX, ATTEMPTS_MAX).pack()
#: Where a body holds its key.
KEY_BYTES = range(12, 20)


@pytest.mark.parametrize("body_bytes", [BODY_BYTES_MIN, 256, 1000])
@pytest.mark.parametrize("key", [KEY, LAST_KEY])
def test_a_body_has_its_size_and_says_which_message_it_is(body_bytes: int, key: int) -> None:
    bodies = Bodies("run", body_bytes)
    body = bodies.encode(key)
    assert len(body) == body_bytes
    assert bodies.decode(body) == Identity(key, is_sound=True)


def test_the_form_stays_that_of_recorded_runs() -> None:
    """Magic, tag (BLAKE2b of the run's name), key, filling, checksum."""
    parts = ("574c4231", "fb4b0d4947c68395", "0000000000001122", "0001", "356ea770")
    assert Bodies("run", 26).encode(0x1122).hex() == "".join(parts)


def test_a_body_of_another_run_is_foreign() -> None:
    assert Bodies("this").decode(Bodies("other").encode(KEY)) == Identity(0, is_sound=True)


@pytest.mark.parametrize("body", [b"", b"hello", b"x" * 100, bytes(BODY_BYTES_MIN)])
def test_what_is_no_body_is_foreign_and_unsound(body: bytes) -> None:
    assert Bodies("run").decode(body) == Identity(0, is_sound=False)


@given(position=st.integers(0, 99), difference=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed_and_damage_elsewhere_leaves_the_key(position: int, difference: int) -> None:
    bodies = Bodies("run", 100)
    body = bytearray(bodies.encode(KEY))
    body[position] ^= difference
    key, is_sound = bodies.decode(bytes(body))
    assert not is_sound
    if position in KEY_BYTES:
        assert key != KEY
    elif position > KEY_BYTES.stop:
        assert key == KEY
    else:
        assert key in (0, KEY)


def test_a_shortened_body_is_unsound() -> None:
    bodies = Bodies("run", 100)
    assert bodies.decode(bodies.encode(KEY)[:-1]) == Identity(KEY, is_sound=False)


@pytest.mark.parametrize("key", [0, 1 << 63 | KEY, KEY & ~ATTEMPTS_MAX])
def test_what_cannot_be_a_key_is_none(key: int) -> None:
    bodies = Bodies("run")
    assert bodies.decode(bodies.encode(key)) == Identity(0, is_sound=True)
