"""Deliveries to real receivers on loopback, good ones and bad ones."""

from __future__ import annotations

import asyncio
import json
import logging
import resource
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from cubicle.removal import webhooks_folder
from cubicle.settings import Settings
from cubicle.startup import make_webhooks
from cubicle.webhooks import store as queue
from cubicle.webhooks.attempt import signature_headers
from cubicle.webhooks.events import Event, EventType
from cubicle.webhooks.receivers import Receiver
from cubicle.webhooks.store import Letter, Store
from cubicle.webhooks.webhooks import Webhooks
from tests.webhooks.receiver import (
    OK,
    OTHER_SECRET,
    SECRET,
    Behaviour,
    answering,
    dripping,
    hanging,
    hanging_up,
    receiving,
    sending,
    talking_nonsense,
    written,
)

SOON = (0.02, 0.02)
SLOW = (1000.0,)


def event(kind: EventType = EventType.SANDBOX_STARTED, tenant: str = "acme", **data: Any) -> Event:
    return Event(kind, tenant, {"chat": "c1", **data})


@asynccontextmanager
async def webhooks(
    folder: Path, *rows: dict[str, Any], timeout: float = 5, retry: tuple[float, ...] = SOON, **options: Any
) -> AsyncIterator[Webhooks]:
    file = written(folder / "webhooks.toml", *rows)
    async with Webhooks(folder / "queue", file, timeout=timeout, retry_seconds=retry, **options) as made:
        yield made


async def until(question: Callable[[], Any], seconds: float = 20) -> Any:
    """Ask a queue until it has an answer; the queue of another thread says nothing by itself."""
    async with asyncio.timeout(seconds):
        while not (found := await asyncio.to_thread(question)):
            await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def looking(folder: Path) -> AsyncIterator[Store]:
    """The queue, as the command line opens it beside a service."""
    store = Store(folder / "queue")
    await asyncio.to_thread(store.open)
    try:
        yield store
    finally:
        await asyncio.to_thread(store.close)


async def dead_letters(folder: Path, count: int = 1) -> list[Letter]:
    async with looking(folder) as store:
        return await until(lambda: found if len(found := store.letters(dead=True, count=100)) >= count else [])


async def emptied(folder: Path) -> None:
    async with looking(folder) as store:
        await until(lambda: not store.counts())


