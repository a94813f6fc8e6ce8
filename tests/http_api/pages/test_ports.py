"""The panel of ports, and what pages of different ports can see of each other, in a true browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Request, expect

from tests.http_api.pages import visitor
from tests.http_api.pages.visitor import House, accessible, visit
from tests.support.process import free_port

pytestmark = [pytest.mark.anyio, pytest.mark.real]

PAGE = """<!doctype html><title>app</title><h1>Hello from the sandbox</h1>
<form method="post" action="/saved"><input name="word"><button>Save</button></form>
<script>document.cookie = "seen=by-script"; document.body.dataset.cookie = document.cookie</script>"""
SERVER = f"""
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = {PAGE!r} if self.path != "/cookies" else self.headers.get("Cookie", "none")
        if self.path == "/sw.js":
            body = "self.onfetch = (e) => e.respondWith(new Response('from the service worker'))"
        if self.path == "/wide":
            self.send_response(200)
            self.send_header("Set-Cookie", "wide=1; Domain=localhost; Path=/")
            self.end_headers()
            self.wfile.write(b"set")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if self.path == "/sw.js" else "text/html")
        self.end_headers()
        self.wfile.write(body.encode())
    def do_POST(self):
        word = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(("saved " + word).encode())
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
KEY = "key-of-the-tests"


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with visitor.house(tmp_path_factory.mktemp("locked"), key=KEY, preview_public="*") as house:
        yield house


async def serve(house: House, chat: str) -> int:
    port = free_port()
    await house.put(chat, "app.py", SERVER.encode())
    up = f"until : 2>/dev/null </dev/tcp/127.0.0.1/{port}; do sleep 0.05; done"
    await house.bash(chat, f"python3 app.py {port} >app.log 2>&1 & {up}")
    return port


async def link_of(house: House, chat: str, port: int) -> tuple[str, str]:
    """The plain address of a port, and its link."""
    listed = (await house.client.get(f"/api/chats/{chat}/ports")).json()["ports"]
    (row,) = [row for row in listed if row["port"] == port]
    return row["url"], row["link"]


async def sign_in(seen: visitor.Visit, house: House) -> None:
    await seen.page.goto(f"{house.url}/login")
    await seen.page.get_by_label("API key").fill(KEY)
    await seen.page.get_by_role("button", name="Sign in").click()
    await seen.page.wait_for_url(f"{house.url}/")


async def test_a_port_is_shown_in_the_workspace_and_shared_from_there(
    locked: House, browser: Browser, tmp_path: Path
) -> None:
    port = await serve(locked, "panel")
    async with visit(browser, f"{locked.url}/login", width=1200) as seen:
        await sign_in(seen, locked)
        page = seen.page
        await page.goto(f"{locked.url}/preview/panel/")
        await page.get_by_role("button", name=f"{port} app", exact=True).click()
        frame = page.frame_locator(".port-frame")
        await expect(frame.get_by_role("heading", name="Hello from the sandbox")).to_be_visible()
        await frame.get_by_role("textbox").fill("word")
        await frame.get_by_role("button", name="Save").click()
        await expect(frame.locator("body")).to_have_text("saved word=word")
        await accessible(page)
        for path, text in (("/wide", "set"), ("/cookies", "wide=1")):  # in a frame browsers keep no script's cookies
            await page.get_by_role("textbox", name="Address").fill(path)
            await page.keyboard.press("Enter")
            await expect(frame.locator("body")).to_have_text(text)
        await page.get_by_role("region", name="Ports").get_by_role("button", name="Share", exact=True).click()
        await page.get_by_role("button", name="Make public").click()
        public = await page.get_by_label("Public link").input_value()
        async with visit(browser, public) as stranger:
            await expect(stranger.page.get_by_role("heading", name="Hello from the sandbox")).to_be_visible()
            assert "cubicle-key" not in stranger.page.url
            await page.get_by_role("button", name="Stop sharing").click()
            await expect(page.get_by_role("button", name="Make public")).to_be_visible()
            await stranger.page.reload()
            await expect(stranger.page.get_by_role("heading", name="This port is private")).to_be_visible()
            await stranger.page.goto(public)
            await expect(stranger.page.get_by_role("heading", name="This port is private")).to_be_visible()
        assert seen.errors == []


