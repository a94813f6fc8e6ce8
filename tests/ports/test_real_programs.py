"""Real programs in the real image, opened by their links in a real Chromium; none of them leaves a console error.

Vite, WebSockets, server-sent events and ranged downloads run always. Those that have to be downloaded first (Flask,
Django, Jupyter Lab, Streamlit, Gradio, Next) are long: CUBICLE_LONG=1.
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, expect

from cubicle import settings
from cubicle.core.chat import Chat
from cubicle.images.store import ImageStore
from tests.conftest import absent
from tests.ports.conftest import Ground, ground_of
from tests.support.chromium import chromium

pytestmark = [pytest.mark.anyio, pytest.mark.real, pytest.mark.oci]

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "web" / "node_modules"
PYTHON = "3.13"
"""Of the image."""


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    store = ImageStore(settings.load().image_dir)
    image = await asyncio.to_thread(lambda: store.resolve("standard").digest)
    options = {"SANDBOX_IMAGE": image, "SANDBOX_DISK_MB": "3000", "MAX_UPLOAD_MB": "2000"}
    async with ground_of(tmp_path_factory.mktemp("real"), "oci", **options) as running:
        yield running


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    if shutil.which("chromium") is None:
        absent("needs chromium: scripts/packages test")
    expect.set_options(timeout=90_000)
    async with chromium() as running:
        yield running


async def unpack(ground: Ground, chat: Chat, folder: str, files: Iterable[tuple[Path, str]]) -> None:
    """Put files of the host into the sandbox."""

    def packed() -> bytes:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as archive:
            for path, name in files:
                archive.add(path, name)
        return content.getvalue()

    await ground.bash(chat, "true")
    url = f"/api/uploads/{chat.id}/{folder}.tar"
    content = await asyncio.to_thread(packed)
    (await ground.service.client.put(url, content=content, headers=ground.key(chat))).raise_for_status()
    await ground.bash(chat, f"mkdir -p {folder} && tar xf /mnt/user-data/uploads/{folder}.tar -C {folder}")


async def run(ground: Ground, chat: Chat, command: str, port: int, *, cwd: str = ".") -> None:
    at = f"{{ : </dev/tcp/127.0.0.1/{port} || : </dev/tcp/::1/{port}; }} 2>/dev/null"
    await ground.bash(
        chat,
        f"cd {cwd}; ({command}) > ~/{port}.log 2>&1 & "
        f"for n in $(seq 1000); do {at} && exit 0; kill -0 $! 2>/dev/null || break; sleep 0.1; done; "
        f"cat ~/{port}.log; exit 1",
    )


@asynccontextmanager
async def opened(browser: Browser, link: str) -> AsyncIterator[tuple[Page, list[str]]]:
    """A tab at this address, and the errors in its console."""
    context = await browser.new_context()
    errors: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"{message.text} {message.location}")

    try:
        page = await context.new_page()
        page.on("console", said)
        page.on("pageerror", lambda error: errors.append(str(error)))
        await page.goto(link)
        yield page, errors
    finally:
        await context.close()


def closure(names: Iterable[str]) -> list[str]:
    """These packages of web/node_modules and all that they need."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        manifest = MODULES / name / "package.json"
        if name in found or not manifest.exists():
            continue
        found[name] = None
        fields = json.loads(manifest.read_text())
        for kind in ("dependencies", "optionalDependencies"):
            waiting += fields.get(kind, {})
    return list(found)


async def test_vite_with_hot_reload(ground: Ground, browser: Browser) -> None:
    chat = Chat("vite", "acme")
    packages = await asyncio.to_thread(closure, ["vite"])
    await unpack(ground, chat, "app", [(MODULES / name, f"node_modules/{name}") for name in packages])
    await ground.put(
        chat,
        "app/index.html",
        b"<link rel=icon href=data:,><h1 id=a></h1><input><script type=module src=/main.js></script>",
    )
    await ground.put(chat, "app/words.js", b"export const words = 'first words'\n")
    await ground.put(
        chat,
        "app/main.js",
        b"import { words } from './words.js'\nconst show = (it) => { document.querySelector('#a').textContent = it }\n"
        b"show(words)\nimport.meta.hot.accept('./words.js', (next) => show(next.words))\n",
    )
    await run(ground, chat, "exec node node_modules/vite/bin/vite.js --port 5173", 5173, cwd="app")
    async with opened(browser, ground.links.link(chat, 5173)) as (page, errors):
        # Vite tells of a change only the pages that are connected already.
        async with page.expect_console_message(lambda message: message.text == "[vite] connected."):
            await page.reload()
        await expect(page.get_by_role("heading")).to_have_text("first words")
        await page.locator("input").fill("typed")
        await ground.bash(chat, "echo \"export const words = 'second words'\" > app/words.js")
        await expect(page.get_by_role("heading")).to_have_text("second words")
        assert await page.locator("input").input_value() == "typed"  # replaced in place, not loaded again
        assert errors == []


