"""What every `AdminCaller` promises, as one suite. A test module subclasses it and gives the fixture ``office``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from cluster.transport.admin_caller import AdminCaller
from cluster.transport.admin_port import AdminRefused, ExitCode, QueueSelection, SyncProgress, WrongCookie
from node.errors import ChannelError, WarrenError
from node.ids import QueueId
from tests.support.recording_port import LISTED, RecordingPort

COOKIE = "wörtlich geheim"
TIMEOUT_S = 5.0


@dataclass(slots=True)
class Office:
    """A node that is asked, and who asks it."""

    port: RecordingPort
    address: str
    caller: AdminCaller
    #: A caller of the same kind with another cookie.
    stranger: AdminCaller
    #: Ends the node that is asked.
    close: Callable[[], Awaitable[None]]


class AdminCallerContract:
    """The suite."""

    async def test_a_node_is_asked_for_what_it_knows_itself(self, office: Office) -> None:
        for listing in ("ListQueues", "ListConsumers", "ListConnections", "ListChannels", "ListFlow"):
            answer = await office.caller.listing(office.address, listing, "v", ["name"], timeout_s=TIMEOUT_S)
            assert answer == LISTED
        assert office.port.calls == [
            ("list_queues", "v", ["name"], QueueSelection(local=True)),
            ("list_consumers", "v", ["name"], ("local", True)),
            ("list_connections", ["name"], ("local", True)),
            ("list_channels", ["name"], ("local", True)),
            ("list_flow", ["name"], ("local", True)),
        ]

    async def test_status_and_cancel(self, office: Office) -> None:
        assert await office.caller.status(office.address, timeout_s=TIMEOUT_S) == {"pid": 1}
        assert await office.caller.cluster_status(office.address, timeout_s=TIMEOUT_S) == {"n": [1]}
        await office.caller.cancel_sync_queue(office.address, "v", "q", timeout_s=TIMEOUT_S)
        assert office.port.calls == [("status",), ("cluster_status",), ("cancel_sync_queue", "v", "q")]

    async def test_a_node_is_asked_for_the_copies_that_it_has(self, office: Office) -> None:
        queue_ids = [QueueId(7), QueueId(8), QueueId(9)]
        held = await office.caller.held_copies(office.address, queue_ids, timeout_s=TIMEOUT_S)
        assert held == {7: 12, 9: 0}
        assert office.port.calls == [("held_copies", queue_ids)]

    async def test_synchronisation_streams_its_progress(self, office: Office) -> None:
        assert [each async for each in office.caller.sync_queue(office.address, "v", "q")] == [
            SyncProgress(1, 2, False),
            SyncProgress(2, 2, True),
        ]
        office.port.refusal = AdminRefused(ExitCode.TEMPORARY, "queue 'q' has moved to n3: ask again")
        progress = office.caller.sync_queue(office.address, "v", "q")
        assert await anext(progress) == SyncProgress(1, 2, False)
        with pytest.raises(AdminRefused, match="has moved to n3") as caught:
            await anext(progress)
        assert caught.value.exit_code is ExitCode.TEMPORARY

    @pytest.mark.parametrize(
        ("refusal", "exit_code", "text"),
        [
            (AdminRefused(ExitCode.SOFTWARE, "not_mirrored"), ExitCode.SOFTWARE, "not_mirrored"),
            (ChannelError(404, "no queue 'q'"), ExitCode.DATA, "NOT_FOUND - no queue 'q'"),
        ],
    )
    async def test_a_refusal_keeps_its_exit_code_and_text(
        self, office: Office, refusal: WarrenError, exit_code: ExitCode, text: str
    ) -> None:
        office.port.refusal = refusal
        with pytest.raises(AdminRefused) as caught:
            await office.caller.cancel_sync_queue(office.address, "v", "q", timeout_s=TIMEOUT_S)
        assert (caught.value.exit_code, caught.value.message) == (exit_code, text)

    async def test_a_wrong_cookie_is_refused_before_anything_is_asked(self, office: Office) -> None:
        with pytest.raises(WrongCookie, match="wrong cookie: the one given is not the node's") as caught:
            await office.stranger.status(office.address, timeout_s=TIMEOUT_S)
        assert caught.value.exit_code is ExitCode.UNAVAILABLE
        assert office.port.calls == []

    async def test_a_node_that_is_gone_is_unavailable(self, office: Office) -> None:
        await office.close()
        with pytest.raises(AdminRefused) as caught:
            await office.caller.status(office.address, timeout_s=TIMEOUT_S)
        assert caught.value.exit_code is ExitCode.UNAVAILABLE

    async def test_a_node_that_does_not_answer_is_not_waited_for(self, office: Office) -> None:
        async def hang() -> None:
            await asyncio.Event().wait()

        office.port.status = hang  # type: ignore[attr-defined]
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(AdminRefused, match="Deadline Exceeded") as caught:
            await office.caller.status(office.address, timeout_s=0.2)
        assert caught.value.exit_code is ExitCode.UNAVAILABLE
        assert loop.time() - began < 5
