"""Who comes first by the terminal or the browser finds what a tool's caller finds: the whole service, over HTTP.

Whether these can be started here is no matter: the sandbox is ready before they are.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from cubicle.app import running
from cubicle.drivers.factory import make_driver
from cubicle.settings import Settings
from tests.support.service import ACCEPT, serve

KEY = {"Authorization": "Bearer a-good-key"}
ANN = {"X-User-Email": "ann@x.org", "X-User-Name": "Ann"}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    users = tmp_path_factory.mktemp("users")
    own = users / hashlib.sha256(b"ann@x.org").hexdigest() / "mine"
    own.mkdir(parents=True)
    (own / "SKILL.md").write_text("---\nname: mine\ndescription: Only Ann's.\n---\n")
    return Settings(  # type: ignore[call-arg]
        _env_file=None,
        driver="memory",
        data_dir=tmp_path_factory.mktemp("visits"),
        pool_size=0,
        mcp_api_key="a-good-key",
        user_skills_dir=users,
    )


@pytest.fixture(scope="module")
async def client(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield client
    driver = make_driver(settings)
    await driver.open()
    for seen in await driver.list():
        await driver.delete(seen.name)


async def readme(client: httpx.AsyncClient, chat: str) -> str:
    answer = await client.get(f"/files/{chat}/workspace/README.md", headers=KEY)
    assert answer.status_code == 200, answer.text
    return answer.text


async def skills(settings: Settings, chat: str) -> set[str]:
    """The folders under /mnt/skills of the sandbox whose README.md names the chat."""

    def look() -> set[str]:
        (home,) = [p for p in settings.data_dir.glob("memory/*/home/README.md") if f'chat: "{chat}"' in p.read_text()]
        place: Path = home.parent.parent / "skills"
        return {f.parent.relative_to(place).as_posix() for f in place.glob("*/*/SKILL.md")}

    return await asyncio.to_thread(look)


@pytest.mark.parametrize(("chat", "path"), [("t", "/terminal/t/start-ttyd"), ("b", "/browser/b/start")])
async def test_readme_and_skills_are_there_at_the_first_use_by_hand(
    client: httpx.AsyncClient, settings: Settings, chat: str, path: str
) -> None:
    await client.post(path, headers=KEY | ANN)
    text = await readme(client, chat)
    assert text.startswith("# Your computer")
    assert '"ann@x.org"' in text
    assert "/mnt/skills/user/mine/SKILL.md" in text
    found = await skills(settings, chat)
    assert {"public/pdf", "user/mine"} <= found
    assert len(found) == 11


async def test_a_link_brings_nobody_elses_skills(client: httpx.AsyncClient, settings: Settings) -> None:
    prompt = (await client.get("/system-prompt", params={"chat_id": "linked"}, headers=KEY)).text
    key = prompt.split("?key=", 1)[1].split()[0].strip("`)")
    await client.post("/terminal/linked/start-ttyd", params={"key": key}, headers=ANN)
    assert "ann@x.org" not in await readme(client, "linked")
    found = await skills(settings, "linked")
    assert "public/pdf" in found
    assert "user/mine" not in found


async def test_a_visitor_who_names_nobody_leaves_the_callers_readme(client: httpx.AsyncClient) -> None:
    call = {"name": "bash_tool", "arguments": {"command": "true", "description": "test"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = await client.post("/mcp", json=body, headers=KEY | ANN | {"Accept": ACCEPT, "X-Chat-Id": "hers"})
    assert answer.status_code == 200
    before = await readme(client, "hers")
    assert '"ann@x.org"' in before
    await client.post("/terminal/hers/start-ttyd", headers=KEY)
    assert await readme(client, "hers") == before
