from __future__ import annotations

import asyncio
import errno
import json
import threading
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from cubicle import record
from cubicle.core.chat import Chat
from cubicle.core.signing import PortGrant, PortRole
from cubicle.ports.shares import MAX_SHARES, NotAllowed, PortShare, PortShares
from tests.ports.conftest import Ground, ground_of

CHAT = Chat("room-1", "acme")


def grant(share: PortShare, chat: Chat = CHAT, port: int | None = None) -> PortGrant:
    return PortGrant(chat, port or share.port, PortRole.SHARE, share.id)


class Time:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, clock: Time | None = None, tenants: tuple[str, ...] = ("*",)) -> PortShares:
    shares = PortShares(folder, tenants, clock or Time())
    shares.open()
    return shares


async def test_a_share_holds_for_its_port_and_chat_until_it_expires(tmp_path: Path) -> None:
    clock = Time()
    shares = opened(tmp_path, clock)
    share = await shares.add(CHAT, 5173, 2)
    assert shares.holds(grant(share))
    assert not shares.holds(grant(share, port=5174))
    assert not shares.holds(grant(share, Chat("room-1", "other")))
    clock.now += 7199
    assert shares.of(CHAT) == [share]
    clock.now += 1
    assert not shares.holds(grant(share))
    assert shares.of(CHAT) == []


async def test_a_share_outlives_the_service_and_a_revoked_one_does_not_come_back(tmp_path: Path) -> None:
    shares = opened(tmp_path)
    kept, ended = await shares.add(CHAT, 1, 1), await shares.add(CHAT, 2, 1)
    assert await shares.revoke(CHAT, 2)
    assert not await shares.revoke(CHAT, 2)
    again = opened(tmp_path)
    assert again.holds(grant(kept))
    assert not again.holds(grant(ended))


async def test_sharing_again_ends_the_link_before(tmp_path: Path) -> None:
    shares = opened(tmp_path)
    first, second = await shares.add(CHAT, 1, 1), await shares.add(CHAT, 1, 1)
    assert not shares.holds(grant(first))
    assert shares.holds(grant(second))


async def test_a_removed_chat_has_no_shares(tmp_path: Path) -> None:
    shares = opened(tmp_path)
    share = await shares.add(CHAT, 1, 1)
    await shares.forget(CHAT)
    assert not shares.holds(grant(share))
    assert opened(tmp_path).of(CHAT) == []
    assert list(tmp_path.iterdir()) == []


async def test_a_share_that_ends_before_its_time_is_told(tmp_path: Path) -> None:
    shares, ended = opened(tmp_path), list[str]()
    shares.when_ended(ended.append)
    first, other = await shares.add(CHAT, 1, 1), await shares.add(CHAT, 2, 1)
    again = await shares.add(CHAT, 1, 1)
    assert ended == [first.id]
    await shares.revoke(CHAT, 1)
    await shares.forget(CHAT)
    assert ended == [first.id, again.id, other.id]


async def test_a_share_is_over_before_the_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the disk never does: then it is an error, and can be tried again."""
    shares = opened(tmp_path)
    share, kept = await shares.add(CHAT, 1, 1), await shares.add(CHAT, 2, 1)

    def full(*_: object) -> None:
        assert not shares.holds(grant(share))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(record, "write", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                await shares.revoke(CHAT, 1)
    assert not shares.holds(grant(share))
    assert opened(tmp_path).holds(grant(share))
    assert await shares.revoke(CHAT, 1)
    assert not opened(tmp_path).holds(grant(share))
    assert opened(tmp_path).holds(grant(kept))
    assert not await shares.revoke(CHAT, 1)


async def test_a_change_that_nobody_waits_for_any_more_is_not_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that is revoked while the write of a cancelled call is still under way does not come back."""
    shares = opened(tmp_path)
    ended, kept = await shares.add(CHAT, 1, 1), await shares.add(CHAT, 2, 1)
    slow, go_on, write = asyncio.Event(), threading.Event(), record.write
    loop = asyncio.get_running_loop()

    def first_is_slow(path: Path, fields: Mapping[str, object]) -> None:
        if not slow.is_set():
            loop.call_soon_threadsafe(slow.set)
            assert go_on.wait(60)
        write(path, fields)

    monkeypatch.setattr(record, "write", first_is_slow)
    async with asyncio.timeout(60):
        adding = asyncio.ensure_future(shares.add(CHAT, 3, 1))
        await slow.wait()
        adding.cancel()
        revoking = asyncio.ensure_future(shares.revoke(CHAT, 1))
        await asyncio.wait([adding, revoking], timeout=0.2)
        adding.cancel()
        assert not revoking.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await adding
        assert await revoking
    again = opened(tmp_path)
    assert again.of(CHAT) == shares.of(CHAT)
    assert [share.port for share in again.of(CHAT)] == [2, 3]
    assert again.holds(grant(kept))
    assert not again.holds(grant(ended))