async def test_websockets_events_and_ranges_in_a_page(ground: Ground, browser: Browser) -> None:
    chat = Chat("plain", "acme")
    http, sockets = await ground.start(chat), await ground.start_sockets(chat)
    async with opened(browser, ground.links.link(chat, http)) as (page, errors):
        await page.goto(f"{ground.links.origin(chat, http)}/echo")
        events = await page.evaluate(
            """() => new Promise((done) => {
              const seen = [], source = new EventSource("/events?n=1000&every=0.05");
              source.onmessage = (event) => {
                if (seen.push(event.data.split(" ")[0]) === 5) { source.close(); done(seen); }
              };
            })"""
        )
        assert events == ["0", "1", "2", "3", "4"]
        parts = await page.evaluate(
            """async (size) => {
              const at = async (range) => {
                const answer = await fetch(`/size?n=${size}`, {headers: {Range: `bytes=${range}`}});
                const part = new Uint8Array(await answer.arrayBuffer());
                return [answer.status, answer.headers.get("content-range"), part.length, part[0]];
              };
              return [await at("0-9"), await at(`${size - 256}-`), await at("268435456-269484031")];
            }""",
            1 << 30,
        )
        assert parts == [
            [206, "bytes 0-9/1073741824", 10, 0],
            [206, "bytes 1073741568-1073741823/1073741824", 256, 0],
            [206, "bytes 268435456-269484031/1073741824", 1 << 20, 0],
        ]
        assert errors == []
    async with opened(browser, ground.links.link(chat, sockets)) as (page, errors):
        seen = await page.evaluate(
            """() => new Promise((done) => {
              const socket = new WebSocket(`ws://${location.host}/`), seen = [];
              socket.binaryType = "arraybuffer";
              socket.onopen = () => { socket.send("words"); socket.send(new Uint8Array(3_000_000)); };
              socket.onmessage = ({data}) => {
                if (seen.push(data.byteLength ?? data) === 2) socket.close(1000, "enough");
              };
              socket.onclose = ({code}) => done([...seen, code]);
            })"""
        )
        assert seen == ["words", 3_000_000, 1000]


async def test_a_gigabyte_is_downloaded_whole(ground: Ground, browser: Browser) -> None:
    chat = Chat("plain", "acme")
    port = await ground.start(chat)
    async with opened(browser, ground.links.link(chat, port)) as (page, errors):
        await page.goto(f"{ground.links.origin(chat, port)}/echo")
        size = await page.evaluate(
            """async (size) => {
              let seen = 0;
              for await (const chunk of (await fetch(`/size?n=${size}`)).body) seen += chunk.length;
              return seen;
            }""",
            1 << 30,
        )
        assert size == 1 << 30
        assert errors == []


# ---- programs that have to be downloaded


@pytest.fixture(scope="module")
def python_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("python")
    wanted = ["flask", "django", "jupyterlab", "streamlit", "gradio"]
    uv = str(ROOT / ".state/uv/bin/uv")
    command = [uv, "pip", "install", "-q", "--target", str(folder), "--python-version", PYTHON]
    subprocess.run([*command, "--only-binary", ":all:", *wanted], check=True, timeout=900)
    return folder


@pytest.fixture(scope="module")
async def python_chat(ground: Ground, python_packages: Path) -> Chat:
    chat = Chat("python", "acme")
    await unpack(ground, chat, "lib", [(python_packages, ".")])
    return chat


def python(module: str) -> str:
    return f"PYTHONPATH=/home/assistant/lib python3 {module}"


@pytest.mark.long
async def test_flask(ground: Ground, browser: Browser, python_chat: Chat) -> None:
    app = b"""from flask import Flask, request, session, redirect
app = Flask(__name__)
app.secret_key = "x"
@app.get("/")
def form(): return f'<link rel=icon href=data:,><h1>Hello {session.get("name", "you")}</h1><form method=post action=/name><input name=name><button>Go</button></form>'
@app.post("/name")
def name():
    session["name"] = request.form["name"]
    return redirect("http://localhost:5000/")
"""
    await ground.put(python_chat, "flask_app.py", app)
    await run(ground, python_chat, python("-m flask --app flask_app run --port 5000"), 5000)
    async with opened(browser, ground.links.link(python_chat, 5000)) as (page, errors):
        await page.locator("input").fill("Ada")
        await page.get_by_role("button").click()
        await expect(page.get_by_role("heading")).to_have_text("Hello Ada")
        assert ground.links.origin(python_chat, 5000) in page.url
        assert errors == []


@pytest.mark.long
async def test_django_admin(ground: Ground, browser: Browser, python_chat: Chat) -> None:
    make = f"{python('-m django startproject site1 .')} && {python('manage.py migrate')} && "
    make += f"DJANGO_SUPERUSER_PASSWORD=secret {python('manage.py createsuperuser --noinput --username ada --email ada@example.org')}"
    await ground.bash(python_chat, f"mkdir -p dj && cd dj && {make}")
    await run(ground, python_chat, python("manage.py runserver 8000"), 8000, cwd="dj")
    async with opened(browser, ground.links.link(python_chat, 8000)) as (page, errors):
        await page.goto(f"{ground.links.origin(python_chat, 8000)}/admin/")
        await page.get_by_label("Username").fill("ada")
        await page.get_by_label("Password").fill("secret")
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Site administration")).to_be_visible()
        assert [error for error in errors if "favicon" not in error] == []


