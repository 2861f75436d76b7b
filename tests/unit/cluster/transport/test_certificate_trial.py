"""Certificates of which a node says itself that they do not hold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from cluster.transport.certificate_trial import time_problem
from node.config import TlsFiles

DAY = timedelta(days=1)
NOW = datetime.now(UTC)


def files_of(directory: Path, authority: trustme.CA, begin: datetime, end: datetime) -> TlsFiles:
    files = TlsFiles(
        authority=directory / "authority.pem", certificate=directory / "node.pem", key=directory / "node.key"
    )
    pair = authority.issue_cert("n1", not_before=begin, not_after=end)
    authority.cert_pem.write_to_path(str(files.authority))
    pair.cert_chain_pems[0].write_to_path(str(files.certificate))
    pair.private_key_pem.write_to_path(str(files.key))
    return files


@pytest.mark.parametrize(
    ("begin", "end", "problem"),
    [
        (NOW - DAY, NOW + DAY, ""),
        (NOW - 2 * DAY, NOW - DAY, "certificate has expired"),
        (NOW + DAY, NOW + 2 * DAY, "certificate is not yet valid"),
    ],
)
def test_a_certificate_holds_from_its_beginning_to_its_end(
    tmp_path: Path, begin: datetime, end: datetime, problem: str
) -> None:
    assert time_problem(files_of(tmp_path, trustme.CA(), begin, end)) == problem


def test_an_authority_that_only_the_peer_trusts_is_no_problem_of_the_time(tmp_path: Path) -> None:
    files = files_of(tmp_path, trustme.CA(), NOW - DAY, NOW + DAY)
    trustme.CA().cert_pem.write_to_path(str(files.authority))
    assert time_problem(files) == ""


def test_of_a_key_that_no_handshake_takes_nothing_is_said(tmp_path: Path) -> None:
    """A node that speaks with no other starts with it."""
    key = ec.generate_private_key(ec.SECP256K1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "n1")])
    draft = x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - DAY, NOW + DAY)
    pem = draft.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    files = TlsFiles(authority=tmp_path / "authority.pem", certificate=tmp_path / "node.pem", key=tmp_path / "node.key")
    files.authority.write_bytes(pem)
    files.certificate.write_bytes(pem)
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    assert time_problem(files) == ""
