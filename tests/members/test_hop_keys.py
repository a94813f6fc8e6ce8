"""The secret of the members in a file, as an operator or a cluster changes it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cubicle.core import hop
from cubicle.core.hop import Hop
from cubicle.http_api.member_side import MemberSide
from cubicle.members import hop_keys
from cubicle.members.hop_keys import HopKeys
from cubicle.record import BadRecord

OLD, NEW = "0123456789abcdef-old", "0123456789abcdef-new"


def test_a_secret_in_a_volume_of_a_cluster_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the file is a link into a folder that is a link itself, and which is replaced as a whole."""
    for name, content in (("..first", f"{OLD}\n"), ("..second", f"{NEW}\n{OLD}\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "member-secret").write_text(content)
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / "member-secret").symlink_to("..data/member-secret")
    keys = HopKeys(file=tmp_path / "member-secret")
    assert list(keys.believed) == [OLD.encode()]
    monkeypatch.setattr(hop_keys, "_LOOK_SECONDS", -1.0)
    (tmp_path / "..next").symlink_to("..second")
    (tmp_path / "..next").rename(tmp_path / "..data")
    assert list(keys.believed) == [NEW.encode(), OLD.encode()]
    assert keys.signing == NEW.encode()


def test_what_is_no_secret_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("short\n")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(BadRecord):
        HopKeys(file=tmp_path / "short")
    with pytest.raises((OSError, BadRecord)):
        HopKeys(file=tmp_path / "loop")


async def _status(side: MemberSide, key: bytes) -> int:
    """Of a request that a member signed with this key."""
    value = hop.signed(key, Hop("2-b", "1-a", "http", None), "GET", b"/", time.time())
    told: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
    await side(scope | {"headers": [(hop.HEADER, value)]}, receive, send)
    return int(told[0]["status"])


async def test_a_member_that_has_read_the_new_secret_is_believed_by_one_that_has_not_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    file = tmp_path / "secret"
    file.write_text(f"{OLD}\n")
    side = MemberSide(app, "1-a", HopKeys(file=file), {})
    assert await _status(side, OLD.encode()) == 200
    file.write_text(f"{NEW}\n{OLD}\n")
    monkeypatch.setattr(hop_keys, "_AGAIN_SECONDS", -1.0, raising=False)
    assert await _status(side, NEW.encode()) == 200
    assert await _status(side, OLD.encode()) == 200
    assert await _status(side, b"forged, and long enough") == 421