@pytest.mark.long
async def test_streamlit(ground: Ground, browser: Browser, python_chat: Chat) -> None:
    app = b"import streamlit as st\nname = st.text_input('Name')\nst.write(f'Hello {name}!')\n"
    await ground.put(python_chat, "streamlit_app.py", app)
    options = (
        "--global.developmentMode false --server.headless true --server.port 8501 --browser.gatherUsageStats false"
    )
    await run(ground, python_chat, python(f"-m streamlit run streamlit_app.py {options}"), 8501)
    async with opened(browser, ground.links.link(python_chat, 8501)) as (page, errors):
        await page.get_by_label("Name").fill("Ada")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Hello Ada!")).to_be_visible()
        assert errors == []


@pytest.mark.long
async def test_gradio(ground: Ground, browser: Browser, python_chat: Chat) -> None:
    app = b"""import gradio
gradio.Interface(lambda name: f"Hello {name}!", "text", "text", api_name="greet", flagging_mode="never").launch(server_port=7860)
"""
    await ground.put(python_chat, "gradio_app.py", app)
    await run(ground, python_chat, f"GRADIO_ANALYTICS_ENABLED=False {python('gradio_app.py')}", 7860)
    async with opened(browser, ground.links.link(python_chat, 7860)) as (page, errors):
        await page.get_by_label("name").fill("Ada")
        await page.get_by_role("button", name="Submit").click()
        await expect(page.get_by_label("output")).to_have_value("Hello Ada!")
        ours = [error for error in errors if "ERR_" not in error]  # its fonts are of other hosts
        assert ours == []


@pytest.mark.long
async def test_jupyter_lab_runs_a_cell(ground: Ground, browser: Browser, python_chat: Chat) -> None:
    notebook = {"cells": [{"cell_type": "code", "id": "a", "execution_count": None, "metadata": {}, "outputs": [], "source": ["print(6 * 7)"]}], "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}, "nbformat": 4, "nbformat_minor": 5}  # fmt: skip
    await ground.put(python_chat, "sum.ipynb", json.dumps(notebook).encode())
    options = (
        "--no-browser --port 8888 --IdentityProvider.token='' --LabApp.news_url='' --ServerApp.root_dir=/home/assistant"
    )
    share = "/home/assistant/lib/share/jupyter"
    where = f"JUPYTER_PATH={share} JUPYTERLAB_DIR={share}/lab"
    await run(ground, python_chat, f"{where} {python(f'-m jupyterlab {options}')}", 8888)
    async with opened(browser, ground.links.link(python_chat, 8888)) as (page, errors):
        await page.goto(f"{ground.links.origin(python_chat, 8888)}/lab/tree/sum.ipynb")
        await expect(page.locator(".jp-CodeCell .cm-content")).to_be_visible()
        await page.locator(".jp-CodeCell .cm-content").click()
        await expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible()
        await page.keyboard.press("Shift+Enter")
        await expect(page.locator(".jp-OutputArea-output")).to_contain_text("42")
        assert [error for error in errors if "/lsp/status" not in error] == []  # it asks for a part that is not there


@pytest.mark.long
async def test_next_dev(ground: Ground, browser: Browser, tmp_path: Path) -> None:
    chat = Chat("next", "acme")
    (tmp_path / "package.json").write_text('{"name":"app","private":true}')
    npm = str(ROOT / ".venv/bin/npm")
    install = [npm, "install", "--silent", "next", "react", "react-dom"]
    await asyncio.to_thread(lambda: subprocess.run(install, cwd=tmp_path, check=True, timeout=600))
    (tmp_path / "app").mkdir()
    (tmp_path / "app/layout.js").write_text("export default ({children}) => <html><body>{children}</body></html>\n")
    counter = '"use client"\nimport {useState} from "react"\nexport default function Page() {\n'
    counter += "const [n, set] = useState(0)\nreturn <main><h1>Words</h1><button onClick={() => set(n + 1)}>{n}</button></main>\n}\n"
    (tmp_path / "app/page.js").write_text(counter)
    await unpack(ground, chat, "app", [(tmp_path, ".")])
    await run(
        ground,
        chat,
        "NEXT_TELEMETRY_DISABLED=1 exec node node_modules/next/dist/bin/next dev --port 3000",
        3000,
        cwd="app",
    )
    async with opened(browser, ground.links.link(chat, 3000)) as (page, errors):
        button = page.get_by_role("main").get_by_role("button")
        await button.click()
        await expect(button).to_have_text("1")
        await ground.bash(chat, "sed -i 's/Words/Other words/' app/app/page.js")
        await expect(page.get_by_role("heading")).to_have_text("Other words")
        await expect(button).to_have_text("1")
        assert [error for error in errors if "favicon" not in error] == []
