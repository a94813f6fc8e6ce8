"""Cards in a chat client: the host of the extension's own packages, in a real browser, on an origin of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser, FrameLocator, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tests.conftest import absent
from tests.http_api.pages.visitor import KEY, House, Visit, house
from tests.support.service import serve

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.timeout(300)]
WEB = Path(__file__).parents[3] / "web"
SHOTS = os.environ.get("CUBICLE_SHOTS")
PAGE = "<!doctype html><title>host</title><body><script src=host.js></script>"
PROXY = """<!doctype html><body style="margin:0"><script>
const inner = document.createElement("iframe");
inner.style = "width:100%; height:100vh; border:0";
inner.setAttribute("sandbox", "allow-scripts allow-same-origin allow-forms");
document.body.append(inner);
addEventListener("message", (event) => {
  if (event.source === parent) {
    if (event.data?.method === "ui/notifications/sandbox-resource-ready") {
      const page = inner.contentDocument;
      page.open(); page.write(event.data.params.html); page.close();
    } else inner.contentWindow.postMessage(event.data, "*");
  } else if (event.source === inner.contentWindow) parent.postMessage(event.data, "*");
});
parent.postMessage({ jsonrpc: "2.0", method: "ui/notifications/sandbox-proxy-ready", params: {} }, "*");
</script>"""


def policy(said: str) -> str:
    """What the specification makes of the sources that a card declares."""
    csp = json.loads(said)
    frames = " ".join(csp.get("frameDomains", [])) or "'none'"
    connect = " ".join(csp.get("connectDomains", [])) or "'none'"
    sources = " ".join(csp.get("resourceDomains", []))
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-inline' {sources}; style-src 'self' 'unsafe-inline' {sources}; "
        f"img-src 'self' data: {sources}; connect-src {connect}; frame-src 'self' {frames}; base-uri 'self'; "
        "object-src 'none'"
    )


async def host_page(request: Request) -> Response:
    return HTMLResponse(PAGE)


async def proxy_page(request: Request) -> Response:
    return HTMLResponse(PROXY, headers={"Content-Security-Policy": policy(request.query_params["csp"])})


@asynccontextmanager
async def chat_client(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The origins of the host and of its outer frames."""
    script = folder / "host.js"

    async def host_script(request: Request) -> Response:
        return Response(script.read_bytes(), media_type="text/javascript")

    host = Starlette(routes=[Route("/", host_page), Route("/host.js", host_script)])
    frames = Starlette(routes=[Route("/sandbox.html", proxy_page)])
    async with serve(host) as own, serve(frames) as other:
        yield own, other.replace("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
async def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    node = shutil.which("node")
    if node is None or not (WEB / "node_modules/@modelcontextprotocol/ext-apps").exists():
        absent("needs node and the packages of web/: scripts/web")
    assert node is not None
    folder = tmp_path_factory.mktemp("host")
    made = await asyncio.create_subprocess_exec(node, str(WEB / "tests/host/build.mjs"), str(folder))
    assert await made.wait() == 0
    return folder


@pytest.fixture(scope="module")
async def client(bundle: Path) -> AsyncIterator[tuple[str, str]]:
    async with chat_client(bundle) as origins:
        yield origins


@pytest.fixture(scope="module")
async def served(client: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with house(tmp_path_factory.mktemp("served"), key=KEY, cors_origins=client[0]) as running:
        yield running


@asynccontextmanager
async def conversation(browser: Browser, client: tuple[str, str], served: House, chat: str) -> AsyncIterator[Page]:
    context = await browser.new_context(viewport={"width": 900, "height": 900})
    page = await context.new_page()
    seen = Visit(page)
    seen.watch()
    query = {"mcp": f"{served.url}/mcp", "bearer": KEY, "chat": chat, "sandbox": f"{client[1]}/sandbox.html"}
    try:
        await page.goto(f"{client[0]}/?{urlencode(query)}")
        await page.evaluate("window.ready")
        yield page
        assert seen.errors == []
    finally:
        await context.close()


def card(page: Page, number: int) -> FrameLocator:
    return page.frame_locator("iframe").nth(number).frame_locator("iframe")


async def shot(page: Page, name: str) -> None:
    if SHOTS:
        await page.screenshot(path=f"{SHOTS}/{name}.png")


async def test_the_cards_of_a_chat_in_the_reference_host(
    browser: Browser, client: tuple[str, str], served: House
) -> None:
    await served.furnish("cards")
    async with conversation(browser, client, served, "cards") as page:
        tools = await page.evaluate("window.ready")
        assert "bash_tool ui://cubicle/computer" in tools

        # A command: one line, and the text that everybody gets.
        asked = {"command": "echo hello", "description": "Say hello"}
        await page.evaluate("(input) => callTool('bash_tool', input)", asked)
        line = card(page, 0)
        await expect(line.get_by_role("status")).to_have_text("On")
        assert "hello" in (await page.evaluate("cards[0]"))["text"]
        await expect(line.locator("iframe")).to_have_count(0)
        assert (await page.evaluate("cards[0].sizes")).pop() < 100

        # A file that was written: its preview, in a frame of the service.
        written = {"path": "/mnt/user-data/outputs/note.md", "content": "# A title\n\nwords", "description": "write"}
        await page.evaluate("(input) => callTool('create_file', input)", written)
        preview = card(page, 1).frame_locator("iframe")
        heading = preview.frame_locator("iframe").get_by_role("heading", name="A title")
        await expect(heading).to_be_visible()
        await shot(page, "card-file")

        # The terminal: it is shown, and it takes no key.
        await line.get_by_role("button", name="Terminal").click()
        terminal = line.frame_locator("iframe")
        await expect(terminal.get_by_text("View only", exact=True).first).to_be_visible()
        await expect(terminal.get_by_text("Connected", exact=True)).to_be_visible()
        await expect(terminal.get_by_text("Your link lets you look.")).to_be_hidden()
        await expect(terminal.locator("html")).to_have_attribute("data-theme", "dark")
        await shot(page, "card-terminal")

        # A port: its link is opened by the client, and ends with the card.
        serving = "python3 -m http.server 8124 >/dev/null 2>&1 & until : </dev/tcp/127.0.0.1/8124; do sleep 0.1; done"
        await page.evaluate(
            "(input) => callTool('bash_tool', input)", {"command": f"({serving}) 2>/dev/null", "description": "Serve"}
        )
        ports = card(page, 2)
        await ports.get_by_role("button", name="Ports (1)").click()
        await ports.get_by_role("paragraph").filter(has_text="Port 8124").get_by_role("button").click()
        await page.wait_for_function("cards[2].opened.length === 1")
        opened = await page.evaluate("cards[2].opened[0]")
        assert "cubicle-key=" in opened

        # In a tab, the workspace: nothing of the card's key stays in the address.
        await ports.get_by_role("button", name="Open ↗").first.click()
        await page.wait_for_function("cards[2].opened.length === 2")
        workspace = await page.evaluate("cards[2].opened[1]")
        tab = await page.context.new_page()
        await tab.goto(workspace)
        await expect(tab.get_by_text("View only.")).to_be_visible()
        assert "key=" not in tab.url
        await tab.close()


async def test_the_live_browser_in_a_card(browser: Browser, client: tuple[str, str], served: House) -> None:
    await served.furnish("live")
    await served.put("live", "/home/assistant/page.html", b"<title>Red</title><body style='background:#f00'>")
    started = await served.client.post("/browser/live/start")
    if started.status_code == 503:
        absent("needs a browser in the sandbox")
    assert started.status_code == 200, started.text
    await served.client.put("/browser/live/json/new?file:///home/assistant/page.html")
    async with conversation(browser, client, served, "live") as page:
        await page.evaluate("(input) => callTool('bash_tool', input)", {"command": "true", "description": "Nothing"})
        live = card(page, 0).frame_locator("iframe")
        await expect(live.get_by_label("Picture of the computer's browser")).to_be_visible()
        await expect(live.get_by_role("button", name="Take control")).to_have_count(0)
        await expect(live.get_by_text("View only").first).to_be_visible()
        await shot(page, "card-browser")
