"""Whether a certificate holds today: this process shakes hands with itself, in memory.

gRPC refuses one that does not hold, and tells only whoever is shown it. Nothing but the time is judged here: the peer
may trust other authorities than this process does.
"""

from __future__ import annotations

import ssl

from node.config import TlsFiles

#: `X509_V_ERR_CERT_NOT_YET_VALID` and `X509_V_ERR_CERT_HAS_EXPIRED` of OpenSSL.
_TIME_ERRORS = (9, 10)
#: Turns of a handshake; TLS 1.3 takes two.
_TURNS_MAX = 10


def time_problem(files: TlsFiles) -> str:
    """Why the certificate (or that of its authority) does not hold today; empty if it does, or if that cannot be told:
    its authority is not to be found, or OpenSSL speaks with nobody who has such a key. Raises `ssl.SSLError` or
    `OSError` for files that cannot be used."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(files.certificate, files.key, password="")
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client_context.load_verify_locations(files.authority)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    try:
        _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        return error.verify_message if error.verify_code in _TIME_ERRORS else ""
    except ssl.SSLError:
        return ""
    return ""


def _shake_hands(client: ssl.SSLObject, server: ssl.SSLObject) -> None:
    """Raises `ssl.SSLCertVerificationError` if the client does not accept what the server shows, another `ssl.SSLError`
    if it comes to no handshake at all."""
    for _ in range(_TURNS_MAX):
        waiting = 0
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting += 1
        if not waiting:
            return
