"""No hostile file moves the viewer's frame, leads the page to another chat or runs in it: a true Chromium."""

from __future__ import annotations

import json
from html import escape

import pytest
from playwright.async_api import Browser, expect

from tests.browser.whole import LISTEN, told
from tests.http_api.pages.hostile import grant, run
from tests.http_api.pages.visitor import House, visit

pytestmark = [pytest.mark.anyio, pytest.mark.real]
expect.set_options(timeout=60_000)

OUTPUTS = "/mnt/user-data/outputs"
OUT = "This link leads out of the files of this chat."
THIEF = """<p>thief</p><script>
addEventListener("message", ({ ports: [port] }) => port.postMessage({ type: "link", href: "stolen.txt" }));
for (let i = 0; i < 3; i++) parent.postMessage("cubicle-viewer-loaded", "*");
</script>"""
BOX = '<rect width="200" height="80" fill="red"/>'


async def thief(house: House, chat: str) -> str:
    """The address at which the chat's own page would take the place of the viewer."""
    await house.put(chat, f"{OUTPUTS}/thief.html", THIEF.encode())
    return await grant(house, chat, "thief.html")


def notebook(html: str) -> str:
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": [html]}}
    cell = {"cell_type": "code", "execution_count": 1, "metadata": {}, "source": [], "outputs": [output]}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})


@pytest.mark.parametrize(
    ("name", "content", "target"),
    [
        ("xlink.md", f'<svg width="200" height="80"><a xlink:href="THIEF">{BOX}</a></svg>', "svg a"),
        ("svg.md", f'<svg width="200" height="80"><a href="THIEF">{BOX}</a></svg>', "svg a"),
        ("top.md", '<a href="THIEF" target="_top">top</a>', ".prose a"),
        ("book.ipynb", notebook(f'<svg width="200" height="80"><a xlink:href="THIEF">{BOX}</a></svg>'), "svg a"),
        ("flow.mmd", 'graph TD; A[Start]-->B[End]\nclick A href "THIEF" _self\n', ".diagram a"),
    ],
)
async def test_no_link_of_a_file_takes_the_viewer_away(
    house: House, browser: Browser, name: str, content: str, target: str
) -> None:
    async with visit(browser, f"{house.url}/login") as seen:
        await seen.page.add_init_script(LISTEN)
        address = await thief(house, "thief")
        await house.put("thief", f"{OUTPUTS}/{name}", content.replace("THIEF", address).encode())
        await seen.page.goto(f"{house.url}/preview/thief/{name}")
        link = seen.page.frame_locator("iframe.file-frame").locator(target).first
        await expect(link).to_be_visible()
        drag = "e => e.dispatchEvent(new DragEvent('dragstart', { bubbles: true, cancelable: true }))"
        assert await link.evaluate(drag) is False
        for by in ("mouse", "keyboard"):
            await expect(seen.page.get_by_text(OUT)).to_have_count(0)
            await seen.page.evaluate("window.said?.clear()")
            if by == "mouse":
                await link.click()
            else:
                await link.focus()
                await link.press("Enter")
            await told(seen.page, OUT)
            await expect(link).to_be_visible()
            assert not any("/raw/" in frame.url for frame in seen.page.frames)


async def test_what_leads_away_without_a_link_is_not_in_the_page(house: House, browser: Browser) -> None:
    async with visit(browser, f"{house.url}/login") as seen:
        address = escape(await thief(house, "odd-ways"))
        ways = f"""# Ways

<base href="{address}"><meta http-equiv="refresh" content="0;url={address}"><iframe src="{address}"></iframe>
<form action="{address}"><button formaction="{address}">go</button></form><object data="{address}"></object>
<img usemap="#m" width="99" height="99" src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">
<map name="m"><area shape="rect" coords="0,0,99,99" href="{address}"></map>
<svg width="9" height="9"><a xlink:href="javascript:alert(1)">x</a><a><set attributeName="href" to="{address}"/></a></svg>
"""
        await house.put("odd-ways", f"{OUTPUTS}/ways.md", ways.encode())
        await seen.page.goto(f"{house.url}/preview/odd-ways/ways.md")
        shown = seen.page.frame_locator("iframe.file-frame").locator(".prose")
        await expect(shown.get_by_role("heading", name="Ways")).to_be_visible()
        forbidden = "base, meta, iframe, form, [formaction], object, map, area, set, [*|href]"
        assert await shown.evaluate(f"e => [...e.querySelectorAll('{forbidden}')].map((f) => f.outerHTML)") == []
        assert seen.dialogs == []


