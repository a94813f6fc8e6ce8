"""`cubicle rm` leaves an entry in the journal: beside a service, beside one that stops, and without one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from cubicle.core.chat import Chat
from cubicle.journal import offline, reading
from cubicle.journal.journal import Journal
from cubicle.journal.verify import verify
from cubicle.removal import journal_folder, note_removal
from cubicle.sandbox.service_lock import only_service_of
from tests.cli.test_running import said
from tests.support.process import ServiceProcess

CHAT = Chat("a-chat")
LIMIT = 1 << 20


def lifecycle(folder: Path) -> list[tuple[str, str]]:
    """What became of a chat's sandboxes, and of which."""
    entries = reading.read_entries(folder, 0, 1 << 30)
    return [(str(e.fields["what"]), str(e.fields["sandbox"])) for e in entries if e.kind == "lifecycle"]


async def filled(data: Path) -> Path:
    """A journal with one entry; its folder."""
    async with Journal(journal_folder(data), limit=LIMIT) as journal:
        journal.record(CHAT, "lifecycle", {"what": "created", "sandbox": "s1"})
    return journal_folder(data) / CHAT.digest


async def test_the_entry_continues_the_chain_and_the_next_service_goes_on_after_it(tmp_path: Path) -> None:
    folder = await filled(tmp_path)
    note_removal(tmp_path, LIMIT, CHAT.digest, "s1", "removed by hand")
    async with Journal(journal_folder(tmp_path), limit=LIMIT) as journal:
        assert journal.record(CHAT, "lifecycle", {"what": "started", "sandbox": "s1"}) == 3
    assert lifecycle(folder) == [("created", "s1"), ("removed", "s1"), ("started", "s1")]
    assert verify(folder, 3).problems == []


async def test_two_at_once_both_leave_their_entry(tmp_path: Path) -> None:
    folder = await filled(tmp_path)

    def add(name: str) -> None:
        offline.append_entry(folder, LIMIT, "lifecycle", {"what": "removed", "sandbox": name})

    await asyncio.gather(*(asyncio.to_thread(add, f"s{number}") for number in range(8)))
    assert sorted(lifecycle(folder)[1:]) == [("removed", f"s{number}") for number in range(8)]
    assert verify(folder, 0).problems == []


async def test_nothing_is_written_beside_a_service_or_where_nothing_is_kept(tmp_path: Path) -> None:
    note_removal(tmp_path, LIMIT, CHAT.digest, "s1", "removed by hand")
    assert not (journal_folder(tmp_path) / CHAT.digest).exists()  # a chat without a journal gets none by its removal
    folder = await filled(tmp_path)
    with only_service_of(tmp_path, "here"):
        note_removal(tmp_path, LIMIT, CHAT.digest, "s1", "removed by hand")
    note_removal(tmp_path, 0, CHAT.digest, "s1", "removed by hand")
    assert lifecycle(folder) == [("created", "s1")]


@pytest.mark.real
@pytest.mark.timeout(300)
async def test_every_removal_is_in_the_journal(tmp_path: Path) -> None:
    data = tmp_path / "data"
    service = ServiceProcess(data, DRIVER="memory", POOL_SIZE="0")

    async def run(*arguments: str) -> str:
        code, output = await asyncio.to_thread(said, tmp_path, *arguments)
        assert code == 0, output
        return output

    async def became(chat: str) -> list[str]:
        entries: list[dict[str, Any]] = [
            json.loads(line) for line in (await run("journal", "--json", chat)).splitlines()
        ]
        await run("journal", "--verify", chat)
        return [entry["fields"]["what"] for entry in entries if entry["kind"] == "lifecycle"]

    try:
        await service.start()
        for chat in ("used-again", "service-stops", "no-service"):
            await service.bash(chat, "echo begun")
        await run("rm", "used-again")
        await service.bash("used-again", "true")  # before the service has noticed it
        await run("rm", "service-stops")
        service.stop()
        await run("rm", "no-service")
        assert await became("used-again") == ["created", "replaced", "created"]
        assert await became("service-stops") == ["created", "removed"]
        assert await became("no-service") == ["created", "removed"]
        await run("undelete", "no-service")
        await service.start()
        await service.bash("no-service", "true")
        service.stop()
        assert (await became("no-service"))[:3] == ["created", "removed", "started"]
    finally:
        service.kill()
        await service.client.aclose()
        await asyncio.to_thread(said, tmp_path, "rm", "--all", "--now")