async def test_only_tenants_that_may_share(tmp_path: Path) -> None:
    share = await opened(tmp_path).add(CHAT, 1, 1)
    assert opened(tmp_path, tenants=("other", "acme")).holds(grant(share))
    for tenants in ((), ("other",)):
        shares = opened(tmp_path, tenants=tenants)
        assert not shares.holds(grant(share))
        with pytest.raises(NotAllowed):
            await shares.add(CHAT, 1, 1)


async def test_a_chat_shares_a_bounded_number(tmp_path: Path) -> None:
    shares = opened(tmp_path)
    for port in range(1, MAX_SHARES + 1):
        await shares.add(CHAT, port, 1)
    with pytest.raises(NotAllowed):
        await shares.add(CHAT, 9999, 1)
    assert len(opened(tmp_path).of(CHAT)) == MAX_SHARES


async def test_a_record_that_cannot_be_read_is_set_aside_and_shares_nothing(tmp_path: Path) -> None:
    share = await opened(tmp_path).add(CHAT, 1, 1)
    path = tmp_path / f"{CHAT.digest}.json"
    good = json.loads(path.read_text())
    for bad in (b"", b"[]", b"{", b"\xff", json.dumps(good | {"chat": "room-2"}).encode(), b'{"chat":"a/b"}'):
        path.write_bytes(bad)
        assert not opened(tmp_path).holds(grant(share))
        assert not path.exists()
    assert len(list(tmp_path.glob("*.bad-*"))) == 6
    path.write_text(json.dumps(good | {"shares": [1, {"id": 3}, *good["shares"]]}))
    assert opened(tmp_path).holds(grant(share))
    path.write_text(json.dumps(good | {"version": 9}))
    assert not opened(tmp_path).holds(grant(share))
    assert path.exists()