async def test_a_port_that_opens_and_closes_comes_and_goes(house: House, browser: Browser) -> None:
    await house.bash("coming", "true")
    async with visit(browser, f"{house.url}/preview/coming/", width=1200) as seen:
        await seen.page.get_by_role("navigation", name="Panels").get_by_role("button", name="Ports").click()
        await expect(seen.page.get_by_role("heading", name="No port is open")).to_be_visible()
        port = await serve(house, "coming")
        await expect(seen.page.get_by_role("tab", name=f"{port} app")).to_be_visible()
        frame = seen.page.frame_locator(".port-frame")
        await expect(frame.get_by_role("heading", name="Hello from the sandbox")).to_be_visible()
        await house.bash("coming", f"kill $(pgrep -f '[a]pp.py {port}')")
        await expect(seen.page.get_by_role("heading", name="No port is open")).to_be_visible()
        assert seen.errors == []


async def test_a_page_waits_for_its_port(house: House, browser: Browser) -> None:
    await house.bash("later", "true")
    first = await serve(house, "later")
    _, link = await link_of(house, "later", first)
    await house.bash("later", f"kill $(pgrep -f '[a]pp.py {first}')")
    async with visit(browser, link) as seen:
        await expect(seen.page.get_by_role("heading", name=f"Waiting for port {first}")).to_be_visible()
        await house.bash("later", f"python3 app.py {first} >app.log 2>&1 &")
        await expect(seen.page.get_by_role("heading", name="Hello from the sandbox")).to_be_visible()


async def test_a_page_that_waits_starts_no_sandbox_by_itself(house: House, browser: Browser) -> None:
    port = await serve(house, "drowsy")
    _, link = await link_of(house, "drowsy", port)
    await house.bash("drowsy", f"kill $(pgrep -f '[a]pp.py {port}')")
    async with visit(browser, link) as seen:
        await expect(seen.page.get_by_role("heading", name=f"Waiting for port {port}")).to_be_visible()
        again = seen.page.get_by_role("button", name="Load this page again")
        await expect(again).to_be_hidden()
        assert (await house.client.post("/api/sandboxes/drowsy/stop")).status_code == 200
        await expect(again).to_be_visible()
        async with seen.page.expect_response(lambda answer: answer.request.method == "HEAD") as asked:
            pass
        assert (await (await asked.value).header_value("x-cubicle-port")) == "asleep"
        listed = (await house.client.get("/api/sandboxes")).json()["sandboxes"]
        assert [row["state"] for row in listed if row["chat"] == "drowsy"] == ["stopped"]
        await again.click()
        await expect(seen.page.get_by_role("heading", name="The server has to be started again")).to_be_visible()


def loads_of(seen: visitor.Visit, port: int) -> list[str]:
    """Filled with each request that goes to a port from now on."""
    found: list[str] = []

    def note(request: Request) -> None:
        if f"//{port}-" in request.url:
            found.append(request.url)

    seen.page.on("request", note)
    return found


async def state_of(house: House, chat: str) -> str:
    listed = (await house.client.get("/api/sandboxes")).json()["sandboxes"]
    (state,) = [row["state"] for row in listed if row["chat"] == chat]
    return str(state)


async def test_the_panel_starts_no_sandbox_for_a_shared_port_before_it_is_asked_to(
    locked: House, browser: Browser
) -> None:
    port = await serve(locked, "shared")
    assert (await locked.client.post(f"/api/chats/shared/ports/{port}/share?hours=1")).status_code == 201
    assert (await locked.client.post("/api/sandboxes/shared/stop")).status_code == 200
    async with visit(browser, f"{locked.url}/login", width=1200) as seen:
        await sign_in(seen, locked)
        loads = loads_of(seen, port)
        page = seen.page
        await page.goto(f"{locked.url}/preview/shared/")
        await page.get_by_role("navigation", name="Panels").get_by_role("button", name="Ports").click()
        asks = page.get_by_role("button", name="Start the computer and open the port")
        await expect(asks).to_be_visible()
        await accessible(page)
        assert (loads, await state_of(locked, "shared")) == ([], "stopped")
        await asks.click()
        frame = page.frame_locator(".port-frame")
        await expect(frame.get_by_role("heading", name="The server has to be started again")).to_be_visible()
        await locked.bash("shared", f"python3 app.py {port} >app.log 2>&1 &")
        await expect(frame.get_by_role("heading", name="Hello from the sandbox")).to_be_visible()
        await expect(page.get_by_role("tab", name=f"{port} app")).to_be_visible()
        await locked.client.post("/api/sandboxes/shared/stop")
        await expect(page.get_by_role("heading", name=f"Nothing listens on port {port}")).to_be_visible()
        assert await state_of(locked, "shared") == "stopped"


