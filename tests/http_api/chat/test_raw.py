"""Files under /raw: what each kind of capability opens, and what a browser may do with the answer."""

import pytest

from cubicle.core.chat import Chat
from cubicle.core.signing import Grant, Reach
from cubicle.http_api.page_guard import GUARD, guarded

CHAT = Chat("raw")
OUTPUTS = "/mnt/user-data/outputs"


@pytest.fixture(scope="module")
async def filled(site):
    await site.bash(
        CHAT,
        f"""cd {OUTPUTS} && mkdir -p site/sub 'od;d, ü' && echo '<p>page' | tee site/x.xhtml > site/index.html
        cp site/index.html 'od;d, ü/a b.html'; echo own > site/sub/own.txt; echo other > other.txt
        echo dot > site/.dot; echo '<svg/>' > pic.svg; echo home > ~/home.txt
        ln -s ~/home.txt site/out.txt; ln -s {OUTPUTS} site/up; ln -s site/index.html front.html; mkdir -p ~/loop""",
    )
    return site


async def granted(site, path, query=""):
    answer = await site.client.post(f"/api/chats/raw/raw/{path}{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_page_is_shown_without_scripts_unless_they_are_asked_for(filled):
    told = await granted(filled, "site/index.html")
    assert told["folder"] == "outputs/site"
    answer = await filled.client.get(f"/{told['url']}")
    assert answer.content == b"<p>page\n"
    policy = answer.headers["content-security-policy"]
    base = told["url"].removesuffix("index.html")
    assert policy.startswith("sandbox; default-src 'none'; ")
    assert f"img-src {filled.url}/{base} https://box.example/base/{base} data: blob:" in policy
    assert "allow-scripts" not in policy
    assert "script-src" not in policy
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "set-cookie" not in answer.headers


async def test_a_page_with_scripts_comes_whole_behind_the_guard(filled):
    told = await granted(filled, "site/index.html", "?scripts=1")
    base = told["url"].removesuffix("index.html")
    for headers in ({}, {"Range": "bytes=0-2"}):
        answer = await filled.client.get(f"/{told['url']}", headers=headers)
        assert (answer.status_code, answer.content) == (200, GUARD + b"<p>page\n")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith(
            f"sandbox allow-scripts; default-src {filled.url}/{base} https://box.example/base/{base} "
        )
        assert all(part in policy for part in ("webrtc 'block'", "frame-src 'none'", "object-src 'none'"))
        assert "allow-same-origin" not in policy
    head = await filled.client.head(f"/{told['url']}")
    assert (head.status_code, "content-length" in head.headers) == (200, False)
    for name in ("x.xhtml", "sub/own.txt"):  # what cannot take the guard runs nothing
        answer = await filled.client.get(f"/{base}{name}")
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'; ")


@pytest.mark.parametrize(
    "way",
    [
        "../other.txt",
        "..%2fother.txt",
        "%2e%2e/other.txt",
        "..%252fother.txt",
        "..%5cother.txt",
        "sub/../../other.txt",
        "sub/%2e%2e/%2e%2e/other.txt",
        "out.txt",
        "up/other.txt",
        ".dot",
        "%2edot",
        "sub",
        "sub/",
        "",
        "/etc/passwd",
        "%00",
    ],
)
@pytest.mark.parametrize("scripts", ["?scripts=1", ""])
async def test_no_spelling_leads_out_of_the_folder(filled, way, scripts):
    base = (await granted(filled, "site/index.html", scripts))["url"].removesuffix("index.html")
    request = f"GET /{base}{way} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    status, answer = await filled.raw(request)
    assert status in (400, 401, 404), answer
    assert not any(content in answer for content in (b"other\n", b"home\n", b"dot\n", b"root:"))


async def test_the_capability_of_one_folder_opens_no_other(filled):
    capability = (await granted(filled, "site/index.html"))["url"].split("/")[1]
    for path in ("outputs/other.txt", "workspace/home.txt", "other.txt", "site/sub/own.txt", "outputs/site2/x"):
        assert (await filled.client.get(f"/raw/{capability}/{path}")).status_code == 401
    assert (await filled.client.get(f"/raw/{capability}/outputs/site/sub/own.txt")).content == b"own\n"


async def test_all_files_of_the_chat_when_the_person_allows_it(filled):
    told = await granted(filled, "site/index.html", "?all=1")
    assert told["folder"] == ""
    capability = told["url"].split("/")[1]
    for path in ("outputs/other.txt", "workspace/home.txt", "outputs/site/out.txt"):
        assert (await filled.client.get(f"/raw/{capability}/{path}")).status_code == 200


async def test_names_that_a_policy_could_misread_stand_encoded_in_it(filled):
    told = await granted(filled, "od;d, ü/a b.html", "?scripts=1")
    answer = await filled.client.get(f"/{told['url']}")
    assert answer.status_code == 200
    assert "/outputs/od%3Bd%2C%20%C3%BC/ " in answer.headers["content-security-policy"]


async def test_a_link_to_a_page_counts_as_the_page_where_it_lies(filled):
    told = await granted(filled, "front.html")
    assert (told["folder"], told["url"].endswith("/outputs/site/index.html")) == ("outputs/site", True)


async def test_there_is_no_capability_for_what_is_no_file(filled):
    for path in ("site", "none.html", "site/none.html", ""):
        assert (await filled.client.post(f"/api/chats/raw/raw/{path}")).status_code in (400, 404)
    foreign = await filled.client.post("/api/chats/raw/raw/site/index.html", headers={"Origin": "null"})
    assert foreign.status_code == 403
    assert (await filled.client.get("/api/chats/raw/raw/site/index.html")).status_code == 405


async def test_the_viewers_get_pictures_only(filled):
    base = f"/raw/{filled.links.capability(Grant(CHAT, Reach.PICTURES))}/"
    assert (await filled.client.get(base + "pic.svg")).status_code == 200
    for path in ("site/index.html", "other.txt", "workspace/home.txt", "site/"):
        assert (await filled.client.get(base + path)).status_code == 404


async def test_what_is_no_capability_opens_nothing(filled):
    for text in ("1.a.b.c", "1.a.b.h0.c", filled.links.key(CHAT), ".."):
        assert (await filled.client.get(f"/raw/{text}/outputs/other.txt")).status_code in (401, 404)


@pytest.mark.parametrize("query", ["", "?scripts=1", "?all=1"])
async def test_a_tab_is_led_to_the_viewer(filled, query):
    told = await granted(filled, "od;d, ü/a b.html", query)
    answer = await filled.client.get(f"/{told['url']}", headers={"Sec-Fetch-Dest": "document"})
    assert answer.status_code == 303
    assert str(answer.next_request.url) == f"{filled.url}/preview/raw/outputs/od%3Bd%2C%20%C3%BC/a%20b.html"
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("size", [1, 3, 13, 14, 15, 100])
async def test_no_chunk_of_a_page_hides_a_shadow_tree_of_the_parser(size):
    page = b"<template ShadowRootMode=closed>x</template> shadowrootmod shadowrootmode" * 3

    async def chunks():
        for start in range(0, len(page), size):
            yield page[start : start + size]

    whole = b"".join([part async for part in guarded(chunks())])
    assert whole.startswith(GUARD)
    assert b"shadowrootmode" not in whole[len(GUARD) :].lower()
    assert len(whole) == len(GUARD) + len(page)


async def test_a_file_by_capability_is_charged_to_its_chat(filled, monkeypatch):
    """Not to strangers: behind a reverse proxy all those who sign in have one address."""
    charged = []

    async def note(_scope, tenant, chat):
        charged.append((tenant, chat))

    monkeypatch.setattr("cubicle.http_api.raw.charge_to", note)
    told = await granted(filled, "site/index.html")
    assert (await filled.client.get(f"/{told['url']}")).status_code == 200
    assert charged == [(CHAT.tenant, CHAT.id)]