async def test_a_page_that_took_the_viewers_place_gets_no_channel_and_is_put_out(
    house: House, browser: Browser
) -> None:
    async with visit(browser, f"{house.url}/login") as seen:
        address = await thief(house, "guest")
        await house.put("guest", f"{OUTPUTS}/report.md", b"# Report\n")
        await seen.page.goto(f"{house.url}/preview/guest/report.md")
        heading = seen.page.frame_locator("iframe.file-frame").get_by_role("heading", name="Report")
        await expect(heading).to_be_visible()
        viewer = next(f for f in seen.page.frames if f.url.endswith("/static/viewer"))
        async with (
            seen.page.expect_event("framedetached", lambda frame: frame == viewer),
            seen.page.expect_response(lambda answer: answer.url.endswith(address)),
        ):
            await viewer.evaluate(f"setTimeout(() => {{ location = '{address}' }})")
        await expect(heading).to_be_visible()
        assert seen.page.url == f"{house.url}/preview/guest/report.md"


@pytest.mark.parametrize("embed", ["", "?embed=1"])
async def test_a_link_with_an_encoded_way_up_leads_to_no_other_chat(house: House, browser: Browser, embed: str) -> None:
    await house.put("victim", f"{OUTPUTS}/secret.txt", b"secret of another chat")
    link = "..%2f..%2ffiles%2fvictim%2fsecret.txt"
    await house.put("walker", f"{OUTPUTS}/way.md", f"# Way\n\n[click]({link}) [here](near.md)".encode())
    await house.put("walker", f"{OUTPUTS}/near.md", b"# There\n")
    async with visit(browser, f"{house.url}/login") as seen:
        await seen.page.add_init_script(LISTEN)
        asked: list[str] = []
        seen.page.on("request", lambda request: asked.append(request.url))
        await seen.page.goto(f"{house.url}/preview/walker/way.md{embed}")
        frame = seen.page.frame_locator("iframe.file-frame")
        await frame.get_by_role("link", name="click").click()
        await told(seen.page, OUT)
        assert seen.page.url == f"{house.url}/preview/walker/way.md{embed}"
        await frame.get_by_role("link", name="here").click()
        await expect(frame.get_by_role("heading", name="There")).to_be_visible()
        assert [url for url in asked if "victim" in url] == []


RUN = """([address, type]) => new Promise((done) => {
  const made = Object.assign(document.createElement("script"), { src: address, type });
  made.onload = () => done("ran");
  made.onerror = () => done("refused");
  document.body.append(made);
})"""


async def test_a_script_of_a_chat_runs_in_a_page_of_its_own_and_in_none_of_ours(house: House, browser: Browser) -> None:
    await house.put("code", f"{OUTPUTS}/own.js", b"document.title = 'owned'; document.body.append('it ran')")
    await house.put("code", f"{OUTPUTS}/style.css", b"p { color: rgb(1, 2, 3) }")
    page = b"<link rel=stylesheet href=style.css><p>page</p><script src=own.js></script>"
    await house.put("code", f"{OUTPUTS}/page.html", page)
    async with visit(browser, f"{house.url}/preview/code/page.html") as seen:
        await run(seen.page)
        frame = seen.page.frame_locator("iframe.file-frame")
        await expect(frame.locator("body")).to_contain_text("it ran")
        await expect(frame.locator("p")).to_have_css("color", "rgb(1, 2, 3)")
        raw = (await grant(house, "code", "page.html")).removesuffix("page.html")
        for address in ("/files/code/own.js", f"{raw}own.js"):
            for kind in ("", "module"):
                assert await seen.page.evaluate(RUN, [address, kind]) == "refused"
        assert await seen.page.title() != "owned"
