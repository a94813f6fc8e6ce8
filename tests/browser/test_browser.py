"""DevTools through the service: what tools see, and that the tools of others work unchanged."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import async_playwright
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.core.chat import Chat
from cubicle.machine.machine import Machine
from tests.browser import pages
from tests.browser.ground import ROOT, Service
from tests.conftest import absent

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.usefixtures("chromium")]


@pytest.fixture(scope="module")
async def machine(service: Service, http: httpx.AsyncClient) -> AsyncIterator[Machine]:
    async with service.machine("b") as machine:
        assert (await http.get("/browser/b/status")).json() == {"running": False, "pages": [], "sandbox": "running"}
        refused = await http.get("/browser/b/json/version")
        assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
        answers = await asyncio.gather(*(http.post("/browser/b/start") for _ in range(3)))
        assert sorted(answer.json()["started"] for answer in answers) == [False, False, True]
        yield machine


@pytest.mark.parametrize("slash", ["", "/"])
async def test_every_address_leads_through_the_service(
    service: Service, http: httpx.AsyncClient, machine: Machine, slash: str
) -> None:
    version = (await http.get(f"/browser/b/json/version{slash}")).json()
    assert version["webSocketDebuggerUrl"].startswith(f"{service.ws}/browser/b/devtools/browser/")
    assert "Chrome" in version["Browser"]
    for path in ("/json", "/json/list"):
        answer = await http.get(f"/browser/b{path}{slash}")
        assert answer.headers["content-type"].startswith("application/json")
        for target in answer.json():
            assert target["webSocketDebuggerUrl"] == f"{service.ws}/browser/b/devtools/page/{target['id']}"
            assert "devtoolsFrontendUrl" not in target
    assert "domains" in (await http.get(f"/browser/b/json/protocol{slash}")).json()


async def test_a_signed_links_key_goes_along(service: Service, http: httpx.AsyncClient, machine: Machine) -> None:
    version = (await http.get("/browser/b/json/version?key=abc.def")).json()
    assert version["webSocketDebuggerUrl"].endswith("?key=abc.def")


async def test_tabs_over_http(service: Service, http: httpx.AsyncClient, machine: Machine) -> None:
    assert (await http.get("/browser/b/json/new?about:blank")).status_code == 405
    made = (await http.put("/browser/b/json/new?data:text/html,<title>made</title>")).json()
    listed = (await http.get("/browser/b/status")).json()
    assert listed["running"]
    assert made["id"] in [page["id"] for page in listed["pages"]]
    assert (await http.get(f"/browser/b/json/activate/{made['id']}")).text == "Target activated"
    assert (await http.get(f"/browser/b/json/close/{made['id']}")).text == "Target is closing"
    assert (await http.get("/browser/b/json/close/..%2f..%2fversion")).status_code == 404
    async with asyncio.timeout(60):
        while made["id"] in (await http.get("/browser/b/json/list")).text:
            await asyncio.sleep(0.05)


async def test_both_sockets_and_the_bare_one(service: Service, http: httpx.AsyncClient, machine: Machine) -> None:
    page = (await http.get("/browser/b/json/list")).json()[0]["webSocketDebuggerUrl"]
    whole = (await http.get("/browser/b/json/version")).json()["webSocketDebuggerUrl"]
    for address in (page, whole, f"{service.ws}/browser/b", f"{service.ws}/browser/b/"):
        async with connect(address, compression=None, open_timeout=60) as socket:
            assert "Sec-WebSocket-Extensions" not in socket.response.headers  # type: ignore[union-attr]
            await socket.send(json.dumps({"id": 1, "method": "Browser.getVersion"}))
            assert "Chrome" in json.loads(await asyncio.wait_for(socket.recv(), 60))["result"]["product"]


async def test_no_page_no_browser_no_chat(service: Service, http: httpx.AsyncClient, machine: Machine) -> None:
    async with service.machine("empty"):
        for address, code in (
            ("/browser/b/devtools/page/NONE", 4503),
            ("/browser/empty", 4503),
            ("/browser/empty/devtools/browser/x", 4503),
            ("/browser/none", 4404),
        ):
            async with connect(service.ws + address, open_timeout=60) as socket:
                with pytest.raises(ConnectionClosed) as closed:
                    await asyncio.wait_for(socket.recv(), 60)
            assert closed.value.rcvd is not None
            assert (address, closed.value.rcvd.code) == (address, code)
    assert (await http.get("/browser/none/status")).json() == {"running": False, "pages": [], "sandbox": "none"}
    assert (await http.get("/browser/none/json")).status_code == 404
    assert not service.fleet.has(Chat("none"))


async def test_playwright_connects_over_cdp(service: Service, machine: Machine) -> None:
    url = await pages.put(machine, "button", pages.BUTTON)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.connect_over_cdp(
            f"{service.base}/browser/b", headers={"Authorization": "Bearer secret"}, timeout=90_000
        )
        browser.contexts[0].set_default_timeout(90_000)
        page = await browser.contexts[0].new_page()
        await page.goto(url)
        await page.get_by_role("button", name="press").click()
        assert await page.title() == "clicked 1"
        assert len(await page.screenshot(full_page=True)) > 1000
        await page.close()
        await browser.close()


@pytest.mark.timeout(600)
async def test_puppeteer_connects(service: Service, machine: Machine, tmp_path: Path) -> None:
    node, folder = shutil.which("node"), await asyncio.to_thread(puppeteer)
    url = await pages.put(machine, "button", pages.BUTTON)
    script = tmp_path / "drive.mjs"
    script.write_text(
        f"""import puppeteer from {json.dumps(str(folder / "node_modules/puppeteer-core/lib/esm/puppeteer/puppeteer-core.js"))};
const headers = {{Authorization: 'Bearer secret'}};
for (const how of [{{browserWSEndpoint: {json.dumps(service.ws + "/browser/b")}}}]) {{
  const browser = await puppeteer.connect({{...how, headers, defaultViewport: null}});
  const page = await browser.newPage();
  await page.goto({json.dumps(url)});
  await page.click('button');
  console.log(await page.title(), (await page.screenshot()).length > 1000);
  await page.close();
  await browser.disconnect();
}}"""
    )
    process = await asyncio.create_subprocess_exec(
        str(node), str(script), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, env=dict(os.environ)
    )
    output, _ = await asyncio.wait_for(process.communicate(), 200)
    assert output.decode().strip() == "clicked 1 true"


def puppeteer() -> Path:
    """Where puppeteer-core is; installed at the first use, as package-lock.json pins it.

    Two workers may want it at once, and npm begins by removing what the other has."""
    folder = ROOT / "tests/browser/puppeteer"
    with (folder / "package-lock.json").open() as pins:
        fcntl.flock(pins, fcntl.LOCK_EX)
        if not (folder / "node_modules/.package-lock.json").exists():  # what npm writes last
            npm = shutil.which("npm")
            if npm is None:
                absent("needs npm: make setup")
            command = [str(npm), "ci", "--ignore-scripts", "--loglevel=error"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
            if done.returncode != 0:
                absent(f"needs puppeteer-core, and npm says: {done.stderr[-500:]}")
    return folder
