"""What a member believes of a request that came from another member, and what it does not."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import httpx
import pytest

from cubicle.core import hop
from cubicle.core.chat import Chat
from cubicle.core.hop import MAX_AGE, Hop
from tests.support.members import Worker, secret_of, workers


@pytest.fixture(scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sequence[Worker]]:
    async with workers(tmp_path_factory.mktemp("hops")) as found:
        await found[0].bash("owned", "echo kept > /mnt/user-data/outputs/file")
        yield found


PATH = "/files/owned/outputs/file"


def header(
    worker: Worker, *, method: str = "GET", path: str = PATH, age: float = 0, to: str = "", key: bytes = b""
) -> dict[str, str]:
    made = Hop("somebody", to or worker.name, "http", ("192.0.2.1", 5))
    value = hop.signed(key or secret_of(worker), made, method, path.encode(), time.time() - age)
    return {hop.HEADER.decode(): value.decode()}


async def inner(worker: Worker, path: str = PATH, **headers: str) -> httpx.Response:
    """As another member asks."""
    socket = Path(worker._data) / "members" / f"{worker.name}.sock"
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", trust_env=False) as client:
        return await client.get(path, headers=headers)


async def test_a_request_with_a_hop_that_was_made_for_it_is_answered(pair: Sequence[Worker]) -> None:
    answer = await inner(pair[0], **header(pair[0]))
    assert (answer.status_code, answer.text) == (200, "kept\n")


async def test_a_request_without_one_is_refused(pair: Sequence[Worker]) -> None:
    assert (await inner(pair[0])).status_code == 421


async def test_a_forged_one_is_refused(pair: Sequence[Worker]) -> None:
    assert (await inner(pair[0], **header(pair[0], key=b"x" * 32))).status_code == 421


@pytest.mark.parametrize("age", [MAX_AGE + 5, -MAX_AGE - 5])
async def test_one_that_expired_or_is_of_the_future_is_refused(pair: Sequence[Worker], age: float) -> None:
    assert (await inner(pair[0], **header(pair[0], age=age))).status_code == 421


async def test_one_that_was_made_for_another_request_is_refused(pair: Sequence[Worker]) -> None:
    assert (await inner(pair[0], "/files/owned/outputs/other", **header(pair[0]))).status_code == 421
    assert (await inner(pair[0], PATH + "?download=1", **header(pair[0]))).status_code == 421
    assert (await inner(pair[0], **header(pair[0], method="DELETE"))).status_code == 421


async def test_one_that_was_made_for_another_member_is_refused(pair: Sequence[Worker]) -> None:
    assert (await inner(pair[0], **header(pair[0], to=pair[1].name))).status_code == 421


async def test_clients_cannot_send_one(pair: Sequence[Worker]) -> None:
    assert (await pair[0].client.get(PATH, headers=header(pair[0]))).status_code == 403
    assert (await pair[0].client.get("/members/sandboxes")).status_code == 404


async def test_one_that_was_heard_on_its_way_is_good_for_nothing(pair: Sequence[Worker]) -> None:
    heard = header(pair[0])
    assert (await inner(pair[0], **heard)).status_code == 200
    assert (await inner(pair[0], **heard)).status_code == 421


async def test_a_client_whose_member_is_not_believed_is_told_to_try_again(tmp_path: Path) -> None:
    """A secret that was not changed everywhere, or a wrong clock: nothing that the client did wrong."""
    async with workers(tmp_path) as (owner, odd):
        await owner.bash("owned", "echo kept > /mnt/user-data/outputs/file")
        await odd.end(signal.SIGTERM)
        odd._told["secret"] = "5" * 64
        await odd.start()
        answer = await odd.client.get(PATH)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert (await owner.client.get(PATH)).text == "kept\n"
        async with asyncio.timeout(30):
            while "was not signed by a member" not in owner.log():
                await asyncio.sleep(0.05)


async def test_a_request_is_passed_on_once_and_no_further(pair: Sequence[Worker]) -> None:
    """The second worker does not own the chat: it says so, and does not send the request back."""
    answer = await inner(pair[1], **header(pair[1]))
    assert answer.status_code == 421
    assert Chat("owned").digest not in answer.text