@pytest.mark.parametrize("change", ["add", "revoke", "forget"])
async def test_a_share_that_cannot_be_used_is_set_aside_before_the_record_is_written_anew(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(tmp_path).add(CHAT, 1, 1)
    path = tmp_path / f"{CHAT.digest}.json"
    good = json.loads(path.read_text())
    later = [good["shares"][0] | {"port": port} for port in range(2, MAX_SHARES + 3)]
    for bad in ([{"id": 3}], [7], later, [good["shares"][0]]):
        before = json.dumps(good | {"shares": [*good["shares"], *bad]})
        path.write_text(before)
        caplog.clear()
        shares = opened(tmp_path)
        assert "cannot be used" in caplog.text
        assert path.read_text() == before
        assert shares.of(CHAT)[0].port == 1
        for _ in range(2):
            match change:
                case "add":
                    await shares.add(CHAT, 1, 1)
                case "revoke":
                    await shares.revoke(CHAT, 1)
                case _:
                    await shares.forget(CHAT)
        (aside,) = tmp_path.glob("*.bad-*")
        assert aside.read_text() == before
        aside.unlink()


@pytest.fixture(scope="module")
async def acme_may(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    folder = tmp_path_factory.mktemp("shared")
    async with ground_of(folder, "memory", POOL_SIZE="0", PREVIEW_PUBLIC="acme") as running:
        yield running


async def test_a_public_link_opens_one_port_for_anybody_until_it_is_revoked(acme_may: Ground) -> None:
    api, key = acme_may.service.client, acme_may.key(CHAT)
    port, url = await acme_may.start(CHAT), f"/api/chats/{CHAT.id}/ports"
    assert (await api.get(url, headers=key)).json()["sharing"]
    made = await api.post(f"{url}/{port}/share?hours=1", headers=key)
    assert made.status_code == 201
    token = made.json()["url"].partition("?cubicle-key=")[2]
    for at, status in ((port, 200), (port + 1, 401)):
        async with acme_may.client(CHAT, at, by="nothing") as stranger:
            assert (await stranger.get("/", headers={"X-Cubicle-Key": token})).status_code == status
    assert (await api.delete(f"{url}/{port}/share", headers=key)).status_code == 204
    async with acme_may.client(CHAT, port, by="nothing") as stranger:
        assert (await stranger.get("/", headers={"X-Cubicle-Key": token})).status_code == 401


async def test_a_link_that_opens_nothing_any_more_says_why(acme_may: Ground) -> None:
    api, key = acme_may.service.client, acme_may.key(CHAT)
    port, url = await acme_may.start(CHAT), f"/api/chats/{CHAT.id}/ports"
    made = (await api.post(f"{url}/{port}/share?hours=1", headers=key)).json()["url"]
    assert (await api.delete(f"{url}/{port}/share", headers=key)).status_code == 204
    revoked = made.partition("?cubicle-key=")[2]
    expired = acme_may.links.token(PortGrant(CHAT, port, PortRole.LINK), 1)
    foreign = acme_may.links.token(PortGrant(Chat("other", "acme"), port, PortRole.LINK), 1)
    words = {revoked: "was revoked", expired: "has expired", foreign: "is private", expired[:-1]: "is private"}
    async with acme_may.client(CHAT, port, by="nothing") as stranger:
        for token, said in words.items():
            answer = await stranger.get(f"/?cubicle-key={token}")
            assert answer.status_code == 401
            assert said in answer.json()["detail"]


async def test_the_sandbox_s_own_ports_are_not_shared(acme_may: Ground) -> None:
    await acme_may.bash(CHAT, "true")
    for port in (7681, 9222):
        answer = await acme_may.service.client.post(
            f"/api/chats/{CHAT.id}/ports/{port}/share", headers=acme_may.key(CHAT)
        )
        assert answer.status_code == 403
        assert "part of the sandbox itself" in answer.json()["detail"]


async def test_a_person_of_the_chat_who_opens_a_public_link_stays_one(acme_may: Ground) -> None:
    port = await acme_may.start(CHAT)
    made = await acme_may.service.client.post(
        f"/api/chats/{CHAT.id}/ports/{port}/share?hours=1", headers=acme_may.key(CHAT)
    )
    query = "/?" + made.json()["url"].partition("?")[2]
    for by, set_cookie in (("cookie", False), ("nothing", True)):
        async with acme_may.client(CHAT, port, by=by, Accept="text/html") as client:
            answer = await client.get(query)
            assert (answer.status_code, "Set-Cookie" in answer.headers) == (303, set_cookie)


async def test_a_tenant_that_the_operator_does_not_name_cannot_share(acme_may: Ground) -> None:
    for chat in (Chat("room-1", "rival"), Chat("room-1", "main")):
        await acme_may.bash(chat, "true")
        key, url = acme_may.key(chat), f"/api/chats/{chat.id}/ports"
        assert (await acme_may.service.client.post(f"{url}/80/share", headers=key)).status_code == 403
        assert not (await acme_may.service.client.get(url, headers=key)).json()["sharing"]


async def test_guests_do_not_keep_the_chat_s_own_people_out(acme_may: Ground) -> None:
    api, key, port = acme_may.service.client, acme_may.key(CHAT), await acme_may.start(CHAT)
    made = await api.post(f"/api/chats/{CHAT.id}/ports/{port}/share?hours=1", headers=key)
    token = made.json()["url"].partition("?cubicle-key=")[2]
    lines = ["GET /events?every=1 HTTP/1.1", f"Host: {acme_may.host(CHAT, port)}", f"X-Cubicle-Key: {token}", "", ""]

    async def guest() -> tuple[asyncio.StreamWriter, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", acme_may.port)
        writer.write("\r\n".join(lines).encode())
        async with asyncio.timeout(60):
            return writer, int((await reader.readline()).split()[1])

    guests = await asyncio.gather(*(guest() for _ in range(140)))
    try:
        assert sorted(status for _, status in guests) == [200] * 128 + [429] * 12
        async with acme_may.client(CHAT, port) as person:
            assert (await person.get("/")).status_code == 200
    finally:
        for writer, _ in guests:
            writer.close()
