"""Key files that cannot be used, issuers that are down or do not answer: a clear error, and nothing opens by it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.responses import JSONResponse, Response
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from cubicle.app import running
from cubicle.chat.authentication import Who
from cubicle.drivers.factory import make_driver
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.routes import WEBSOCKET
from cubicle.oauth import documents
from cubicle.settings import BadSettings, Settings
from tests.oauth.issuer_server import IssuerServer, issuer_server
from tests.support.emptying import empty
from tests.support.process import free_port
from tests.support.service import serve

BASE = "https://box.example"
TABLE = RouteTable()
PUBLIC = (Who.ANYBODY, Who.CAPABILITY)
FAULTS: dict[str, Response | None] = {
    "answers with an error": Response("down", 500),
    "has no keys": JSONResponse({"keys": []}),
    "sends a page": Response("<html>sign in</html>", media_type="text/html"),
    "leads elsewhere": Response(status_code=302, headers={"Location": "http://127.0.0.1:9/"}),
    "does not answer": None,
}


@asynccontextmanager
async def site_of(folder: Path, issuer: IssuerServer) -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    settings = Settings(  # type: ignore[call-arg]
        _env_file=None, driver="memory", data_dir=folder / "data", pool_size=0, mcp_api_key="a-good-key",
        public_base_url=BASE, oauth_issuers=issuer.url, oauth_role_claim="roles", oauth_client_id="pages",
    )  # fmt: skip
    async with (
        running(settings) as app,
        serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, verify=False) as client,
    ):
        yield url, client
    await empty(make_driver(settings))


ROWS = {
    fault: TABLE.rows if os.environ.get("CUBICLE_LONG") else TABLE.rows[at :: len(FAULTS)]
    for at, fault in enumerate(FAULTS)
}
"""Each route meets one of them; with CUBICLE_LONG=1 all."""


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_route_opens_to_a_token_whose_issuer_fails(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "TIMEOUT", 0.3)
    async with issuer_server() as issuer:
        issuer.jwks, issuer.silent = FAULTS[fault], asyncio.Event() if FAULTS[fault] is None else None
        token = {"Authorization": f"Bearer {issuer.token(aud=f'{BASE}/mcp', roles=['operator'])}"}
        try:
            async with site_of(tmp_path, issuer) as (url, client):
                for row in ROWS[fault]:
                    path = re.sub(r"\{(\w+)\}", lambda m: "4" if m[1] in ("pid", "port") else "x", row.template)
                    if row.methods == WEBSOCKET:
                        assert await _close_code(url.replace("http", "ws") + path, token) == 4401, path
                        continue
                    answer = await client.request("PATCH", path + ("/x" if row.mount else ""), headers=token)
                    assert (answer.status_code == 503) is (row.who not in PUBLIC), (path, answer.status_code)
                    if row.who not in PUBLIC:
                        assert "cannot be checked" in answer.text
                        assert answer.headers["Retry-After"] == "5"
                # Keys work on, and a person is told to use one.
                good = {"Authorization": "Bearer a-good-key"}
                assert (await client.get("/api/sandboxes", headers=good)).status_code == 200
                begun = await client.get("/login/oauth")
                assert (begun.status_code, "cannot be reached" in begun.text) == (503, True)
        finally:
            if issuer.silent is not None:
                issuer.silent.set()


async def _close_code(url: str, headers: dict[str, str]) -> int | None:
    try:
        async with asyncio.timeout(30), connect(url, proxy=None, additional_headers=headers) as socket:
            await socket.recv()
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None
    return None


SECRET = "a-key-that-must-not-be-shown"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("", "is empty"),
        ("{", "does not hold JSON"),
        ("[]", "one JSON object"),
        ("{}", "holds no key"),
        (f'{{"{SECRET}": "main"}}', "no tenant may be named"),
        (f'{{"{SECRET}": "a", "{SECRET}": "b"}}', "names a key twice"),
        (f'{{"{SECRET}": "../etc"}}', "a tenant is 1 to 64 characters"),
        ('{"version": 9}', "another version"),
        ('{"version": 1, "salt": "00", "keys": []}', "salt"),
    ],
)
async def test_a_service_does_not_start_with_a_bad_key_file(content: str | None, said: str, tmp_path: Path) -> None:
    """Not even with MCP_API_KEY beside it, unless the file is only without a key: it would serve fewer than it should."""
    file = tmp_path / "keys.json"
    if content is not None:
        file.write_text(content)
    values = {"driver": "memory", "data_dir": tmp_path / "data", "api_keys_file": file}
    with pytest.raises(BadSettings) as refused:
        async with running(Settings(_env_file=None, **values)):  # type: ignore[arg-type, call-arg]
            pass
    assert said in " ".join(str(refused.value).split())
    assert SECRET not in str(refused.value)


def test_a_bad_key_file_ends_the_program_with_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    file.write_text(f'{{"{SECRET}": "a", "{SECRET}": "b"}}')
    environment = os.environ | {"DRIVER": "memory", "DATA_DIR": str(tmp_path / "data"), "PORT": str(free_port())}
    environment |= {"API_KEYS_FILE": str(file), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-c", "from cubicle.cli import main; main()", "serve"],
        env=environment, capture_output=True, text=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    shown = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "names a key twice" in " ".join(shown.split())
    assert "Traceback" not in shown
    assert SECRET not in shown
