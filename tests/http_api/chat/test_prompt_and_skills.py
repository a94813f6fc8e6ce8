import hashlib
import re

import pytest

from cubicle.core.chat import Chat
from cubicle.core.chat_isolation import Isolation

from .conftest import site_of


@pytest.fixture(scope="module")
async def keyed(fleet, tmp_path_factory):
    users = tmp_path_factory.mktemp("users")
    own = users / hashlib.sha256(b"ann@x.org").hexdigest() / "mine"
    own.mkdir(parents=True)
    (own / "SKILL.md").write_text("---\nname: mine\ndescription: Only Ann's.\n---\n")
    async with site_of(fleet, key="the-api-key", users=users) as site:
        site.client.headers["Authorization"] = "Bearer the-api-key"
        yield site


def chat_in(answer) -> str:
    return re.search(r'^- chat: "(.*)"$', answer.text, re.MULTILINE)[1]  # type: ignore[index]


@pytest.mark.parametrize(
    ("headers", "query", "chat"),
    [
        ({}, {}, "default"),
        ({}, {"chat_id": "q"}, "q"),
        ({"X-Chat-Id": "h"}, {"chat_id": "q"}, "h"),
        ({"X-OpenWebUI-Chat-Id": "o"}, {"chat_id": "q"}, "o"),
        ({"X-Chat-Id": ""}, {"chat_id": " q "}, "q"),
        ({"X-Chat-Id": "{{CHAT}}"}, {"chat_id": "q"}, "q"),
    ],
)
async def test_which_chat_a_prompt_is_for(site, headers, query, chat):
    answer = await site.client.get("/system-prompt", headers=headers, params=query)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-public-base-url"] == "https://box.example/base"
    assert chat_in(answer) == chat


async def test_whose_prompt_it_is(site):
    for headers, query, email in (
        ({"X-User-Email": "h@x"}, {"user_email": "q@x"}, "h@x"),
        ({}, {"user_email": "q@x"}, "q@x"),
    ):
        answer = await site.client.get("/system-prompt", headers=headers, params=query)
        assert f'- user\'s e-mail: "{email}"' in answer.text
    assert "e-mail" not in (await site.client.get("/system-prompt?chat_id=anonymous")).text


async def test_with_one_sandbox_for_all_the_prompt_is_of_the_default_chat(fleet):
    async with site_of(fleet, mode=Isolation.SINGLE) as site:
        assert chat_in(await site.client.get("/system-prompt?chat_id=q", headers={"X-Chat-Id": "h"})) == "default"
        answer = await site.client.post("/api/uploads/any/one.txt", content=b"1")
        assert answer.json()["uri"] == "file://uploads/default/one.txt"
        assert (await site.client.get("/files/other/one.txt")).content == b"1"


async def test_a_prompt_makes_no_sandbox(site):
    await site.client.get("/system-prompt?chat_id=prompt-only")
    assert not [o for o in site.fleet.overview() if o.chat and o.chat.id == "prompt-only"]


async def test_the_link_in_a_prompt_opens_this_chat_and_nothing_else(keyed):
    await keyed.client.post("/api/uploads/linked/report.txt", content=b"for you")
    await keyed.client.post("/api/uploads/other/report.txt", content=b"not for you")
    prompt = (await keyed.client.get("/system-prompt?chat_id=linked")).text
    link = re.search(r"`https://box\.example/base(/preview/linked/PATH\?key=[\w.-]+)`", prompt)[1]  # type: ignore[index]
    query = link.partition("?")[2]
    bare = {"Authorization": ""}
    for path, status in (
        ("/files/linked/report.txt", 200),
        ("/files/linked/", 200),
        ("/files/linked/archive", 200),
        ("/files/other/report.txt", 401),
        ("/files/other/archive", 401),
        ("/api/uploads/other", 401),
        ("/system-prompt", 401),
        ("/skill-list", 401),
        ("/skill-mounts", 401),
    ):
        keyed.client.cookies.clear()
        assert (await keyed.client.get(f"{path}?{query}", headers=bare)).status_code == status, path
        keyed.client.cookies.clear()
        assert (await keyed.client.get(path, headers=bare)).status_code == 401, path


async def test_a_signed_visit_leaves_a_cookie_for_the_next_click(keyed):
    await keyed.client.post("/api/uploads/cookie/a.txt", content=b"a")
    bare = {"Authorization": ""}
    keyed.client.cookies.clear()
    first = await keyed.client.get(f"/files/cookie/a.txt{keyed.links.query(Chat('cookie'))}", headers=bare)
    assert first.content == b"a"
    assert "HttpOnly" in first.headers["set-cookie"]
    assert "samesite=lax" in first.headers["set-cookie"].lower()
    assert (await keyed.client.get("/files/cookie/a.txt", headers=bare)).content == b"a"
    assert (await keyed.client.get("/files/other/report.txt", headers=bare)).status_code == 401
    keyed.client.cookies.clear()


async def test_the_skill_list_as_json_and_as_text(keyed):
    everyone = (await keyed.client.get("/skill-list")).json()["skills"]
    assert len(everyone) == 10
    assert everyone[0]["source"] == "public"
    hers = (await keyed.client.get("/skill-list?user_email=Ann@x.org")).json()["skills"]
    assert {
        "name": "mine",
        "description": "Only Ann's.",
        "location": "/mnt/skills/user/mine/SKILL.md",
        "source": "user",
    } in hers
    text = await keyed.client.get("/skill-list", headers={"Accept": "text/plain", "X-User-Email": "ann@x.org"})
    assert text.headers["content-type"].startswith("text/plain")
    assert "- mine (/mnt/skills/user/mine/SKILL.md): Only Ann's.\n" in text.text


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/html, application/xhtml+xml, */*;q=0.8", "application/json"),
        ("text/plain", "text/plain"),
        ("Text/Plain; charset=utf-8", "text/plain"),
        ("text/*", "text/plain"),
        ("text/plain, */*", "text/plain"),
        ("*/*, text/plain", "text/plain"),
        ("text/plain, application/json", "text/plain"),
        ("application/json, text/plain, */*", "application/json"),
        ("text/plain;q=0", "application/json"),
        ("text/*, text/plain;q=0.0", "application/json"),
        ("text/plain;q=0.1, application/json", "application/json"),
        ("text/plain;q=0.1, */*", "application/json"),
        ("application/json;q=0.5, text/plain; q=0.9", "text/plain"),
        ("application/json;q=0.5, text/plain;Q=1", "text/plain"),
        ("text/plain;q=nan, application/json;q=0", "text/plain"),
        (",;q=1,/;=,text/plain;q=", "text/plain"),
    ],
)
async def test_the_skill_list_is_of_the_type_that_the_client_would_rather_have(keyed, accept, kind):
    answer = await keyed.client.get("/skill-list", headers={"Accept": accept})
    assert answer.headers["content-type"].partition(";")[0] == kind


async def test_skill_mounts_name_places_in_the_sandbox_only(keyed, tmp_path_factory):
    assert (await keyed.client.get("/skill-mounts")).json() == {"mounts": []}
    answer = await keyed.client.get("/skill-mounts?user_email=ann@x.org")
    assert answer.json() == {"mounts": [{"name": "mine", "target": "/mnt/skills/user/mine", "mode": "ro"}]}
    assert str(tmp_path_factory.getbasetemp()) not in answer.text


@pytest.mark.parametrize("path", ["/system-prompt", "/skill-list", "/skill-mounts"])
async def test_the_key_is_asked_for(keyed, path):
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong-key"}):
        answer = await keyed.client.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
