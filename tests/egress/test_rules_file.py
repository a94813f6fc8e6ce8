"""The rules file: what it says, for whom, and what happens when it changes."""

from __future__ import annotations

import json
import logging
import os
from ipaddress import ip_address
from pathlib import Path

import pytest

from cubicle.core.chat import Chat
from cubicle.core.network import NetworkMode
from cubicle.egress.policy import Policy, Request, Target, judge
from cubicle.egress.rules_file import BadRules, RulesFile

pytestmark = pytest.mark.anyio

CHAT = Chat("one")
BOOK = """
mode = "allowlist"
contact = "it@example.com"
max_connections = 7

[[rules]]
name = "docs"
hosts = ["docs.example.com"]
ports = [443, "8000-8010"]

[chats.one]
mode = "none"

[tenants.acme]
max_mb_per_day = 3
[[tenants.acme.rules]]
name = "acme only"
hosts = ["*.acme.example"]
[tenants.acme.chats.one]
mode = "open"
contact = "boss@acme.example"
[[tenants.acme.chats.one.rules]]
name = "not this"
action = "deny"
hosts = ["docs.example.com"]
"""


async def book(path: Path, text: str, mode: NetworkMode = NetworkMode.OPEN) -> RulesFile:
    path.write_text(text)
    path.chmod(0o600)
    rulebook = RulesFile(path, Policy(mode))
    await rulebook.open()
    return rulebook


def allows(policy: Policy, host: str, port: int = 443) -> bool:
    return judge(policy, Request(Target.parse(host, port)), ip_address("8.8.8.8")).allowed


async def test_without_a_file_the_settings_hold() -> None:
    rulebook = RulesFile(None, Policy(NetworkMode.ALLOWLIST))
    await rulebook.open()
    assert await rulebook.policy(CHAT) == Policy(NetworkMode.ALLOWLIST)


async def test_the_file_holds_for_all(tmp_path: Path) -> None:
    policy = await (await book(tmp_path / "r.toml", BOOK)).policy(Chat("two"))
    assert (policy.mode, policy.contact, policy.most_connections) == (NetworkMode.ALLOWLIST, "it@example.com", 7)
    assert allows(policy, "docs.example.com")
    assert allows(policy, "docs.example.com", 8010)
    assert not allows(policy, "docs.example.com", 8011)


async def test_a_chat_has_its_own_mode(tmp_path: Path) -> None:
    rulebook = await book(tmp_path / "r.toml", BOOK)
    assert (await rulebook.policy(CHAT)).mode is NetworkMode.NONE


async def test_a_tenant_has_its_own_rules_and_limits_before_those_for_all(tmp_path: Path) -> None:
    rulebook = await book(tmp_path / "r.toml", BOOK)
    policy = await rulebook.policy(Chat("two", "acme"))
    assert [rule.name for rule in policy.rules] == ["acme only", "docs"]
    assert policy.most_bytes == 3 << 20
    assert allows(policy, "x.acme.example")
    assert not allows(await rulebook.policy(Chat("two", "other")), "x.acme.example")


async def test_a_chat_of_a_tenant_comes_before_its_tenant(tmp_path: Path) -> None:
    rulebook = await book(tmp_path / "r.toml", BOOK)
    policy = await rulebook.policy(Chat("one", "acme"))
    assert (policy.mode, policy.contact) == (NetworkMode.OPEN, "boss@acme.example")
    assert [rule.name for rule in policy.rules] == ["not this", "acme only", "docs"]
    assert not allows(policy, "docs.example.com")
    assert (await rulebook.policy(Chat("one", "other"))).mode is NetworkMode.ALLOWLIST, (
        "chats of the file are the main tenant's"
    )


async def test_the_same_in_json(tmp_path: Path) -> None:
    text = json.dumps({"mode": "allowlist", "rules": [{"name": "a", "hosts": ["a.org"], "ports": [443]}]})
    policy = await (await book(tmp_path / "r.json", text)).policy(CHAT)
    assert allows(policy, "a.org")
    assert not allows(policy, "b.org")


async def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    rulebook = await book(path, 'mode = "none"')
    assert (await rulebook.policy(CHAT)).mode is NetworkMode.NONE
    path.write_text('mode = "open"\n')
    assert (await rulebook.policy(CHAT)).mode is NetworkMode.OPEN