def test_signatures_are_those_of_the_published_example() -> None:
    """The vector of the specification's own reference libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    id, at, body = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    found = signature_headers(Receiver("x", "http://x/", (secret,)), id, body, at)
    assert found == {
        "webhook-id": id,
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(("replicas", "mode"), [(1, "wal"), (3, "delete")])
def test_replicas_share_no_memory_beside_the_queue(tmp_path: Path, replicas: int, mode: str) -> None:
    """They are on several hosts; one host may have written the file before."""
    chosen = Settings(_env_file=None, data_dir=tmp_path, replicas=replicas)  # type: ignore[call-arg]
    before = Store(webhooks_folder(tmp_path))
    before.open()
    before.close()
    store = make_webhooks(chosen, shared=True).store
    store.open()
    assert store._db is not None
    assert store._db.execute("PRAGMA journal_mode").fetchone() == (mode,)
    store.close()


async def test_a_message_is_signed_and_says_what_happened(tmp_path: Path) -> None:
    async with receiving() as receiver, webhooks(tmp_path, {"name": "ops", "url": receiver.url}) as made:
        sent = event(reason="<b>\x1b[31m\ud800 " + "x" * 2000)
        made.emit(sent)
        (message,) = await receiver.wait_for()
        message.verify()
        assert message.id == sent.id
        assert abs(int(message.headers["webhook-timestamp"]) - time.time()) < 10
        assert message.headers["content-type"] == "application/json"
        told = json.loads(message.body)
        assert told["type"] == "sandbox.started"
        assert datetime.fromisoformat(told["timestamp"]).astimezone(UTC).timestamp() == pytest.approx(sent.at, abs=0.01)
        assert told["data"]["tenant"] == "acme"
        assert len(told["data"]["reason"]) == 500
        assert message.body.isascii()
        with pytest.raises(WebhookVerificationError):
            message.verify(OTHER_SECRET)
        await emptied(tmp_path)


async def test_while_a_secret_is_exchanged_both_verify(tmp_path: Path) -> None:
    async with receiving() as receiver:
        row = {"name": "ops", "url": receiver.url, "secret": [OTHER_SECRET, SECRET]}
        async with webhooks(tmp_path, row) as made:
            made.emit(event())
            (message,) = await receiver.wait_for()
            message.verify(SECRET)
            message.verify(OTHER_SECRET)


async def test_tenants_and_kinds_are_filtered_for_each_receiver(tmp_path: Path) -> None:
    async with receiving() as acme, receiving() as keys, receiving() as everything:
        rows: list[dict[str, Any]] = [
            {"name": "acme", "url": acme.url, "tenants": ["acme"]},
            {"name": "keys", "url": keys.url, "events": ["key.*"]},
            {"name": "all", "url": everything.url},
        ]
        async with webhooks(tmp_path, *rows) as made:
            made.emit(event(tenant="rival"))
            made.emit(event(EventType.ISOLATION_CHECK_FAILED, ""))
            made.emit(event(EventType.KEY_NEW_NETWORK, "rival"))
            made.emit(event(tenant="acme"))
            await everything.wait_for(4)
            await emptied(tmp_path)
    assert [message.data["tenant"] for message in acme.messages] == ["acme"]
    assert [message.type for message in keys.messages] == ["key.new_network"]
    assert sorted(message.type for message in everything.messages) == [
        "isolation.check_failed", "key.new_network", "sandbox.started", "sandbox.started",
    ]  # fmt: skip


BAD: dict[str, tuple[Behaviour, str]] = {
    "500": (answering(500), "It answered 500."),
    "404": (answering(404, body=b"<html>\x1b[31m"), "It answered 404."),
    "redirect": (answering(307, "Location: http://169.254.169.254/latest"), "a redirect, which is not followed"),
    "hangs": (hanging, "It did not answer within 0.5 seconds."),
    "drips": (dripping, "It did not answer within 0.5 seconds."),
    "hangs up": (hanging_up, "It hung up"),
    "nonsense": (talking_nonsense, "It hung up, or its answer is not HTTP."),
    "60 MB": (sending(60 << 20, 500), "It answered 500."),
    "long header": (answering(200, "X: " + "y" * 2**20), "It hung up, or its answer is not HTTP."),
}


@pytest.mark.parametrize(("behave", "why"), BAD.values(), ids=BAD.keys())
async def test_a_bad_receiver_is_tried_again_and_then_left_with_a_dead_letter(
    tmp_path: Path, behave: Behaviour, why: str
) -> None:
    async with receiving(behave) as bad, receiving() as good:
        rows = {"name": "bad", "url": bad.url}, {"name": "good", "url": good.url}
        async with webhooks(tmp_path, *rows, timeout=0.5) as made:
            sent = event()
            made.emit(sent)
            (message,) = await good.wait_for(1, seconds=5)
            assert message.id == sent.id
            (letter,) = await dead_letters(tmp_path)
    assert (letter.id, letter.receiver, letter.attempts) == (sent.id, "bad", 3)
    assert why in letter.error
    assert {message.id for message in bad.messages} == {sent.id}
    assert len(bad.messages) == 3
    for message in bad.messages:
        message.verify()


async def test_an_answer_of_60_mb_is_not_read(tmp_path: Path) -> None:
    async with receiving(sending(60 << 20)) as receiver, webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(8):
            made.emit(event())
        await receiver.wait_for(8)
        await emptied(tmp_path)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 * 1024


async def test_a_receiver_that_is_gone_gets_no_second_attempt(tmp_path: Path) -> None:
    async with receiving(answering(410)) as receiver, webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
        made.emit(event())
        (letter,) = await dead_letters(tmp_path)
        assert letter.attempts == 1


async def test_a_receiver_that_asks_for_time_gets_it(tmp_path: Path) -> None:
    busy = answering(503, "Retry-After: 600")
    async with receiving(busy) as receiver, webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
        made.emit(event())
        await receiver.wait_for()
        async with looking(tmp_path) as store:
            letter = await until(lambda: [one for one in store.letters(dead=False, count=9) if one.attempts])
        assert letter[0].due - time.time() > 500


async def test_nobody_listens_and_no_such_name(tmp_path: Path) -> None:
    rows = {"name": "closed", "url": "http://127.0.0.1:1/"}, {"name": "lost", "url": "http://no-such-host.invalid/"}
    async with webhooks(tmp_path, *rows) as made:
        made.emit(event())
        letters = {letter.receiver: letter.error for letter in await dead_letters(tmp_path, 2)}
    assert letters["closed"] == "It could not be connected to: Connection refused."
    assert letters["lost"] == "Its name could not be looked up."


def certificate(folder: Path, name: str) -> ssl.SSLContext:
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subject = ["-subj", "/CN=test", "-addext", f"subjectAltName={name}"]
    subprocess.run(["openssl", "req", "-x509", *made, *files, *subject], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


async def test_tls_is_verified_and_an_authority_of_ones_own_can_be_named(tmp_path: Path) -> None:
    tls = await asyncio.to_thread(certificate, tmp_path, "IP:127.0.0.1")
    async with receiving(tls=tls) as receiver:
        rows = (
            {"name": "unknown", "url": receiver.url},
            {"name": "known", "url": receiver.url, "ca_file": str(tmp_path / "cert.pem")},
        )
        async with webhooks(tmp_path, *rows) as made:
            made.emit(event())
            await receiver.wait_for()
            (letter,) = await dead_letters(tmp_path)
    assert letter.receiver == "unknown"
    assert letter.error == "Its certificate could not be verified."
    assert len(receiver.messages) == 1


async def test_a_certificate_of_another_name_and_no_tls_at_all_are_refused(tmp_path: Path) -> None:
    tls = await asyncio.to_thread(certificate, tmp_path, "DNS:other.example.org")
    async with receiving(tls=tls) as other, receiving() as plain:
        authority = str(tmp_path / "cert.pem")
        rows = (
            {"name": "other", "url": other.url, "ca_file": authority},
            {"name": "plain", "url": plain.url.replace("http:", "https:"), "ca_file": authority},
        )
        async with webhooks(tmp_path, *rows, timeout=1) as made:
            made.emit(event())
            letters = {letter.receiver: letter.error for letter in await dead_letters(tmp_path, 2)}
    assert letters == {
        "other": "Its certificate could not be verified.", "plain": "It did not answer within 1 seconds.",
    }  # fmt: skip
    assert not other.messages
    assert not plain.messages


async def test_dead_and_slow_receivers_keep_nobody_waiting(tmp_path: Path) -> None:
    async with receiving(hanging) as dead, receiving() as good:
        rows = [{"name": f"dead{number}", "url": dead.url} for number in range(10)]
        async with webhooks(tmp_path, *rows, {"name": "good", "url": good.url}, timeout=60) as made:
            longest = 0.0
            for number in range(100):
                began = time.perf_counter()
                made.emit(event(number=number))
                longest = max(longest, time.perf_counter() - began)
            await good.wait_for(100, seconds=10)
            assert longest < 0.05
            assert len(dead.messages) <= 40


async def test_an_event_that_was_told_survives_the_end_of_the_service(tmp_path: Path) -> None:
    async with receiving(hanging) as receiver:
        async with webhooks(tmp_path, {"name": "r", "url": receiver.url}, timeout=60) as made:
            sent = event()
            made.emit(sent)
            assert await made.settle()
            await receiver.wait_for()
        receiver.behave = OK
        async with webhooks(tmp_path, {"name": "r", "url": receiver.url}):
            await receiver.wait_for(2)
            await emptied(tmp_path)
    assert [message.id for message in receiver.messages] == [sent.id, sent.id]


async def test_dead_letters_are_sent_again_by_hand_with_the_same_id(tmp_path: Path) -> None:
    async with receiving(answering(500)) as receiver, webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
        sent = event()
        made.emit(sent)
        await dead_letters(tmp_path)
        receiver.behave = OK
        assert await made.retry(None) == 1
        await receiver.wait_for(4)
        await emptied(tmp_path)
    assert {message.id for message in receiver.messages} == {sent.id}


@pytest.mark.parametrize("jump", [-400 * 86400.0, 400 * 86400.0])
async def test_a_clock_that_jumps_neither_holds_messages_back_nor_loses_them(tmp_path: Path, jump: float) -> None:
    shift = 0.0
    async with receiving(answering(500)) as receiver:
        row = {"name": "r", "url": receiver.url}
        async with webhooks(tmp_path, row, retry=(300.0, 300.0), clock=lambda: time.time() + shift) as made:
            sent = event()
            made.emit(sent)
            await receiver.wait_for()
            async with looking(tmp_path) as store:
                await until(lambda: [one for one in store.letters(dead=False, count=9) if one.attempts])
            receiver.behave, shift = OK, jump
            await receiver.wait_for(2)
            await emptied(tmp_path)
    first, second = receiver.messages
    assert first.id == second.id == sent.id
    assert int(second.headers["webhook-timestamp"]) == pytest.approx(time.time() + jump, abs=60)


async def test_a_full_disk_loses_nothing_and_stalls_nobody(tmp_path: Path) -> None:
    """The file may not grow: SQLite says what it says of a full disk."""
    async with receiving() as receiver, webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
        full = "PRAGMA max_page_count = 1"
        await made.on_disk(lambda: made.store._with(lambda db: None))
        await made.on_disk(lambda: made.store._db and made.store._db.execute(full).fetchone())
        sent = [event(reason="x" * 500, number=number) for number in range(200)]
        for one in sent:
            made.emit(one)
        began = time.monotonic()
        assert not await made.settle()
        for _ in range(20):
            made.emit(more := event())
            sent.append(more)
            await made.settle()
        assert time.monotonic() - began < 3
        await made.on_disk(
            lambda: made.store._db and made.store._db.execute("PRAGMA max_page_count = 30000").fetchone()
        )
        await receiver.wait_for(220)
        await emptied(tmp_path)
    assert sorted(message.id for message in receiver.messages) == sorted(one.id for one in sent)


@pytest.mark.parametrize("content", [b"garbage" * 1000, b"", b"SQLite format 3\0" + b"\xff" * 8000])
async def test_a_damaged_queue_is_set_aside(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / queue.FILE).write_bytes(content)
    async with receiving() as receiver, webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
        made.emit(event())
        await receiver.wait_for()
    kept = [path.read_bytes() for path in (tmp_path / "queue").glob(f"{queue.FILE}.bad-*")]
    assert kept == ([content] if content else [])


async def test_a_queue_that_is_damaged_while_it_is_used_is_set_aside(tmp_path: Path) -> None:
    async with receiving(answering(500)) as receiver:
        async with webhooks(tmp_path, {"name": "r", "url": receiver.url}, retry=SLOW) as made:
            for _ in range(50):
                made.emit(event(reason="x" * 500))
            await receiver.wait_for()
        path = tmp_path / "queue" / queue.FILE
        with path.open("r+b") as file:
            for page in range(1, path.stat().st_size // 4096):
                file.seek(page * 4096)
                file.write(b"\xa5" * 4096)
        receiver.behave = OK
        before = len(receiver.messages)
        async with webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
            made.emit(event())
            await receiver.wait_for(before + 1)
    assert list((tmp_path / "queue").glob(f"{queue.FILE}.bad-*"))


async def test_the_queue_is_bounded_and_no_tenant_takes_anothers_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MAX_WAITING", 40)
    monkeypatch.setattr(queue, "MAX_DEAD", 20)

    def work() -> tuple[dict[str, int], dict[str, int], int]:
        store = Store(tmp_path / "queue")
        store.open()
        mine = event(tenant="rival")
        store.add([], [event(tenant="flood") for _ in range(500)], lambda one: ["r"])
        store.add([], [mine], lambda one: ["r"])
        store.add([], [event(tenant="flood") for _ in range(500)], lambda one: ["r"])
        found = []
        for dead in (False, True):
            letters = store.letters(dead=dead, count=1000)
            found.append({name: sum(one.tenant == name for one in letters) for name in ("flood", "rival")})
        dropped = store.dropped()
        store.close()
        return found[0], found[1], dropped

    waiting, dead, dropped = await asyncio.to_thread(work)
    assert waiting == {"flood": 10, "rival": 1}
    assert dead == {"flood": 5, "rival": 0}
    assert dropped == 1000 - 10 - 5


async def test_what_cannot_be_written_is_bounded_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with receiving() as receiver, webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made:
        for _ in range(3000):
            made.emit(event())
        assert await made.settle(60)
    assert [vars(record)["lost"] for record in caplog.records if "were lost" in record.message] == [1000]


async def test_the_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    async with (
        receiving() as first,
        receiving() as second,
        webhooks(tmp_path, {"name": "r", "url": first.url}) as made,
    ):
        file = tmp_path / "webhooks.toml"
        file.write_text("[[receiver]\n")
        await made.look()
        made.emit(event())
        await first.wait_for()
        written(file, {"name": "r", "url": first.url}, {"name": "s", "url": second.url})
        await made.look()
        made.emit(event())
        await second.wait_for()
        await first.wait_for(2)
        first.behave = hanging
        made.emit(event())
        await first.wait_for(3)
        written(file, {"name": "s", "url": second.url})
        await made.look()
        (letter,) = await dead_letters(tmp_path)
        assert letter.error == "WEBHOOKS_FILE has this receiver no more."


async def test_no_log_line_holds_a_secret_or_the_url(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.INFO)
    async with (
        receiving(answering(500, body=SECRET.encode())) as receiver,
        webhooks(tmp_path, {"name": "r", "url": receiver.url}) as made,
    ):
        made.emit(event())
        await dead_letters(tmp_path)
        written(tmp_path / "webhooks.toml", {"name": "r", "url": receiver.url, "secret": SECRET + "x"})
        await made.look()
    told = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    assert "dead letter" in told
    assert "WEBHOOKS_FILE cannot be used" in told
    assert SECRET[6:] not in told
    assert "hidden-in-the-url" not in told
    assert Webhook(SECRET) is not None
