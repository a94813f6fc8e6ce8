"""WEBHOOKS_FILE: what it may say, and that no error of it shows a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubicle.webhooks import receivers
from cubicle.webhooks.events import Event, EventType
from cubicle.webhooks.receivers import BadReceivers, Receiver
from tests.webhooks.receiver import OTHER_SECRET, SECRET, written

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
