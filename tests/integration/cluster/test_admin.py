"""The admin service over a real socket: every request reaches the port as it was meant, every refusal comes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar

import grpc.aio
import pytest

from cluster.metadata.errors import NoSuchUserError, NoSuchVhostError, UserExistsError
from cluster.metadata.records import PolicyRecord
from cluster.raft.core import ProposalRefusedError
from cluster.transport.admin_client import AdminClient, AdminError
from cluster.transport.admin_codec import CHALLENGE_METADATA_KEY, PROOF_METADATA_KEY
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress
from cluster.transport.admin_proof import NONCE_BYTES
from cluster.transport.admin_server import AdminService
from cluster.transport.carrier import AdminEndpoint, IncomingStream, StreamKind
from cluster.transport.grpc_admin_caller import GrpcAdminCaller
from cluster.transport.grpc_carrier import GrpcCarrier
from cluster.wire import admin_pb2
from cluster.wire.admin_pb2_grpc import AdminStub
from node.alarms.limits import DiskFreeLimit, MemoryWatermark
from node.errors import ChannelError
from tests.support.admin_caller_contract import COOKIE, AdminCallerContract, Office
from tests.support.recording_port import LISTED, RecordingPort
from tests.support.relays import Relays

pytestmark = pytest.mark.integration

POLICY = PolicyRecord("/", "ha", "^q", {"ha-mode": "exactly", "ha-params": 2}, 3, "queues")
HALF, KILOBYTE = MemoryWatermark(0.5), MemoryWatermark(absolute_bytes=1000)
ROOM, TWICE = DiskFreeLimit(0), DiskFreeLimit(relative=2.0)

_T = TypeVar("_T")


@pytest.fixture
async def served() -> AsyncIterator[tuple[RecordingPort, str]]:
    port = RecordingPort()
    server = grpc.aio.server()
    AdminService(port, COOKIE).add_to_server(server)
    number = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port, f"127.0.0.1:{number}"
    await server.stop(grace=0)


async def ask(address: str, question: Callable[[AdminClient], _T], cookie: str = COOKIE) -> _T:
    """Put a question from another thread, as the blocking client is used outside the node."""

    def put() -> _T:
        with AdminClient(address, cookie, timeout_s=5) as client:
            return question(client)

    return await asyncio.to_thread(put)


QUESTIONS: list[tuple[Callable[[AdminClient], Any], Sequence[Any], Any]] = [
    (lambda c: c.set_policy(POLICY), ("set_policy", POLICY), None),
    (lambda c: c.clear_policy("/", "ha"), ("clear_policy", "/", "ha"), None),
    (lambda c: c.list_policies("v", ["name"]), ("list_policies", "v", ["name"]), LISTED),
    (
        lambda c: c.list_queues("v", ["name"], QueueSelection(local=True)),
        ("list_queues", "v", ["name"], QueueSelection(local=True)),
        LISTED,
    ),
    (lambda c: c.cancel_sync_queue("/", "q"), ("cancel_sync_queue", "/", "q"), None),
    (lambda c: c.force_promote("v", "q", "n2"), ("force_promote", "v", "q", "n2", ("may_be_empty", False)), None),
    (
        lambda c: c.force_promote("v", "q", "n2", may_be_empty=True),
        ("force_promote", "v", "q", "n2", ("may_be_empty", True)),
        None,
    ),
    (lambda c: c.purge_queue("/", "q"), ("purge_queue", "/", "q"), 7),
    (
        lambda c: c.delete_queue("/", "q", if_empty=True),
        ("delete_queue", "/", "q", ("if_empty", True), ("if_unused", False)),
        9,
    ),
    (lambda c: c.cluster_status(), ("cluster_status",), {"n": [1]}),
    (
        lambda c: c.forget_cluster_node("n3", is_confirmed=True),
        ("forget_cluster_node", "n3", ("is_confirmed", True)),
        {"deleted_queues": []},
    ),
    (lambda c: c.status(), ("status",), {"pid": 1}),
    (lambda c: c.shutdown(), ("shutdown",), None),
    (lambda c: c.set_memory_watermark(HALF), ("set_memory_watermark", HALF), None),
    (lambda c: c.set_memory_watermark(KILOBYTE), ("set_memory_watermark", KILOBYTE), None),
    (lambda c: c.set_disk_free_limit(ROOM), ("set_disk_free_limit", ROOM), None),
    (lambda c: c.set_disk_free_limit(TWICE), ("set_disk_free_limit", TWICE), None),
    (lambda c: c.list_connections(["user"]), ("list_connections", ["user"], ("local", False)), LISTED),
    (lambda c: c.list_channels(), ("list_channels", [], ("local", False)), LISTED),
    (lambda c: c.list_flow(["chain"]), ("list_flow", ["chain"], ("local", False)), LISTED),
    (lambda c: c.list_consumers("v"), ("list_consumers", "v", [], ("local", False)), LISTED),
    (lambda c: c.list_exchanges("v"), ("list_exchanges", "v", []), LISTED),
    (lambda c: c.list_bindings("v"), ("list_bindings", "v", []), LISTED),
    (lambda c: c.list_vhosts(), ("list_vhosts", []), LISTED),
    (lambda c: c.list_users(), ("list_users", []), LISTED),
    (lambda c: c.list_permissions("v"), ("list_permissions", "v", []), LISTED),
    (lambda c: c.add_user("u", "p", ["administrator"]), ("add_user", "u", "p", ["administrator"]), None),
    (lambda c: c.delete_user("u"), ("delete_user", "u"), None),
    (lambda c: c.change_password("u", "p"), ("change_password", "u", "p"), None),
    (lambda c: c.set_user_tags("u", ["a", "b"]), ("set_user_tags", "u", ["a", "b"]), None),
    (lambda c: c.set_permissions("v", "u", "c", "w", "r"), ("set_permissions", "v", "u", "c", "w", "r"), None),
    (lambda c: c.clear_permissions("v", "u"), ("clear_permissions", "v", "u"), None),
    (lambda c: c.add_vhost("v"), ("add_vhost", "v"), None),
    (lambda c: c.delete_vhost("v"), ("delete_vhost", "v"), None),
]


async def test_every_request_arrives_and_is_answered(served: tuple[RecordingPort, str]) -> None:
    port, address = served

    def ask_all(client: AdminClient) -> list[Any]:
        return [question(client) for question, _, _ in QUESTIONS]

    answers = await ask(address, ask_all)
    assert port.calls == [expected for _, expected, _ in QUESTIONS]
    assert answers == [answer for _, _, answer in QUESTIONS]


@pytest.mark.parametrize(
    "question",
    [
        lambda c: c.set_memory_watermark(MemoryWatermark(1.5)),
        lambda c: c.set_memory_watermark(MemoryWatermark(float("nan"))),
        lambda c: c.set_disk_free_limit(DiskFreeLimit(relative=-1.0)),
    ],
)
async def test_limits_that_make_no_sense_do_not_reach_the_node(
    served: tuple[RecordingPort, str], question: Callable[[AdminClient], None]
) -> None:
    port, address = served
    with pytest.raises(AdminError) as caught:
        await ask(address, question)
    assert caught.value.exit_code == 64
    assert port.calls == []


@pytest.mark.parametrize("definition", ["", "[]", '{"ha-mode":' + "[" * 100_000, "{" + '"a":{' * 20 + "}" * 21])
async def test_a_definition_that_no_policy_can_have_does_not_reach_the_node(
    served: tuple[RecordingPort, str], definition: str, caplog: pytest.LogCaptureFixture
) -> None:
    port, address = served
    policy = admin_pb2.Policy(vhost="/", name="p", pattern="^", definition=definition)
    with pytest.raises(AdminError, match=r"^JSON decoding error\. Reason: ") as caught:
        await ask(address, lambda client: client._call(client._stub.SetPolicy, policy))
    assert caught.value.exit_code == 65
    assert port.calls == []
    assert caplog.records == []


async def test_synchronisation_streams_its_progress(served: tuple[RecordingPort, str]) -> None:
    port, address = served
    assert await ask(address, lambda c: list(c.sync_queue("/", "q"))) == [
        SyncProgress(1, 2, False),
        SyncProgress(2, 2, True),
    ]
    port.refusal = AdminRefused(ExitCode.SOFTWARE, "not_mirrored")
    with pytest.raises(AdminError, match="not_mirrored") as caught:
        await ask(address, lambda c: list(c.sync_queue("/", "q")))
    assert caught.value.exit_code == 70


@pytest.mark.parametrize(
    ("refusal", "exit_code", "text"),
    [
        (AdminRefused(ExitCode.NO_USER, 'User "u" does not exist'), 67, 'User "u" does not exist'),
        (AdminRefused(ExitCode.DATA, "Virtual host 'x' does not exist"), 65, "Virtual host 'x' does not exist"),
        (ChannelError(404, "no queue 'q' in vhost '/'"), 65, "NOT_FOUND - no queue 'q' in vhost '/'"),
        (NoSuchUserError("u"), 67, 'User "u" does not exist'),
        (NoSuchVhostError("x"), 65, "Virtual host 'x' does not exist"),
        (UserExistsError("u"), 70, 'User "u" already exists'),
        (ProposalRefusedError("no leader"), 75, "no leader"),
        (TimeoutError("no leader"), 75, "the cluster did not answer in time: no leader"),
    ],
)
async def test_a_refusal_keeps_its_exit_code_and_text(
    served: tuple[RecordingPort, str], refusal: Exception, exit_code: int, text: str
) -> None:
    port, address = served
    port.refusal = refusal
    with pytest.raises(AdminError) as caught:
        await ask(address, lambda c: c.delete_user("u"))
    assert (caught.value.exit_code, caught.value.message) == (exit_code, text)


async def test_a_wrong_cookie_is_refused_before_the_port_is_asked(served: tuple[RecordingPort, str]) -> None:
    port, address = served
    for cookie, text in (("guess", "wrong cookie"), ("", "no cookie was given")):
        with pytest.raises(AdminError, match=text) as caught:
            await ask(address, lambda c: c.shutdown(), cookie=cookie)
        assert caught.value.exit_code == 69
    assert port.calls == []


@pytest.mark.parametrize("method", [method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods])
@pytest.mark.parametrize("has_guessed", [False, True])
async def test_nothing_but_a_challenge_is_answered_without_a_proof(
    served: tuple[RecordingPort, str], method: str, has_guessed: bool
) -> None:
    port, address = served
    async with grpc.aio.insecure_channel(address) as channel:
        stub = AdminStub(channel)
        said = await stub.Challenge(admin_pb2.ChallengeRequest(nonce=bytes(NONCE_BYTES)))
        if method == "Challenge":
            assert said.nonce
            return
        guess = ((CHALLENGE_METADATA_KEY, said.nonce), (PROOF_METADATA_KEY, bytes(32)))
        described = admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods_by_name[method]
        request = getattr(admin_pb2, described.input_type.name)()
        call = getattr(stub, method)(request, metadata=guess if has_guessed else ())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (anext(aiter(call)) if described.server_streaming else call)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert ("wrong cookie" if has_guessed else "asks for a proof") in (caught.value.details() or "")
    assert port.calls == []


async def test_the_secret_is_not_said_to_whoever_listens_there() -> None:
    """An impostor takes what comes, and claims to know the secret."""
    heard: list[bytes] = []

    class Impostor(grpc.GenericRpcHandler):  # type: ignore[type-arg]
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            heard.append(repr((handler_call_details.method, handler_call_details.invocation_metadata)).encode())

            async def take(request: bytes, _context: object) -> bytes:
                heard.append(request)
                return admin_pb2.ChallengeReply(nonce=request[2:], proof=request[2:]).SerializeToString()

            return grpc.unary_unary_rpc_method_handler(take)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Impostor(),))
    number = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    address = f"127.0.0.1:{number}"
    with pytest.raises(AdminError, match="wrong cookie"):
        await ask(address, lambda c: c.add_user("u", "password"))
    caller = GrpcAdminCaller(COOKIE)
    with pytest.raises(AdminRefused, match="wrong cookie"):
        await caller.status(address, timeout_s=5)
    await caller.close()
    await server.stop(grace=None)
    assert len(heard) == 4, "two challenges, each by method and request"
    assert all(COOKIE.encode() not in each and b"password" not in each for each in heard)


async def test_a_node_of_an_older_release_is_told_by_its_silence() -> None:
    server = grpc.aio.server()
    number = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with pytest.raises(AdminError, match="is a node of an older release") as caught:
        await ask(f"127.0.0.1:{number}", lambda c: c.status())
    assert caught.value.exit_code == 69
    await server.stop(grace=None)


async def test_no_node_is_exit_code_69() -> None:
    server = grpc.aio.server()
    number = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(grace=None)
    with pytest.raises(AdminError, match="unable to connect") as caught:
        await ask(f"127.0.0.1:{number}", lambda c: c.status())
    assert caught.value.exit_code == 69


def test_a_table_reads_as_dicts() -> None:
    rows: Sequence[Mapping[str, Any]] = LISTED.as_dicts()
    assert rows[0] == {"name": "q", "messages": 3, "arguments": {"x-max-length": 5}}


@asynccontextmanager
async def node_that_vanishes() -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Where it is, and what has it vanish: it begins a synchronisation, and never ends it."""
    carrier, port = GrpcCarrier(), RecordingPort()

    async def no_streams(kind: StreamKind, stream: IncomingStream) -> None: ...

    async def begin(vhost: str, name: str) -> AsyncIterator[SyncProgress]:
        yield SyncProgress(1, 2, is_finished=False)
        await asyncio.Event().wait()

    port.sync_queue = begin  # type: ignore[method-assign]
    number = await carrier.serve("127.0.0.1:0", no_streams, silence_timeout_ms=6000, admin=AdminEndpoint(port, COOKIE))
    relays = Relays({"n1": "127.0.0.1:1", "n2": f"127.0.0.1:{number}"})
    yield relays.address("n1", "n2"), lambda: relays.cut("n1", "n2")
    relays.close()
    await carrier.stop()


