"""WEBHOOKS_FILE: what it may say, that no error of it shows a secret, and that what it says next holds."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from cubicle.webhooks import receivers
from cubicle.webhooks.events import Event, EventType
from cubicle.webhooks.receivers import BadReceivers, Receiver
from cubicle.webhooks.store import FILE
from cubicle.webhooks.webhooks import Webhooks
from tests.webhooks.receiver import OTHER_SECRET, SECRET, hanging, receiving, written

URL = "https://ops.example.org/hooks/path-with-a-secret"


def wants(receiver: Receiver, kind: str, tenant: str = "acme") -> bool:
    return receiver.wants(Event(EventType(kind), tenant, {}))


def test_a_receiver_gets_the_events_and_tenants_that_it_names(tmp_path: Path) -> None:
    file = written(
        tmp_path / "webhooks.toml",
        {"name": "all", "url": URL},
        {"name": "some", "url": URL, "events": ["sandbox.*", "quota.reached"], "tenants": ["acme"]},
    )
    everything, some = receivers.read(file)
    assert all(wants(everything, kind.value) for kind in EventType)
    assert wants(everything, "isolation.check_failed", "")
    assert wants(some, "sandbox.failed")
    assert wants(some, "quota.reached")
    assert not wants(some, "key.new_network")
    assert not wants(some, "sandbox.failed", "rival")
    assert not wants(some, "sandbox.failed", "")


BAD = {
    "not TOML": "[[receiver]\nname=",
    "one bracket": '[receiver]\nname = "x"',
    "a name": f'[[receiver]]\nname = "Ops!"\nurl = "{URL}"\nsecret = "{SECRET}"',
    "no url": f'[[receiver]]\nname = "ops"\nsecret = "{SECRET}"',
    "a scheme": f'[[receiver]]\nname = "ops"\nurl = "file:///etc/passwd"\nsecret = "{SECRET}"',
    "a user": f'[[receiver]]\nname = "ops"\nurl = "https://me:{SECRET}@example.org/"\nsecret = "{SECRET}"',
    "a port": f'[[receiver]]\nname = "ops"\nurl = "https://example.org:99999/"\nsecret = "{SECRET}"',
    "a short secret": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "whsec_c2hvcnQ="',
    "a bare secret": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "{SECRET[6:]}"',
    "no base64": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "{SECRET}!"',
    "an event": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "{SECRET}"\nevents = ["sandbox.born"]',
    "no tenants": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "{SECRET}"\ntenants = []',
    "a field": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "{SECRET}"\nuri = "{URL}"',
    "twice": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "{SECRET}"\n' * 2,
    "an authority": f'[[receiver]]\nname = "ops"\nurl = "{URL}"\nsecret = "{SECRET}"\nca_file = "/nowhere.pem"',
    "many": "\n".join(f'[[receiver]]\nname = "r{n}"\nurl = "{URL}"\nsecret = "{SECRET}"' for n in range(21)),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_a_file_that_is_wrong_is_refused_without_showing_what_is_secret(content: str) -> None:
    with pytest.raises(BadReceivers) as refused:
        receivers.parse(content.encode())
    message = str(refused.value)
    assert message.startswith("WEBHOOKS_FILE")
    assert SECRET[6:] not in message
    assert "path-with-a-secret" not in message


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\0" * 100, b"a = " + b"[" * 5000, b"x" * (300 * 1024)])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "webhooks.toml"
    file.write_bytes(content)
    with pytest.raises(BadReceivers):
        receivers.read(file)


def test_no_file_no_folder_and_no_pipe_is_read(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", ".", "pipe"):
        with pytest.raises(BadReceivers):
            receivers.read(tmp_path / name)


def test_a_receiver_does_not_show_its_secrets(tmp_path: Path) -> None:
    (found,) = receivers.read(
        written(tmp_path / "webhooks.toml", {"name": "ops", "url": URL, "secret": [SECRET, OTHER_SECRET]})
    )
    assert SECRET[6:] not in repr(found)
    assert "path-with-a-secret" not in repr(found)
    assert found.host == "https://ops.example.org"


async def test_receivers_that_change_while_the_queue_cannot_be_written_are_told_all_the_same(tmp_path: Path) -> None:
    """Somebody keeps it locked, or the disk refuses for a moment."""
    folder, file = tmp_path / "queue", tmp_path / "webhooks.toml"
    async with receiving(hanging) as old, receiving() as new:
        written(file, {"name": "gone", "url": old.url}, {"name": "moved", "url": old.url})
        async with Webhooks(folder, file) as made:
            sent = Event(EventType.TEST, "acme", {})
            made.emit(sent)
            await old.wait_for(2)
            await made.on_disk(lambda: made.store._db and made.store._db.execute("PRAGMA busy_timeout = 1").fetchone())
            with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                written(file, {"name": "moved", "url": new.url})
                with suppress(sqlite3.Error):
                    await made.look()
            (message,) = await new.wait_for()
            assert message.id == sent.id
            async with asyncio.timeout(20):
                while not (dead := await made.on_disk(made.store.letters, dead=True, count=10)):
                    await asyncio.sleep(0.05)
            assert [letter.receiver for letter in dead] == ["gone"]
