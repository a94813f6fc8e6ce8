"""The proxy as an sandbox_service of the fleet: every machine in use has one, and each chat its own policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.drivers.memory import MemoryDriver
from cubicle.egress.proxy import EgressProxy
from cubicle.sandbox.chat_index import ChatIndex
from cubicle.sandbox.fleet import Fleet
from tests.egress.conftest import OPEN, Audit, names, shell
from tests.egress.servers import http_server

pytestmark = pytest.mark.anyio


async def test_each_chat_has_its_proxy_and_its_policy(tmp_path: Path, audit: Audit) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[chats.closed]\nmode = "none"\n[tenants.acme]\nmode = "allowlist"\ncontact = "acme"')
    proxy = EgressProxy(OPEN, folder=tmp_path / "egress", rules_file=rules, resolve=names)
    fleet = Fleet(MemoryDriver(tmp_path), ChatIndex(tmp_path / "chats"), pool_size=0, sandbox_services=[proxy.attached])
    chats = [Chat("open"), Chat("closed"), Chat("closed", "acme")]
    with http_server(tmp_path) as server:
        async with proxy, fleet:
            answers = []
            for chat in chats:
                async with fleet.lease(chat) as machine:
                    answers.append(await shell(machine, f"curl -sS http://web.test:{server.port}/echo"))
            for chat in chats[1:]:
                await fleet.remove(chat)
            await fleet.stop(chats[0])
            async with fleet.lease(chats[0]) as machine:
                again = await shell(machine, f"curl -sS http://web.test:{server.port}/echo")
            await fleet.remove(chats[0])
    assert json.loads(answers[0])["method"] == json.loads(again)["method"] == "GET"
    assert "mode none" in answers[1]
    assert "ask acme for a rule" in answers[2]
    assert [(line["tenant"], line["chat"], line["event"]) for line in audit.lines if line["event"] != "closed"] == [
        ("main", "open", "allowed"),
        ("main", "closed", "denied"),
        ("acme", "closed", "denied"),
        ("main", "open", "allowed"),
    ]