async def test_who_asks_a_node_that_vanishes_is_told_in_bounded_time() -> None:
    """A synchronisation has no time limit, and a machine without power hangs up on nobody."""
    async with node_that_vanishes() as (address, vanish):
        caller = GrpcAdminCaller(COOKIE, silence_timeout_ms=300)
        reports = caller.sync_queue(address, "/", "q")
        assert await anext(reports) == SyncProgress(1, 2, is_finished=False)
        vanish()
        with pytest.raises(AdminRefused) as caught:
            await anext(reports)
        assert caught.value.exit_code is ExitCode.UNAVAILABLE
        await caller.close()


async def test_an_operator_whose_node_begins_again_meanwhile_is_told_so() -> None:
    """`await_startup` asks again then, as it does when nobody listens."""
    asked = asyncio.Event()

    class HangingPort(RecordingPort):
        async def status(self) -> Any:
            asked.set()
            await asyncio.Event().wait()

    async def no_streams(_kind: StreamKind, _stream: IncomingStream) -> None: ...

    carrier, admin = GrpcCarrier(), AdminEndpoint(HangingPort(), COOKIE)
    number = await carrier.serve("127.0.0.1:0", no_streams, silence_timeout_ms=6000, admin=admin)
    with AdminClient(f"127.0.0.1:{number}", COOKIE) as client:
        asking = asyncio.create_task(asyncio.to_thread(client.status))
        await asked.wait()
        await carrier.stop()
        with pytest.raises(AdminError, match="stopped, or began again, before it had answered") as caught:
            await asking
    assert caught.value.exit_code == ExitCode.UNAVAILABLE


