"""No credential is anywhere in a sandbox while an agent uses all of them; and the search would find one that was."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cubicle.core.chat import Chat
from cubicle.drivers.oci.driver import OciDriver
from cubicle.egress.proxy import EgressProxy
from cubicle.egress.tls_authority import Authority
from cubicle.prompt.settings_service import SettingsService
from cubicle.prompt.user_tokens import UserTokens
from tests.agents.conftest import KEY, agents_service, emptied
from tests.agents.fake_api import FakeApi, Hold, Say, Use
from tests.agents.search import Find, Search
from tests.agents.test_claude import bash, until
from tests.agents.vault import SECRET, registry, vault
from tests.egress.conftest import OPEN, names
from tests.egress.servers import FORGE_TOKEN, Server, http_server
from tests.egress.test_secrets import write_rules
from tests.support.service import Service, serve, text

pytestmark = [pytest.mark.oci, pytest.mark.timeout(600), pytest.mark.real]

ADA = "ada@example.org"
CHAT = "secrets"
SETTINGS_TOKEN = secrets.token_urlsafe(40)
OUTSIDE = {
    "key": KEY,
    "mcp": SECRET,
    "token": FORGE_TOKEN.removeprefix("Basic "),
    "token, read": "token:hunter2",
    "settings": SETTINGS_TOKEN,
}

# Every kind of place, each with a secret that is nowhere in this text.
PLANT = """
import base64, ctypes, hashlib, mmap, os, subprocess, sys, time
def secret(word): return hashlib.sha256(word.encode()).hexdigest()
if len(sys.argv) < 2:
    os.execve(sys.executable, [sys.executable, __file__, secret("cmdline")], {**os.environ, "PLANTED": secret("environ")})
page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page.write(secret("read-only").encode())
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, mmap.PROT_READ) == 0
wide = bytearray(secret("wide").encode("utf-16-le"))
gone = open("/tmp/gone", "w"); gone.write(secret("gone")); gone.flush(); os.unlink("/tmp/gone")
named = open("/tmp/" + secret("fd"), "w")
open("/dev/shm/shared", "w").write(secret("shared"))
open("/mnt/user-data/outputs/file", "w").write(secret("file"))
open("encoded", "wb").write(base64.b64encode(b"somebody:" + secret("encoded").encode() + b"\\n"))
subprocess.run(["tmux", "set-buffer", secret("tmux")], check=True)
open("planted", "w")
time.sleep(600)
"""
WORDS = ("cmdline", "environ", "read-only", "wide", "gone", "fd", "shared", "file", "encoded", "tmux")


@dataclass
class Forge:
    """Git's own server behind TLS, for whoever has the token; and the authority that vouches for it."""

    server: Server
    trust: ssl.SSLContext
    repository: Path

    @property
    def url(self) -> str:
        return f"https://api.test:{self.server.port}/git/repo.git"

    def log(self) -> str:
        command = ["git", "--git-dir", str(self.repository), "log", "--oneline", "main"]
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    folder = tmp_path_factory.mktemp("forge")
    repository = folder / "www" / "git" / "repo.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(repository)], check=True, timeout=30)
    authority = Authority(folder / "authority")
    authority.open()
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    with http_server(folder / "www", tls=authority.context("api.test")) as server:
        yield Forge(server, trust, repository)


async def user(request: Request) -> Response:
    """The settings service of the test: it knows one user, who has one token."""
    if request.headers.get("authorization") != f"Bearer {SETTINGS_TOKEN}" or request.path_params["email"] != ADA:
        return Response(status_code=404)
    return JSONResponse({"tokens": [{"name": "forge", "host": "api.test", "value": FORGE_TOKEN}]})


