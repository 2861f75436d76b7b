from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaos.workload.message_id import MIN_BODY_BYTES, MessageId, decode_body, encode_body, run_tag

TAG = run_tag("run-1")
messages = st.builds(MessageId, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))


@given(messages, st.integers(MIN_BODY_BYTES, 300))
def test_identity_survives_the_body(message: MessageId, size: int) -> None:
    body = encode_body(TAG, message, size)
    assert len(body) == size
    assert decode_body(TAG, body) == (message, True)


@given(messages, st.integers(0, 99), st.integers(1, 255))
def test_any_changed_byte_breaks_the_checksum(message: MessageId, position: int, change: int) -> None:
    body = bytearray(encode_body(TAG, message, 100))
    body[position] ^= change
    assert decode_body(TAG, bytes(body))[1] is False


def test_message_of_another_run_has_no_identity_here() -> None:
    body = encode_body(run_tag("run-2"), MessageId(1, 2, 3), 64)
    assert decode_body(TAG, body) == (None, True)


def test_body_too_short_to_be_ours() -> None:
    assert decode_body(TAG, b"hello") == (None, False)
