"""A visit that lasts ends with what let it in: by the clock, and through the true service when a share is revoked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.core.signing import PortGrant, PortRole
from cubicle.ports import running_visits
from cubicle.ports.running_visits import RunningVisits, VisitOver
from tests.ports.conftest import CHAT, Ground, ground_of

pytestmark = pytest.mark.anyio


class Time:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


async def endless() -> None:
    await asyncio.Event().wait()


async def test_work_that_ends_in_time_is_not_disturbed() -> None:
    visits, clock = RunningVisits(Time()), Time()
    seen = []

    async def work() -> None:
        await asyncio.sleep(0)
        seen.append("done")

    await visits.run(work(), None)
    await visits.run(work(), int(clock.now) + 1, "a")
    assert seen == ["done", "done"]
    assert not visits._of_share


async def test_it_ends_when_the_link_expires_also_by_a_clock_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_visits, "_LOOK_SECONDS", 0.01)
    clock = Time()
    visits = RunningVisits(clock)
    with pytest.raises(VisitOver):
        await visits.run(endless(), int(clock.now))
    running = asyncio.ensure_future(visits.run(endless(), int(clock.now) + 3600))
    await asyncio.sleep(0.05)
    assert not running.done()
    clock.now += 3600
    with pytest.raises(VisitOver):
        async with asyncio.timeout(20):
            await running


async def test_only_the_guests_of_the_share_that_ends_are_cut_off() -> None:
    visits = RunningVisits()
    until = int(time.time()) + 3600
    names = ("a", "a", "b", "")
    running = [asyncio.ensure_future(visits.run(endless(), until, share)) for share in names]
    await asyncio.sleep(0)
    visits.end_share("a")
    visits.end_share("a")
    visits.end_share("")
    done, rest = await asyncio.wait(running, timeout=0.5)
    assert done == set(running[:2])
    assert all(isinstance(task.exception(), VisitOver) for task in done)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    assert not visits._of_share


async def test_an_error_of_the_work_is_its_own() -> None:
    async def late() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        await RunningVisits().run(late(), None)


@pytest.fixture(scope="module")
async def sharing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    async with ground_of(tmp_path_factory.mktemp("lasting"), "memory", POOL_SIZE="0", PREVIEW_PUBLIC="acme") as running:
        yield running


async def shared(ground: Ground, port: int) -> str:
    """The token of a new public link."""
    url = f"/api/chats/{CHAT.id}/ports/{port}/share?hours=1"
    made = await ground.service.client.post(url, headers=ground.key(CHAT))
    assert made.status_code == 201, made.text
    return str(made.json()["url"]).partition("?cubicle-key=")[2]


async def revoke(ground: Ground, port: int) -> None:
    url = f"/api/chats/{CHAT.id}/ports/{port}/share"
    assert (await ground.service.client.delete(url, headers=ground.key(CHAT))).status_code == 204


def socket(ground: Ground, port: int, token: str) -> connect:
    uri = f"ws://{ground.host(CHAT, port)}/"
    headers = {"X-Cubicle-Key": token}
    return connect(uri, host="127.0.0.1", port=ground.port, additional_headers=headers, proxy=None)


@pytest.mark.parametrize("by", ["revoking", "sharing again"])
async def test_open_sockets_and_streams_end_with_their_share(sharing: Ground, by: str) -> None:
    program, sockets = await sharing.start(CHAT), await sharing.start_sockets(CHAT)
    tokens = {port: await shared(sharing, port) for port in (program, sockets)}
    own = sharing.links.token(PortGrant(CHAT, sockets, PortRole.LINK))
    async with (
        sharing.client(CHAT, program, by="nothing") as client,
        client.stream("GET", "/events", headers={"X-Cubicle-Key": tokens[program]}) as events,
        socket(sharing, sockets, tokens[sockets]) as guest,
        socket(sharing, sockets, own) as person,
    ):
        lines = events.aiter_lines()
        assert (await anext(lines)).startswith("data")
        await guest.send("here")
        assert await guest.recv() == "here"
        for port in tokens:
            await (revoke(sharing, port) if by == "revoking" else shared(sharing, port))
        async with asyncio.timeout(20):
            with pytest.raises(ConnectionClosed) as closed:
                await guest.recv()
            with pytest.raises(httpx.TransportError):
                async for _ in lines:
                    pass
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "The link has expired or was revoked.")
        await person.send("still here")
        assert await person.recv() == "still here"


async def test_an_open_socket_ends_when_its_link_expires(sharing: Ground) -> None:
    sockets = await sharing.start_sockets(CHAT)
    token = sharing.links.token(PortGrant(CHAT, sockets, PortRole.LINK), int(time.time()) + 4)
    async with socket(sharing, sockets, token) as client:
        await client.send("here")
        assert await client.recv() == "here"
        async with asyncio.timeout(30):
            with pytest.raises(ConnectionClosed) as closed:
                await client.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1008
