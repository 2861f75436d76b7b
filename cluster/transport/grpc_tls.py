"""Mutual TLS for the cluster port: whoever dials and whoever listens shows a certificate of the same authority."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from node.config import TlsFiles
from node.errors import ConfigError


@dataclass(frozen=True)
class TlsCredentials:
    """Of one process, for what it dials and what it listens on."""

    channel: grpc.ChannelCredentials
    server: grpc.ServerCredentials


def read_tls(files: TlsFiles) -> TlsCredentials:
    """Raises `ConfigError` for a file that cannot be read, or is not PEM. What is in it gRPC checks when it is used."""
    authority = _read(files.authority, b"CERTIFICATE")
    pair = _read(files.key, b"PRIVATE KEY"), _read(files.certificate, b"CERTIFICATE")
    return TlsCredentials(
        grpc.ssl_channel_credentials(authority, *pair),
        grpc.ssl_server_credentials([pair], authority, require_client_auth=True),
    )


def _read(path: Path, what: bytes) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read it for TLS: {error.strerror}") from None
    if what + b"-----" not in content:
        raise ConfigError(f"{path}: there is no {what.decode().lower()} in it; it must be a PEM file")
    return content