@pytest.mark.parametrize("details", ["CANCELLED", "Cancelling all calls", "Internal error from Core"])
def test_however_grpc_calls_that_it_is_no_failure_of_the_node(details: str) -> None:
    call: Any = SimpleNamespace(
        trailing_metadata=tuple, code=lambda: grpc.StatusCode.CANCELLED, details=lambda: details
    )
    with AdminClient("127.0.0.1:1", COOKIE) as client:
        assert client._admin_error(call).exit_code == ExitCode.UNAVAILABLE


async def test_a_synchronisation_that_takes_longer_than_one_waits_goes_on() -> None:
    async with node_that_vanishes() as (address, _):
        with AdminClient(address, COOKIE) as client:
            reports = client.sync_queue("/", "q", timeout_s=0.5)
            with pytest.raises(AdminError, match="is not synchronised yet, which goes on") as caught:
                await asyncio.to_thread(list, reports)
            assert caught.value.exit_code == ExitCode.TEMPORARY


async def test_so_is_an_operator() -> None:
    async with node_that_vanishes() as (address, vanish):
        with AdminClient(address, COOKIE, silence_timeout_ms=300) as client:
            reports = client.sync_queue("/", "q")
            assert await asyncio.to_thread(next, reports) == SyncProgress(1, 2, is_finished=False)
            vanish()
            with pytest.raises(AdminError) as caught:
                await asyncio.to_thread(next, reports)
            assert caught.value.exit_code == ExitCode.UNAVAILABLE


class TestGrpcAdminCaller(AdminCallerContract):
    """How the nodes ask each other."""

    @pytest.fixture
    async def office(self) -> AsyncIterator[Office]:
        carrier, port = GrpcCarrier(), RecordingPort()

        async def no_streams(kind: StreamKind, stream: IncomingStream) -> None: ...

        number = await carrier.serve(
            "127.0.0.1:0", no_streams, silence_timeout_ms=6000, admin=AdminEndpoint(port, COOKIE)
        )
        caller, stranger = GrpcAdminCaller(COOKIE), GrpcAdminCaller("guess")
        yield Office(port, f"127.0.0.1:{number}", caller, stranger, carrier.stop)
        await caller.close()
        await stranger.close()
        await carrier.stop()
