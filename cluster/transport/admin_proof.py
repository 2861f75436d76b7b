"""How an operator's tool and a node show each other that they know the cluster's secret, without saying it.

Before each request the caller asks for a challenge, which is good for one request::

      caller                                             node
        | Challenge(nonce C)  ------------------------->  |
        | <----------- nonce N, proof of the node         |  is it right? then this is a node of the cluster
        | any request, with N and the proof of the caller |  is it right? then it is carried out

A proof is an HMAC-SHA256 under the secret over both nonces; the caller's is over the method too, so it cannot be used
for another request, or twice. What this cannot do is told in `cluster.transport.handshake`, its counterpart for nodes.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable

NONCE_BYTES = 32
#: Challenges that nobody has answered yet: more than that, and the oldest are forgotten.
CHALLENGES_MAX = 4096
#: After so long an answer comes too late.
CHALLENGE_TIMEOUT_S = 60.0


def node_proof(secret: bytes, caller_nonce: bytes, node_nonce: bytes) -> bytes:
    return hmac.digest(secret, b"warren admin: node\0" + caller_nonce + node_nonce, "sha256")


def caller_proof(secret: bytes, caller_nonce: bytes, node_nonce: bytes, method: str) -> bytes:
    """``method`` as gRPC names it, ``/package.Service/Method``."""
    return hmac.digest(secret, b"warren admin: caller\0" + caller_nonce + node_nonce + method.encode(), "sha256")


class Challenges:
    """What a node has challenged callers with. ``now_s`` goes on, ``random_bytes`` gives what nobody can guess."""

    def __init__(self, secret: bytes, now_s: Callable[[], float], random_bytes: Callable[[int], bytes]) -> None:
        self._secret = secret
        self._now_s = now_s
        self._random_bytes = random_bytes
        #: By the node's nonce, oldest first: the caller's nonce, and until when it may be answered.
        self._open: dict[bytes, tuple[bytes, float]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def challenge(self, caller_nonce: bytes) -> tuple[bytes, bytes]:
        """Nonce and proof of the node. Raises `ValueError` for a nonce of another length."""
        if len(caller_nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes")
        nonce = self._random_bytes(NONCE_BYTES)
        if len(self._open) >= CHALLENGES_MAX:
            del self._open[next(iter(self._open))]
        self._open[nonce] = caller_nonce, self._now_s() + CHALLENGE_TIMEOUT_S
        return nonce, node_proof(self._secret, caller_nonce, nonce)

    def is_proven(self, node_nonce: bytes, proof: bytes, method: str) -> bool:
        """Whether the caller has answered the challenge; it is used up, whatever the answer."""
        caller_nonce, until_s = self._open.pop(node_nonce, (b"", 0.0))
        if not caller_nonce or self._now_s() > until_s:
            return False
        return hmac.compare_digest(proof, caller_proof(self._secret, caller_nonce, node_nonce, method))