async def test_a_replaced_file_of_the_same_size_and_time_is_read_again(tmp_path: Path) -> None:
    path, other = tmp_path / "r.toml", tmp_path / "new.toml"
    rulebook = await book(path, 'mode = "none"')
    other.write_text('mode = "open"')
    stat = path.stat()
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.rename(path)
    assert (await rulebook.policy(CHAT)).mode is NetworkMode.OPEN


async def test_a_change_that_cannot_be_used_leaves_the_rules_from_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "r.toml"
    rulebook = await book(path, 'mode = "allowlist"')
    path.write_text("mode = ")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert (await rulebook.policy(CHAT)).mode is NetworkMode.ALLOWLIST
    assert len(caplog.records) == 1
    path.unlink()
    assert (await rulebook.policy(CHAT)).mode is NetworkMode.ALLOWLIST
    path.write_text('mode = "none"')
    assert (await rulebook.policy(CHAT)).mode is NetworkMode.NONE


async def test_a_secret_lies_in_a_file_of_its_own_and_is_read_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    token.chmod(0o600)
    rules = """
[[rules]]
name = "api"
hosts = ["api.example.com"]
inject.Authorization = { file = "token", prefix = "Bearer " }
inject.X-Plain = "written here"
"""
    rulebook = await book(tmp_path / "r.toml", rules)
    assert (await rulebook.policy(CHAT)).rules[0].inject[0] == ("Authorization", "Bearer first")
    token.write_text("second\n")
    assert dict((await rulebook.policy(CHAT)).rules[0].inject) == {
        "Authorization": "Bearer second",
        "X-Plain": "written here",
    }


async def test_secrets_that_others_can_read_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "r.toml"
    path.write_text('[[rules]]\nname = "a"\nhosts = ["a.org"]\ninject.X = "hunter2"')
    path.chmod(0o644)
    await RulesFile(path, Policy(NetworkMode.OPEN)).open()
    assert "chmod 600" in caplog.text
    assert "hunter2" not in caplog.text


BAD = [
    ("nothing = 1", "nothing"),
    ('mode = "closed"', "mode"),
    ("mode = ", "not TOML"),
    ('[[rules]]\nhosts = ["a.org"]', "rules.0.name"),
    ('[[rules]]\nname = "a"\nhosts = ["*"]', "too broad"),
    ('[[rules]]\nname = "a"\nhosts = ["*.com"]', "too broad"),
    ('[[rules]]\nname = "a"\naddresses = ["10.0.0.1/8"]', "host bits"),
    ('[[rules]]\nname = "a"\naddresses = ["ten"]', "rules.0.addresses"),
    ('[[rules]]\nname = "a"\nports = [0]', "ports go from 1"),
    ('[[rules]]\nname = "a"\nports = ["9-1"]', "ports go from 1"),
    ('[[rules]]\nname = "a"\nports = ["x"]', "a port is a number"),
    ('[[rules]]\nname = "a"\nports = [true]', "a port is a number"),
    ('[[rules]]\nname = "a"\nmethods = ["get"]', "rules.0.methods"),
    ('[[rules]]\nname = "a"\npaths = ["x"]', "starts with /"),
    ('[[rules]]\nname = "a\\nb"', "rules.0.name"),
    ('[[rules]]\nname = "a"\ninject.X = "hunter2"', "inject"),
    ('[[rules]]\nname = "a"\nhosts = ["a.org"]\ninject.X = "hunter2\\n"', "one line"),
    ('[[rules]]\nname = "a"\nhosts = ["a.org"]\ninject.X = ["hunter2"]', "inject"),
    ('[[rules]]\nname = "a"\nhosts = ["a.org"]\ninject.X = { file = "missing" }', "cannot be read"),
    ("max_connections = 0", "max_connections"),
    ("#" * (1024 * 1024 + 1), "1 MiB"),
]


@pytest.mark.parametrize(("text", "named"), BAD, ids=[named for _, named in BAD])
async def test_a_file_that_cannot_be_used_stops_the_start_with_a_sentence(
    tmp_path: Path, text: str, named: str
) -> None:
    with pytest.raises(BadRules, match="EGRESS_RULES_FILE") as caught:
        await book(tmp_path / "r.toml", text)
    assert named in str(caught.value)
    assert "hunter2" not in str(caught.value)


async def test_a_missing_file_stops_the_start() -> None:
    with pytest.raises(BadRules, match="No such file"):
        await RulesFile(Path("/nonexistent/rules.toml"), Policy(NetworkMode.OPEN)).open()
