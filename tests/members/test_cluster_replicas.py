"""Three replicas on a real cluster: one is killed with calls in flight, and all are replaced one after the other."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from pathlib import Path

import httpx
import pytest

from cubicle.sandbox.service_lock import only_service_of
from cubicle.settings import BadSettings
from tests.support.replicas import Replica, replicas, text_of

pytestmark = [pytest.mark.kubernetes, pytest.mark.serial, pytest.mark.timeout(1200)]
LONG = bool(os.environ.get("CUBICLE_LONG"))
CHATS, CALLS = (10, 5) if LONG else (3, 4)
"""So many chats, and so many calls of each at once."""
_BACK_SECONDS = 20.0


class Failed(Exception):
    """A call ended otherwise than with its answer, or with 503."""


async def until_answered(all_of_them: list[Replica], chat: str, command: str, key: str) -> str:
    """As a client does behind a Service: a replica that is ready is asked, and 503 is tried again."""
    ends = time.monotonic() + 120
    while time.monotonic() < ends:
        ready = [each for each in all_of_them if each.is_ready]
        try:
            answer = await ready[uuid.uuid4().int % len(ready)].call(chat, command, key)
        except httpx.TransportError as error:
            raise Failed(f"{type(error).__name__} {error}") from error
        if answer.status_code == 200:
            return text_of(answer)
        if answer.status_code != 503:
            raise Failed(f"{answer.status_code} {answer.text}")
        await asyncio.sleep(0.1)
    raise Failed("no answer in two minutes")


async def test_chats_of_a_killed_replica_come_back_and_what_ran_goes_on(tmp_path: Path) -> None:
    async with replicas(tmp_path) as three:
        with pytest.raises(BadSettings, match="Another service"), only_service_of(tmp_path / "data", "alone"):
            pass
        killed, *others = three
        chats = [f"chat-{number}" for number in range(CHATS)]
        owners = {chat: three[number % 3] for number, chat in enumerate(chats)}
        await asyncio.gather(*(owners[chat].text(chat, f"echo kept-{chat} > ~/kept") for chat in chats))
        command = "echo x >> ~/runs-%d; until [ -e ~/go ]; do sleep 0.2; done; echo over"
        asked = [(chat, call, uuid.uuid4().hex) for chat in chats for call in range(CALLS)]
        running = [
            asyncio.create_task(three[(index + index // CALLS) % 3].call(chat, command % call, key))
            for index, (chat, call, key) in enumerate(asked)
        ]
        for chat in chats:
            told = f"until [ $(ls ~/runs-* | wc -l) = {CALLS} ]; do sleep 0.1; done"
            await owners[chat].text(chat, told)
        began = time.monotonic()
        os.kill(killed.pid, signal.SIGKILL)
        killed.kill()

        async def back(chat: str) -> float:
            while True:
                answer = await others[0].call(chat, "cat ~/kept", uuid.uuid4().hex)
                if answer.status_code == 200 and text_of(answer) == f"kept-{chat}\n":
                    return time.monotonic() - began
                assert answer.status_code in (200, 503), answer.text
                await asyncio.sleep(0.2)

        seconds = await asyncio.gather(*(back(chat) for chat in chats))
        print(f"{len(asked)} calls in flight; all chats answer after {max(seconds):.1f} s")
        assert max(seconds) < _BACK_SECONDS
        # Each call is asked for again under its key, as a client does whose answer did not come; none is run again.
        again = [asyncio.create_task(until_answered(others_ready(three), *_named(one, command))) for one in asked]
        for chat in chats:
            assert await others[0].text(chat, "cat ~/runs-* | wc -l") == f"{CALLS}\n"
            await others[0].text(chat, "touch ~/go")
        assert set(await asyncio.gather(*again)) == {"over\n"}
        for chat in chats:
            assert await others[0].text(chat, "cat ~/runs-* | wc -l; cat ~/kept") == f"{CALLS}\nkept-{chat}\n"
        for answer in await asyncio.gather(*running, return_exceptions=True):
            lost = isinstance(answer, httpx.TransportError)
            assert lost or (isinstance(answer, httpx.Response) and answer.status_code in (200, 503))


def others_ready(three: list[Replica]) -> list[Replica]:
    three[0].is_ready = False
    return three


def _named(asked: tuple[str, int, str], command: str) -> tuple[str, str, str]:
    chat, call, key = asked
    return chat, command % call, key


@pytest.mark.long
async def test_no_call_fails_while_all_replicas_are_replaced(tmp_path: Path) -> None:
    async with replicas(tmp_path) as three:
        chats, over = [f"chat-{number}" for number in range(CHATS)], asyncio.Event()
        await asyncio.gather(*(three[number % 3].text(chat, "true") for number, chat in enumerate(chats)))

        async def client(chat: str) -> int:
            count = 0
            while not over.is_set():
                command = f"echo {count} >> ~/log; sleep 0.$(( RANDOM % 5 ))"
                await until_answered(three, chat, command, uuid.uuid4().hex)
                count += 1
            return count

        working = [asyncio.create_task(client(chat)) for chat in chats]
        for each in three:
            each.is_ready = False  # as the cluster does before it ends a pod
            await asyncio.to_thread(each.stop)
            await each.start()
            each.is_ready = True
            assert not [task for task in working if task.done()]
        over.set()
        for chat, count in zip(chats, await asyncio.gather(*working), strict=True):
            expected = "".join(f"{number}\n" for number in range(count))
            assert await three[0].text(chat, "cat ~/log") == expected
            assert count > 3
