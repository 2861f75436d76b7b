"""Mutual TLS at the cluster port: who shows no certificate of the authority is not heard, neither node nor operator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest
import trustme

from cluster.cli.framework import connect_to_node
from cluster.cli.targets import Target
from cluster.real_world.world import real_world
from cluster.transport.admin_client import AdminClient, AdminError
from cluster.transport.admin_port import AdminRefused
from cluster.transport.grpc_admin_caller import GrpcAdminCaller
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.transport.grpc_tls import TlsCredentials, read_tls
from cluster.transport.mesh import Mesh
from cluster.transport.mesh_port import MeshTiming
from node.config import TlsFiles, build_config, parse_settings
from node.errors import ConfigError
from node.ids import Incarnation, NodeName
from tests.support.mesh_listener import Listener
from tests.support.ports import free_port
from tests.support.recording_port import RecordingPort
from tests.support.waiting import eventually_async

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

N1, N2 = NodeName("n1"), NodeName("n2")
COOKIE = "correct horse battery"
KEYS = ("cacertfile", "certfile", "keyfile")
TIMING = MeshTiming(backoff_min_ms=5, backoff_max_ms=50, handshake_timeout_ms=1000)
Enrol = Callable[..., TlsFiles]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def enrol(authority: trustme.CA, tmp_path: Path) -> Enrol:
    """Files of somebody whom the authority knows, and who is to be found on loopback."""

    def write(name: str, authority: trustme.CA = authority) -> TlsFiles:
        paths = TlsFiles(*(tmp_path / f"{name}.{kind}" for kind in ("ca", "crt", "key")))
        certificate = authority.issue_cert("127.0.0.1")
        authority.cert_pem.write_to_path(str(paths.authority))
        certificate.cert_chain_pems[0].write_to_path(str(paths.certificate))
        certificate.private_key_pem.write_to_path(str(paths.key))
        return paths

    return write


def mesh_of(node: NodeName, addresses: dict[NodeName, str], listener: Listener, tls: TlsCredentials | None) -> Mesh:
    return Mesh(
        node,
        Incarnation(1),
        addresses[node],
        addresses,
        listener,
        GrpcCarrier(tls),
        random_bytes=Random(node).randbytes,
        cookie=COOKIE,
        timing=TIMING,
    )


@pytest.fixture
def addresses() -> dict[NodeName, str]:
    return {name: f"127.0.0.1:{free_port()}" for name in (N1, N2)}


async def test_nodes_with_certificates_of_one_authority_speak(enrol: Enrol, addresses: dict[NodeName, str]) -> None:
    listeners = {name: Listener() for name in addresses}
    meshes = [mesh_of(name, addresses, listeners[name], read_tls(enrol(name))) for name in addresses]
    for mesh in meshes:
        await mesh.start()
    await eventually_async(lambda: all(each.count("up") for each in listeners.values()), "the link is up")
    for mesh in meshes:
        await mesh.stop()


@pytest.mark.parametrize("stranger", ["plain", "another authority"])
async def test_a_node_that_knows_the_cookie_only_is_not_heard(
    enrol: Enrol, addresses: dict[NodeName, str], stranger: str, caplog: pytest.LogCaptureFixture
) -> None:
    tls = None if stranger == "plain" else read_tls(enrol("n2", trustme.CA()))
    listeners = {name: Listener() for name in addresses}
    meshes = [
        mesh_of(N1, addresses, listeners[N1], read_tls(enrol("n1"))),
        mesh_of(N2, addresses, listeners[N2], tls),
    ]
    for mesh in meshes:
        await mesh.start()
    await eventually_async(lambda: "no link to n2" in caplog.text, "n1 tries in vain")
    for mesh in meshes:
        await mesh.stop()
    assert all(listener.count("up") == 0 for listener in listeners.values())


async def test_operators_and_other_nodes_ask_over_tls_and_not_without(
    enrol: Enrol, addresses: dict[NodeName, str]
) -> None:
    port, credentials = RecordingPort(), read_tls(enrol("n1"))
    mesh = mesh_of(N1, addresses, Listener(), credentials)
    await mesh.start(port)

    def ask(tls: TlsCredentials | None) -> object:
        channel = None if tls is None else tls.channel
        with AdminClient(addresses[N1], COOKIE, timeout_s=5, channel_credentials=channel) as client:
            return client.status()

    assert await asyncio.to_thread(ask, read_tls(enrol("operator"))) == {"pid": 1}
    with pytest.raises(AdminError) as caught:
        await asyncio.to_thread(ask, None)
    assert caught.value.exit_code == 69
    caller = GrpcAdminCaller(COOKIE, credentials.channel)
    assert await caller.status(addresses[N1], timeout_s=5) == {"pid": 1}
    plain = GrpcAdminCaller(COOKIE)
    with pytest.raises(AdminRefused):
        await plain.status(addresses[N1], timeout_s=5)
    assert port.calls == [("status",), ("status",)]
    await caller.close()
    await plain.close()
    await mesh.stop()


def test_files_that_cannot_be_used_are_named(enrol: Enrol, tmp_path: Path) -> None:
    files = enrol("n1")
    with pytest.raises(ConfigError, match="gone: cannot read it for TLS: No such file"):
        read_tls(files._replace(key=tmp_path / "gone"))
    with pytest.raises(ConfigError, match="there is no private key in it"):
        read_tls(files._replace(key=files.certificate))


def test_a_key_of_another_certificate_is_told_from_an_address_that_is_taken(enrol: Enrol, tmp_path: Path) -> None:
    files, others = enrol("n1"), enrol("n2")
    with pytest.raises(ConfigError, match="are no certificate and its key"):
        read_tls(files._replace(key=others.key))
    cut_off = tmp_path / "ca.pem"
    cut_off.write_bytes(files.authority.read_bytes()[:200])
    with pytest.raises(ConfigError, match=f"{cut_off}: no certificate of an authority can be read"):
        read_tls(files._replace(authority=cut_off))


def test_a_certificate_that_has_expired_is_named_by_whoever_has_it(
    enrol: Enrol, authority: trustme.CA, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """gRPC tells only the other side; this one would see that sockets are closed."""
    files = enrol("n1")
    past = datetime.now(UTC) - timedelta(days=2)
    expired = authority.issue_cert("127.0.0.1", not_before=past, not_after=past + timedelta(days=1))
    expired.cert_chain_pems[0].write_to_path(str(files.certificate))
    expired.private_key_pem.write_to_path(str(files.key))
    connect_to_node(Target("n1", "127.0.0.1:1", COOKIE, files), 1)
    assert "n1.crt: certificate has expired, by the clock of this machine" in capsys.readouterr().err
    lines = [f"cluster.ssl_options.{key} = {path}" for key, path in zip(KEYS, files, strict=True)]
    real_world(build_config(parse_settings("\n".join(lines), "n1.conf"))).probe.close()
    assert "n1.crt: certificate has expired" in caplog.text
