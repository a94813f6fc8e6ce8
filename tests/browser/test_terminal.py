"""The live terminal: real ttyd and tmux in a sandbox, reached through the service."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from cubicle.core.chat import Chat
from tests.browser.ground import Service
from tests.browser.typist import Typist

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.usefixtures("ttyd")]

Sit = Callable[..., Awaitable[Typist]]


@pytest.fixture
async def sit(service: Service, http: httpx.AsyncClient) -> AsyncIterator[Sit]:
    """Sits a person down at a chat's terminal, started if need be."""
    typists: list[Typist] = []

    async def sitting(chat: str, **size: int) -> Typist:
        async with service.machine(chat):
            assert (await http.post(f"/terminal/{chat}/start-ttyd")).json()["running"]
        typists.append(await Typist.at(f"{service.ws}/terminal/{chat}/ws", **size))  # type: ignore[arg-type]
        return typists[-1]

    yield sitting
    for typist in typists:
        await typist.leave()


async def closing_code(address: str, **options: object) -> int:
    """The code with which the service closes a connection that was only just accepted."""
    async with connect(address, subprotocols=["tty"], open_timeout=60, **options) as socket:  # type: ignore[list-item,arg-type]
        with pytest.raises(ConnectionClosed) as closed:
            await asyncio.wait_for(socket.recv(), 60)
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code


async def until(condition: Callable[[], bool], limit: float = 60.0) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.02)


def leases(service: Service, chat: str) -> int:
    seen = service.fleet.state(Chat(chat))
    return seen.leases if seen else 0