async def test_an_open_port_is_loaded_once_and_again_when_its_server_comes_back(
    locked: House, browser: Browser
) -> None:
    port = await serve(locked, "once")
    assert (await locked.client.post(f"/api/chats/once/ports/{port}/share?hours=1")).status_code == 201
    async with visit(browser, f"{locked.url}/login", width=1200) as seen:
        await sign_in(seen, locked)
        loads = loads_of(seen, port)
        page = seen.page
        await page.goto(f"{locked.url}/preview/once/")
        await page.get_by_role("button", name=f"{port} app").first.click()
        frame = page.frame_locator(".port-frame")
        greeting = frame.get_by_role("heading", name="Hello from the sandbox")
        await expect(greeting).to_be_visible()
        assert len([url for url in loads if "cubicle-key" in url]) == 1
        await locked.bash("once", f"kill $(pgrep -f '[a]pp.py {port}')")
        await expect(page.get_by_role("heading", name=f"Nothing listens on port {port}")).to_be_visible()
        await locked.bash("once", f"python3 app.py {port} >app.log 2>&1 &")
        await expect(greeting).to_be_visible()
        assert len([url for url in loads if "cubicle-key" in url]) == 2


async def test_cookies_and_service_workers_of_one_port_are_no_other_s(locked: House, browser: Browser) -> None:
    one, two = await serve(locked, "one"), await serve(locked, "two")
    (first, first_link), (second, second_link) = (
        await link_of(locked, "one", one),
        await link_of(locked, "two", two),
    )
    async with visit(browser, first_link) as seen:
        page = seen.page
        await page.goto(f"{first}wide")
        await page.goto(first)
        await page.evaluate("document.cookie = 'tossed=1; domain=localhost; path=/'")
        await page.evaluate("navigator.serviceWorker.register('/sw.js').then(() => navigator.serviceWorker.ready)")
        assert set((await page.evaluate("document.cookie")).split("; ")) == {"wide=1", "seen=by-script"}
        await page.goto(f"{first}cookies")
        await expect(page.locator("body")).to_have_text("from the service worker")
        await page.goto(second_link)
        await expect(page.get_by_role("heading", name="Hello from the sandbox")).to_be_visible()
        assert await page.evaluate("document.cookie") == "seen=by-script"
        await page.goto(f"{second}cookies")
        await expect(page.locator("body")).to_have_text("seen=by-script")
        names = {(cookie["name"], cookie["domain"]) for cookie in await page.context.cookies()}
        hosts = [address.split("/")[2].partition(":")[0] for address in (first, second)]
        assert names == {
            *((name, host) for host in hosts for name in ("cubicle-port", "seen")),
            ("wide", hosts[0]),
        }
        assert all(cookie["httpOnly"] for cookie in await page.context.cookies() if "cubicle" in cookie["name"])
        fetched = """async (url) => {
          const seen = [];
          for (const mode of ["cors", "no-cors"]) {
            try {
              const answer = await fetch(url, {mode, credentials: "include"});
              seen.push(`${mode} ${answer.type} ${await answer.text()}`);
            } catch { seen.push(`${mode} failed`); }
          }
          await new Promise((done) => {
            const socket = new WebSocket(url.replace("http", "ws"));
            socket.onopen = () => { seen.push("socket open"); done(); };
            socket.onerror = () => { seen.push("socket failed"); done(); };
          });
          return seen;
        }"""
        for target in (first, f"{locked.url}/api/sandboxes", f"{locked.url}/terminal/one/ws"):
            read, opaque, socket = await page.evaluate(fetched, target)
            assert (read, socket) == ("cors failed", "socket failed"), target
            assert opaque in ("no-cors opaque ", "no-cors failed"), target