@pytest.fixture(scope="module")
async def service(
    tmp_path_factory: pytest.TempPathFactory, module_api: tuple[FakeApi, str], forge: Forge
) -> AsyncIterator[Service]:
    """One with an egress proxy, a settings service and an MCP server."""
    folder = tmp_path_factory.mktemp("s")
    users = Starlette(routes=[Route("/users/{email}", user)])
    async with (
        vault() as vault_url,
        serve(users) as users_url,
        httpx.AsyncClient(timeout=60, trust_env=False, verify=False) as web,
        emptied(folder / "data"),
    ):
        tokens = UserTokens(SettingsService(web, users_url, SETTINGS_TOKEN))
        egress = EgressProxy(
            OPEN,
            folder=folder / "egress",
            rules_file=write_rules(folder, inject={}),
            resolve=names,
            trust=forge.trust,
            additions=tokens.rules,
        )
        servers = registry(folder, {"vault": {"url": vault_url, "headers": {"Authorization": f"Bearer {SECRET}"}}})
        async with agents_service(
            folder / "data", module_api[1], egress=egress, tokens=tokens, mcp_servers_file=servers
        ) as running:
            yield running


async def search(service: Service, secrets: dict[str, str]) -> tuple[Search, set[Find]]:
    async with service.fleet.lease(Chat(CHAT), create=False) as machine:
        driver = service.fleet._driver
        assert isinstance(driver, OciDriver)
        looking = Search(secrets)
        return looking, await asyncio.to_thread(looking.through, driver, machine.name)


async def test_no_credential_is_in_the_sandbox_while_an_agent_uses_them_all(
    service: Service, api: FakeApi, forge: Forge
) -> None:
    push = (
        f"git clone -q {forge.url} && cd repo && git checkout -q -b main && date > f && git add f && "
        "git -c user.name=a -c user.email=a@b commit -q -m pushed && git push -q origin main"
    )
    api.script = [Use("mcp__vault__open_vault", {"drawer": "third"}), bash(push), Hold("The end."), Say("never said")]
    sent = {"X-MCP-Servers": "vault", "X-User-Email": ADA}
    run = asyncio.create_task(service.call("sub_agent", {"prompt": "Use all."}, chat=CHAT, headers=sent))
    await asyncio.wait_for(api.holding.wait(), 240)
    said = json.dumps(api.requests[-1]["messages"])
    assert "is a golden egg" in said
    assert "pushed" in forge.log(), said
    assert api.headers[-1]["x-api-key"] == KEY

    # The answer of the model's API is half here: the agent, the guest and the service all hold its connection.
    looking, found = await search(service, OUTSIDE)
    assert not found
    assert looking.processes >= 4  # the guest, the agent, tmux and a window at least
    assert looking.mapped > 100 << 20
    assert looking.files > 10
    assert looking.disk > 1 << 20
    api.released.set()
    assert text(await run).startswith("The end.")


async def test_the_search_would_find_a_secret_of_every_kind(service: Service) -> None:
    async with service.fleet.lease(Chat(CHAT)) as machine:
        await machine.write("/home/assistant/plant.py", PLANT.encode())
        plant = "tmux -u new-session -d -s main 2>/dev/null; setsid python3 plant.py </dev/null >/tmp/errors 2>&1 &"
        await service.bash(plant, chat=CHAT)
        await until(service, "test -e planted || { cat /tmp/errors; false; }", CHAT)
    planted = {word: hashlib.sha256(word.encode()).hexdigest() for word in WORDS}
    _, found = await search(service, planted | {"guest": '"home":"/home/assistant"'})
    kinds = {(find.secret, find.kind) for find in found}
    assert kinds >= {
        ("cmdline", "cmdline"),
        ("environ", "environ"),
        ("read-only", "memory r--p"),
        ("wide", "memory rw-p"),
        ("gone", "open file"),
        ("fd", "fd"),
        ("shared", "file"),
        ("file", "file"),
        ("file", "disk"),
        ("encoded", "file"),
    }
    where = {(find.secret, find.where.split()[-1].split("\0")[0].rpartition("/")[2]) for find in found}
    assert ("tmux", "tmux") in where, "the buffers of the terminal"
    assert {find.kind for find in found if find.secret == "guest"} >= {"cmdline", "memory rw-p"}
