"""Mutual TLS for the cluster port: whoever dials and whoever listens shows a certificate of the same authority."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from cluster.transport.certificate_trial import time_problem
from node.config import TlsFiles
from node.errors import ConfigError


@dataclass(frozen=True)
class TlsCredentials:
    """Of one process, for what it dials and what it listens on."""

    channel: grpc.ChannelCredentials
    server: grpc.ServerCredentials
    #: The certificate and why it does not hold today; empty if it does. It is not refused: the clock may be wrong.
    time_problem: str


def read_tls(files: TlsFiles) -> TlsCredentials:
    """Raises `ConfigError` for a file that cannot be read, or holds nothing that can be used."""
    authority = _read(files.authority, b"CERTIFICATE")
    pair = _read(files.key, b"PRIVATE KEY"), _read(files.certificate, b"CERTIFICATE")
    _try_out(files)
    problem = time_problem(files)
    return TlsCredentials(
        grpc.ssl_channel_credentials(authority, *pair),
        grpc.ssl_server_credentials([pair], authority, require_client_auth=True),
        f"{files.certificate}: {problem}" if problem else "",
    )


def _try_out(files: TlsFiles) -> None:
    """gRPC does not say what it dislikes, nor when."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(files.authority)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{files.authority}: no certificate of an authority can be read from it: {error}") from None
    try:
        context.load_cert_chain(files.certificate, files.key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{files.certificate} and {files.key} are no certificate and its key, without a pass phrase: {error}"
        ) from None


def _read(path: Path, what: bytes) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it for TLS: {error.strerror}") from None
    if what + b"-----" not in content:
        raise ConfigError(f"{path}: there is no {what.decode().lower()} in it; it must be a PEM file")
    return content
