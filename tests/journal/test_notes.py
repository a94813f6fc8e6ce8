"""What is no tool call and yet in the journal: people who take over, uploads, what the egress proxy refused."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from cubicle.chat.journal_notes import JournalNotes
from cubicle.core.chat import Chat
from cubicle.journal import reading
from cubicle.journal.journal import Journal
from cubicle.machine.refusals import Refusal
from tests.browser.watcher import Watcher
from tests.http_api.pages import visitor
from tests.support.service import fleet_of

# It says yes to one WebSocket, as ttyd does, and then nothing.
TERMINAL = """
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 7681))
while True:
    client, _ = server.accept()
    head = b""
    while b"\\r\\n\\r\\n" not in head and (chunk := client.recv(4096)):
        head += chunk
    keys = [line.split()[1] for line in head.split(b"\\r\\n") if line.lower().startswith(b"sec-websocket-key:")]
    if keys:
        proof = base64.b64encode(hashlib.sha1(keys[0] + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        client.sendall(b"HTTP/1.1 101 Switching Protocols\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
            b"Sec-WebSocket-Protocol: tty\\r\\nSec-WebSocket-Accept: " + proof + b"\\r\\n\\r\\n")
        while client.recv(4096):
            pass
"""


@dataclass
class Kept:
    """A service and its journals."""

    house: visitor.House
    folder: Path

    async def of(self, chat: str, kind: str) -> list[dict[str, Any]]:
        """The entries of this kind, when there is one."""
        async with asyncio.timeout(60):
            while True:
                found = await asyncio.to_thread(reading.read_entries, self.folder / Chat(chat).digest)
                fields = [dict(entry.fields) for entry in found if entry.kind == kind]
                if fields:
                    return fields
                await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
async def kept(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Kept]:
    folder = tmp_path_factory.mktemp("notes")
    async with visitor.house(folder, egress="allowlist") as house:
        yield Kept(house, folder / "journal")


async def test_who_opens_the_terminal_is_in_the_journal_once(kept: Kept) -> None:
    await kept.house.bash("terminal", f"cat > t.py <<'END'\n{TERMINAL}END\n(python3 t.py >/dev/null 2>&1 &)")
    await kept.house.bash("terminal", "until (: < /dev/tcp/127.0.0.1/7681) 2>/dev/null; do sleep 0.02; done")
    url = kept.house.url.replace("http", "ws", 1)
    for _ in range(2):  # a page that connects again is no other person
        async with connect(f"{url}/terminal/terminal/ws", subprotocols=["tty"], open_timeout=60):  # type: ignore[list-item]
            assert await kept.of("terminal", "takeover") == [{"what": "terminal", "user": ""}]


async def test_an_upload_is_in_the_journal_before_it_is_acknowledged(kept: Kept) -> None:
    for content in (b"first", b"second"):
        answer = await kept.house.client.put("/api/uploads/upload/a/note.txt", content=content)
        assert answer.status_code == 201
        found = await asyncio.to_thread(reading.read_entries, kept.folder / Chat("upload").digest)
        assert [dict(entry.fields) for entry in found if entry.kind == "upload"][-1] == {
            "path": "a/note.txt",
            "size": len(content),
            "hash": hashlib.sha256(content).hexdigest(),
        }


async def test_an_upload_that_breaks_off_is_not_in_the_journal(kept: Kept) -> None:
    await kept.house.bash("broken", "true")
    answer = await kept.house.client.put("/api/uploads/broken/..%2fnote.txt", content=b"x")
    assert answer.status_code >= 400
    found = await asyncio.to_thread(reading.read_entries, kept.folder / Chat("broken").digest)
    assert "upload" not in [entry.kind for entry in found]


async def test_what_the_egress_proxy_refuses_is_in_the_journal(kept: Kept) -> None:
    await kept.house.bash("egress", "curl -s https://api.example/ || true")
    [fields] = await kept.of("egress", "egress")
    assert (fields["host"], fields["port"]) == ("api.example", 443)
    assert "allowlist" in fields["reason"] or "rule" in fields["reason"]


async def test_refusals_without_end_do_not_fill_the_journal(tmp_path: Path) -> None:
    """A sandbox that tries again and again is written down at a bounded pace, and what was left out is counted."""
    now, chat = 0.0, Chat("flood")
    async with (
        Journal(tmp_path / "journal") as journal,
        fleet_of(tmp_path / "fleet") as fleet,
        fleet.lease(chat) as machine,
    ):
        notes = JournalNotes(journal, lambda: now)
        async with notes.attached(chat, machine):
            for number in range(1000):
                machine.refusals.add(Refusal(f"host-{number}.example:443", "", "x" * 5000))
            now = 60.0
            machine.refusals.add(Refusal("last.example:443", "", "no rule"))
        machine.refusals.add(Refusal("later.example:443", "", "nobody listens"))
        entries = await journal.entries(chat)
    assert len(entries) == 21
    assert entries[-1].fields == {"host": "last.example", "port": 443, "reason": "no rule", "omitted": 980}
    assert all(len(str(entry.fields["reason"])) <= 500 for entry in entries)


async def test_one_person_is_noted_again_after_a_while_and_others_at_once(tmp_path: Path) -> None:
    now = 0.0
    async with Journal(tmp_path) as journal:
        notes = JournalNotes(journal, lambda: now)
        notes.take_over(Chat("a"), "browser", "Ann")
        now = 59.0
        notes.take_over(Chat("a"), "browser", "Ann")
        notes.take_over(Chat("a"), "browser", "Bob")
        notes.take_over(Chat("b"), "browser", "Ann")
        now = 200.0
        notes.take_over(Chat("a"), "browser", "Ann" * 1000)
        found = await journal.entries(Chat("a"))
        assert len(await journal.entries(Chat("b"))) == 1
    assert [str(entry.fields["user"])[:3] for entry in found] == ["Ann", "Bob", "Ann"]
    assert len(str(found[-1].fields["user"])) == 500


@pytest.mark.real
async def test_who_takes_control_of_the_browser_is_in_the_journal(kept: Kept) -> None:
    house = kept.house
    await house.bash("browser", "true")
    await house.furnish("browser")
    assert (await house.client.post("/browser/browser/start")).json()["running"]
    watcher = await Watcher.at(f"{house.url.replace('http', 'ws', 1)}/browser/browser/live")
    try:
        await watcher.picture()  # to watch is no take-over
        found = await asyncio.to_thread(reading.read_entries, kept.folder / Chat("browser").digest)
        assert "takeover" not in [entry.kind for entry in found]
        await watcher.drive("Ann")
        assert await kept.of("browser", "takeover") == [{"what": "browser", "user": "Ann"}]
    finally:
        await watcher.leave()
