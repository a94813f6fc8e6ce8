"""HTML that a model made, in a true Chromium: without scripts before the click, in its own folder after it."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, expect

from tests.http_api.pages.hostile import OUTPUTS, framed, grant, run, stun, udp_listener
from tests.http_api.pages.visitor import House, Visit, accessible, visit
from tests.http_api.pages.visitor import house as house_with
from tests.support.chromium import AFAR

pytestmark = [pytest.mark.anyio, pytest.mark.real]

READS = """<!doctype html><link rel=stylesheet href=style.css><p id=out>before</p><img src=dot.svg><script>
const read = (way) => fetch(way).then(async (a) => a.ok ? (await a.text()).trim() : String(a.status), () => "refused");
(async () => {
  const ways = WAYS;
  const found = {};
  for (const way of ways) found[way] = await read(way);
  document.getElementById("out").textContent = JSON.stringify(found);
})();
</script>"""
DOT = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9" fill="red"/></svg>'


async def test_scripts_run_after_one_click_which_is_remembered_for_the_chat(house: House, browser: Browser) -> None:
    page_of = b"<!doctype html><link rel=stylesheet href=style.css><p>static</p><script src=own.js></script>"
    for chat in ("click", "other"):
        await house.put(chat, f"{OUTPUTS}/site/index.html", page_of)
        await house.put(chat, f"{OUTPUTS}/site/own.js", b"document.querySelector('p').textContent = 'it ran'")
        await house.put(chat, f"{OUTPUTS}/site/style.css", b"p { color: rgb(1, 2, 3) }")
    async with visit(browser, f"{house.url}/preview/click/site/index.html") as seen:
        shown = framed(seen.page).locator("p")
        await expect(shown).to_have_text("static")
        await expect(shown).to_have_css("color", "rgb(1, 2, 3)")
        frame = seen.page.locator("iframe.file-frame.page")
        assert await frame.get_attribute("sandbox") == ""
        await expect(seen.page.get_by_text("Shown without scripts.")).to_be_visible()
        await expect(seen.page.get_by_text("It reads files in outputs/site only.")).to_be_visible()
        await accessible(seen.page)
        await run(seen.page)
        await expect(shown).to_have_text("it ran")
        assert await frame.get_attribute("sandbox") == "allow-scripts"
        await accessible(seen.page)
        await seen.page.reload()
        await expect(shown).to_have_text("it ran")
        await seen.page.goto(f"{house.url}/preview/other/site/index.html")
        await expect(shown).to_have_text("static")
        await seen.page.goto(f"{house.url}/preview/click/site/index.html")
        await seen.page.get_by_role("button", name="Stop scripts").click()
        await expect(shown).to_have_text("static")


async def test_a_page_reads_its_own_folder_and_more_only_when_the_person_allows_it(
    house: House, browser: Browser
) -> None:
    chat = "reads"
    await house.put(chat, f"{OUTPUTS}/secret.txt", b"of outputs")
    await house.put(chat, "~/home.txt", b"of home")
    await house.put(chat, f"{OUTPUTS}/site/own.txt", b"own")
    await house.put(chat, f"{OUTPUTS}/site/sub/below.txt", b"below")
    await house.put(chat, f"{OUTPUTS}/site/.hidden", b"hidden")
    await house.put(chat, f"{OUTPUTS}/site2/near.txt", b"near")
    await house.bash(chat, f"ln -s ~/home.txt {OUTPUTS}/site/link.txt; ln -s .. {OUTPUTS}/site/up")
    inside = {"own.txt": "own", "sub/below.txt": "below", "./sub/../own.txt": "own"}
    outside = [
        "../secret.txt",
        "..%2fsecret.txt",
        "%2e%2e/secret.txt",
        "%2e%2e%2fsecret.txt",
        "..%252fsecret.txt",
        "..%5csecret.txt",
        "sub/..%2f..%2fsecret.txt",
        "../site2/near.txt",
        "../../workspace/home.txt",
        "../../home.txt",
        "link.txt",
        "up/secret.txt",
        ".hidden",
        "%2ehidden",
    ]
    page = READS.replace("WAYS", json.dumps([*inside, *outside]))
    await house.put(chat, f"{OUTPUTS}/site/index.html", page.encode())
    async with visit(browser, f"{house.url}/preview/{chat}/site/index.html") as seen:
        shown = framed(seen.page).locator("#out")
        await run(seen.page)
        await expect(shown).to_contain_text("own.txt")
        found = json.loads(await shown.inner_text())
        assert {way: found[way] for way in inside} == inside
        # By the policy of the page where the address leaves the folder, by the service where it only seems not to.
        assert {found[way] for way in outside} <= {"refused", "400", "401", "404"}, found
        await seen.page.get_by_role("button", name="Allow all files of this chat").click()
        await expect(shown).to_contain_text("of outputs")
        found = json.loads(await shown.inner_text())
        assert (found["../secret.txt"], found["../../workspace/home.txt"]) == ("of outputs", "of home")
        assert found["link.txt"] == "of home"
        await seen.page.reload()  # more was allowed once, not for good
        await expect(seen.page.get_by_text("It reads files in outputs/site only.")).to_be_visible()


async def test_a_trusted_set_up_runs_pages_without_a_click(browser: Browser, tmp_path: Path) -> None:
    async with house_with(tmp_path, pages_run_scripts=True) as house:
        page = b"<p>static</p><script>document.querySelector('p').textContent = 'it ran'</script>"
        await house.put("trusted", f"{OUTPUTS}/page.html", page)
        async with visit(browser, f"{house.url}/preview/trusted/page.html") as seen:
            await expect(framed(seen.page).locator("p")).to_have_text("it ran")
            await seen.page.get_by_role("button", name="Stop scripts").click()
            await expect(framed(seen.page).locator("p")).to_have_text("static")
            await seen.page.reload()
            await expect(framed(seen.page).locator("p")).to_have_text("static")


SRCDOC = '<iframe srcdoc="{stun}"></iframe>'
TRICKS = {
    "direct": "<script>{js}</script>",
    "in a frame": SRCDOC,
    "in a frame of script": '<iframe src="javascript:{js}"></iframe>',
    "in a frame made later": "<script>setTimeout(() => {{ const f = document.createElement('iframe');"
    "f.srcdoc = {text}; document.body.append(f) }}, 50)</script><body>",
    "in a closed shadow tree": "<div id=h></div><script>document.getElementById('h')"
    ".attachShadow({{ mode: 'closed' }}).innerHTML = {frame}</script>",
    "in a shadow tree of the parser": "<div><template ShadowRootMode=closed>" + SRCDOC + "</template></div>",
    "in a shadow tree of setHTMLUnsafe": "<div id=h></div><script>document.getElementById('h').setHTMLUnsafe("
    "'<div><template shadowroot' + 'mode=closed>' + {frame} + '</template></div>')</script>",
    "in a shadow tree written": "<script>document.write('<div><template shadowroot');"
    "document.write('mode=closed>' + {frame} + '</template></div>')</script>",
    "in a cloned shadow tree": "<script>const h = document.createElement('div');"
    "h.attachShadow({{ mode: 'closed', clonable: true }}).innerHTML = {frame};"
    "document.documentElement.append(h.cloneNode(true))</script>",
    "with the guard's own tools broken": "<body><script>Element.prototype.remove = () => 0;"
    "NodeList.prototype.item = () => null; Document.prototype.querySelectorAll = () => [];"
    "const f = document.createElement('iframe'); f.srcdoc = {text}; document.body.append(f)</script>",
    "from data": "<script>location = 'data:text/html,' + encodeURIComponent({text})</script>",
    "from a blob": "<script>location = URL.createObjectURL(new Blob([{text}], {{ type: 'text/html' }}))</script>",
    "from an SVG": "<script>location = 'stun.svg'</script>",
    "from XHTML": "<script>location = 'stun.xhtml'</script>",
    "from a file of frames": '<frameset><frame src="javascript:{js}"></frameset>',
}


async def test_no_trick_of_a_page_gets_webrtc_back(house: House, browser: Browser) -> None:
    """All at once, each in a tab of its own; a page that nobody guards shows that the packets would be heard."""
    chat = "webrtc"
    async with udp_listener() as heard, udp_listener() as control:
        js = stun(heard.port)
        inline = f"<script>{js}</script>"
        xml = f"<script xmlns='http://www.w3.org/1999/xhtml'>{escape(js)}</script>"
        await house.put(chat, f"{OUTPUTS}/stun.svg", f'<svg xmlns="http://www.w3.org/2000/svg">{xml}</svg>'.encode())
        await house.put(
            chat,
            f"{OUTPUTS}/stun.xhtml",
            f'<html xmlns="http://www.w3.org/1999/xhtml"><body>{xml}</body></html>'.encode(),
        )
        frame = SRCDOC.format(stun=escape(inline))
        as_text = {"text": json.dumps(inline), "frame": json.dumps(frame)}
        as_text = {name: text.replace("</", "<\\/") for name, text in as_text.items()}
        async with visit(browser, f"{house.url}/preview/{chat}/") as seen:
            await seen.page.evaluate("(chat) => localStorage.setItem(`cubicle.run.${chat}`, 'true')", chat)
            for number, (name, trick) in enumerate(TRICKS.items()):
                page = trick.format(js=escape(js), stun=escape(inline), **as_text)
                page = f"<!doctype html><title>{name}</title><p>page {number}</p>{page}"
                if "<frameset>" in trick:
                    page = page.replace(f"<p>page {number}</p>", "")
                elif trick.startswith("<script>{js}"):
                    page = page.replace(escape(js), js)
                await house.put(chat, f"{OUTPUTS}/trick-{number}.html", page.encode())
                tab = await seen.page.context.new_page()
                async with tab.expect_response(lambda answer: "/raw/" in answer.url) as answered:
                    await tab.goto(f"{house.url}/preview/{chat}/trick-{number}.html?embed=1")  # without a stream
                assert (await answered.value).status == 200, name
                await expect(tab.get_by_text("Scripts run.")).to_be_visible()
            # Their time is what an unguarded page takes, twice over.
            for _ in range(2):
                tab = await seen.page.context.new_page()
                await tab.goto(f"{house.url}/static/icon.svg")
                await tab.evaluate(stun(control.port))
                await control.hears()
                await control.hears()  # unanswered, it is sent again
        assert control.packets > 0
        assert heard.packets == 0


TELLS = """<!doctype html><p id=p>a page</p><script>
document.getElementById("p").textContent = "ran";
location = "ELSEWHERE?" + encodeURIComponent(document.URL);
</script>"""


@pytest.mark.parametrize(
    "host", ["127.0.0.1", AFAR], ids=["where browsers say what they load for", "where they do not"]
)
@pytest.mark.parametrize("query", ["scripts=1", "scripts=0", "scripts=1&all=1"])
async def test_a_page_in_a_tab_carries_its_capability_nowhere(house: House, tab: Visit, host: str, query: str) -> None:
    base = house.url.replace("127.0.0.1", host)
    elsewhere = f"{house.url.replace('127.0.0.1', 'localhost')}/static/icon.svg"
    await house.put("tab", f"{OUTPUTS}/site/tells.html", TELLS.replace("ELSEWHERE", elsewhere).encode())
    address = await grant(house, "tab", "site/tells.html", query)
    await tab.go(f"{base}/login")
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    tab.page.on("request", note)
    try:
        await tab.page.goto(f"{base}{address}", wait_until="load")
        if host == AFAR:
            assert tab.page.url == f"{base}{address}"
            assert "ran" not in (await tab.page.content()).partition("<p")[2]
        else:
            assert tab.page.url == f"{base}/preview/tab/outputs/site/tells.html"
            await expect(tab.page.get_by_text("Shown without scripts.")).to_be_visible()
    finally:
        tab.page.remove_listener("request", note)
    assert any(url.startswith(base) for url in asked)
    assert [url for url in asked if url.startswith(elsewhere)] == []


async def test_a_page_in_its_frame_cannot_lead_it_elsewhere(house: House, browser: Browser) -> None:
    elsewhere = f"{house.url.replace('127.0.0.1', 'localhost')}/static/icon.svg"
    await house.put("leads", f"{OUTPUTS}/tells.html", TELLS.replace("ELSEWHERE", elsewhere).encode())
    async with visit(browser, f"{house.url}/preview/leads/tells.html") as seen:
        arrived: list[str] = []
        seen.page.on("response", lambda answer: arrived.append(answer.url))
        async with seen.page.expect_event("console", lambda said: "frame-src" in said.text):
            await run(seen.page)
        assert [url for url in arrived if url.startswith(elsewhere)] == []