async def test_start_answers_once_the_terminal_takes_connections(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("start"):
        assert (await http.get("/terminal/start/status")).json() == {
            "running": False,
            "port": 7681,
            "sandbox": "running",
        }
        answers = await asyncio.gather(*(http.post("/terminal/start/start-ttyd") for _ in range(4)))
        assert sorted(answer.json()["started"] for answer in answers) == [False, False, False, True]
        assert (await http.get("/terminal/start/status")).json() == {
            "running": True,
            "port": 7681,
            "sandbox": "running",
        }


async def test_a_person_types_and_sees_the_output(sit: Sit) -> None:
    typist = await sit("types")
    await typist.type("echo $((6*7))-answer; pwd\r")
    await typist.until("42-answer")
    await typist.until("/home/assistant")
    await typist.type("echo grün-$((1+1))-日本\r")
    await typist.until("grün-2-日本")


async def test_what_runs_in_the_terminal_survives_a_disconnect(sit: Sit) -> None:
    first = await sit("survives")
    await first.type("kept=$((40+2)); echo set-$kept\r")
    await first.until("set-42")
    await first.leave()
    again = await sit("survives")
    await again.type("echo still-$kept-here\r")
    await again.until("still-42-here")


async def test_two_people_see_each_other(sit: Sit) -> None:
    one, two = await sit("shared"), await sit("shared")
    await one.type("echo from-$((0+1))-one\r")
    await two.until("from-1-one")
    await two.type("echo from-$((1+1))-two\r")
    await one.until("from-2-two")


async def test_the_terminal_takes_the_size_of_the_window(sit: Sit) -> None:
    typist = await sit("size", columns=91, rows=27)
    await has_size(typist, "27 91")
    await typist.resize(103, 31)
    await has_size(typist, "31 103")


async def has_size(typist: Typist, size: str) -> None:
    """Asked for again and again: what is typed may be quicker than the new size, which goes through tmux."""
    for _ in range(30):
        await typist.type("clear; stty size\r")
        with contextlib.suppress(TimeoutError):
            await typist.until(size, 2.0)
            return
    raise AssertionError(f"never {size}")


async def test_an_open_terminal_is_a_lease(service: Service, sit: Sit) -> None:
    typist = await sit("lease")
    await until(lambda: leases(service, "lease") == 1)
    await typist.leave()
    await until(lambda: leases(service, "lease") == 0)


async def test_ttyd_killed_closes_the_page_and_the_shell_goes_on(service: Service, sit: Sit) -> None:
    typist = await sit("killed")
    await typist.type("mine=$((30+3)); echo ok-$mine\r")
    await typist.until("ok-33")
    async with service.machine("killed") as machine:
        await machine.output("pkill -KILL -x ttyd || pkill -KILL -f /ttyd", timeout=60)
        with pytest.raises(ConnectionClosed) as closed:
            await typist.until("never")
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1011
    async with asyncio.timeout(60):
        while True:
            again = await sit("killed")
            try:
                await again.type("echo back-$mine\r")
                await again.until("back-33")
                break
            except ConnectionClosed as soon:  # the dead program was still taken for a living one
                if soon.rcvd is None or soon.rcvd.code != 4503:
                    raise


async def test_tmux_killed_ends_the_connection_and_a_new_one_starts_afresh(service: Service, sit: Sit) -> None:
    typist = await sit("tmux")
    await typist.type("echo up-$((5+5))\r")
    await typist.until("up-10")
    async with service.machine("tmux") as machine:
        await machine.output("tmux kill-server", timeout=60)
    with pytest.raises(ConnectionClosed):
        await typist.until("never")
    again = await sit("tmux")
    await again.type("echo anew-$((5+6))\r")
    await again.until("anew-11")


async def test_a_stopped_sandbox_closes_the_terminal_and_the_next_start_wakes_it(service: Service, sit: Sit) -> None:
    typist = await sit("stopped")
    await service.fleet.stop(Chat("stopped"))
    with pytest.raises(ConnectionClosed) as closed:
        await typist.until("never")
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4410
    assert closed.value.rcvd.reason == "The operator stopped this sandbox."
    await until(lambda: leases(service, "stopped") == 0)
    assert await closing_code(f"{service.ws}/terminal/stopped/ws") == 4410
    assert service.fleet.condition(Chat("stopped")) == "stopped"
    again = await sit("stopped")
    await again.type("echo woke-$((2+2))\r")
    await again.until("woke-4")


async def test_chats_without_a_sandbox_get_none_from_being_looked_at(service: Service, http: httpx.AsyncClient) -> None:
    assert (await http.get("/terminal/none/status")).json() == {"running": False, "port": 7681, "sandbox": "none"}
    assert (await http.get("/terminal/none/sessions")).json() == {"sessions": []}
    assert (await http.get("/terminal/none/processes")).json() == {"processes": []}
    assert (await http.get("/terminal/none/sessions/abc")).status_code == 404
    assert (await http.post("/terminal/none/processes/4/kill")).status_code == 404
    assert await closing_code(f"{service.ws}/terminal/none/ws") == 4404
    assert not service.fleet.has(Chat("none"))


async def test_close_codes_and_bad_chat_ids(service: Service, http: httpx.AsyncClient) -> None:
    async with service.machine("idle"):
        assert await closing_code(f"{service.ws}/terminal/idle/ws") == 4503
    assert await closing_code(f"{service.ws}/terminal/.bad/ws") == 4404
    answer = await http.get("/terminal/.bad/status")
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://127.0.0.1:1", "file://"])
async def test_foreign_pages_get_no_terminal(service: Service, http: httpx.AsyncClient, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await connect(f"{service.ws}/terminal/idle/ws", additional_headers={"Origin": origin}, open_timeout=60)
    assert refused.value.response.status_code == 403
    answer = await http.post("/terminal/idle/start-ttyd", headers={"Origin": origin})
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")


async def test_our_own_pages_get_one(service: Service) -> None:
    async with service.machine("own"):
        headers = {"Origin": service.base}
        assert await closing_code(f"{service.ws}/terminal/own/ws", additional_headers=headers) == 4503


@pytest.mark.parametrize("pause", [0.0, 0.002, 0.02])
async def test_a_terminal_that_is_closed_at_once_leaves_no_client(service: Service, sit: Sit, pause: float) -> None:
    """However early a page goes away: what it started in the sandbox ends, and the terminal itself does not."""
    stays = await sit("hasty")

    async def hasty() -> None:
        typist = await Typist.at(f"{service.ws}/terminal/hasty/ws")
        await asyncio.sleep(pause)
        typist.socket.transport.abort()

    for _ in range(10):
        await asyncio.gather(*(hasty() for _ in range(5)))
    async with service.machine("hasty") as machine, asyncio.timeout(60):
        while (await machine.output("pgrep -fc '^(tmux|[^ ]*/tmux) -u start-server' || true"))[1] != b"2\n":
            await asyncio.sleep(0.1)
    await stays.type("echo still-$((40+2))\r")
    await stays.until("still-42")
