"""Secrets that the proxy adds, and the sandbox never sees."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cubicle.egress.tls_authority import Authority
from tests.egress.conftest import OPEN, Audit, Behind, shell
from tests.egress.servers import FORGE_TOKEN, Server, http_server

pytestmark = pytest.mark.anyio

SECRET = "Bearer hunter2"


class World:
    """A server with TLS, and the authority that vouches for it."""

    def __init__(self, server: Server, trust: ssl.SSLContext) -> None:
        self.server = server
        self.trust = trust


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "www").mkdir(exist_ok=True)
    authority = Authority(tmp_path / "public-authority")
    authority.open()
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    with http_server(tmp_path / "www", tls=authority.context("api.test")) as server:
        yield World(server, trust)


def write_rules(folder: Path, **fields: Any) -> Path:
    rule = {"name": "token", "hosts": ["api.test"], "inject": {"Authorization": SECRET}, **fields}
    path = folder / "rules.json"
    path.write_text(json.dumps({"rules": [rule | {"addresses": ["127.0.0.0/8"]}]}))
    path.chmod(0o600)
    return path


async def test_a_token_is_added_inside_tls(behind: Behind, world: World, tmp_path: Path, audit: Audit) -> None:
    async with behind(rules=write_rules(tmp_path), trust=world.trust) as machine:
        url = f"https://api.test:{world.server.port}/echo"
        answers = await shell(machine, f"curl -sS -H 'Authorization: mine' {url} && echo && curl -sS -d body {url}")
        environment = await shell(machine, "env; cat /run/egress/ca.crt | tail -c 2000; ls -la /run/egress")
    get, post = map(json.loads, answers.splitlines())
    assert get["headers"]["authorization"] == SECRET
    assert (post["method"], post["size"], post["headers"]["authorization"]) == ("POST", 4, SECRET)
    assert "hunter2" not in environment
    assert "PRIVATE" not in environment
    assert "hunter2" not in str(audit.text)
    assert [(line["protocol"], line["method"], line["headers_set"]) for line in audit.of("allowed")] == [
        *(("https", "GET", 1), ("https", "POST", 1))
    ]


async def test_a_token_is_added_through_socks_as_well(behind: Behind, world: World, tmp_path: Path) -> None:
    async with behind(rules=write_rules(tmp_path), trust=world.trust) as machine:
        url = f"https://api.test:{world.server.port}/echo"
        answer = json.loads(await shell(machine, f"curl -sS -x socks5h://$DOOR {url}"))
    assert answer["headers"]["authorization"] == SECRET


@pytest.mark.real
@pytest.mark.parametrize(
    "program",
    [
        "git ls-remote {url}/repo.git",
        "python3 -c 'import urllib.request as r; print(r.urlopen(\"{url}/echo\").read().decode())'",
        "python3 -m pip download --no-deps --disable-pip-version-check --index-url {url}/simple nothing",
        "npm view nothing --registry {url}/ --fetch-retries 0",
    ],
)
async def test_programs_trust_the_proxy(
    behind: Behind, world: World, tmp_path: Path, audit: Audit, program: str
) -> None:
    url = f"https://api.test:{world.server.port}"
    async with behind(rules=write_rules(tmp_path), trust=world.trust) as machine:
        output = await shell(machine, program.format(url=url))
    assert audit.of("allowed"), output
    assert audit.of("allowed")[0]["protocol"] == "https"


async def test_every_other_host_is_passed_through_untouched(behind: Behind, world: World, tmp_path: Path) -> None:
    rules = write_rules(tmp_path, hosts=["other.test"])
    async with behind(OPEN, rules=rules, trust=world.trust) as machine:
        output = await shell(machine, f"curl -sS https://api.test:{world.server.port}/echo")
    assert "certificate" in output, "the server's own certificate, which the sandbox does not know, came through"


async def test_a_server_that_cannot_prove_itself_gets_no_token(behind: Behind, world: World, tmp_path: Path) -> None:
    rules = write_rules(tmp_path, hosts=["wrong.test"])
    async with behind(rules=rules, trust=world.trust) as machine:
        output = await shell(
            machine, f"curl -sS -i --suppress-connect-headers https://wrong.test:{world.server.port}/echo"
        )
    assert output.startswith("HTTP/1.1 502 ")
    assert "is not valid" in output
    assert "Hostname mismatch" in output


async def test_rules_see_method_and_path_inside_tls(behind: Behind, world: World, tmp_path: Path, audit: Audit) -> None:
    rules = write_rules(tmp_path, methods=["GET"], paths=["/echo", "/api/*"])
    path = rules.read_text()
    rules.write_text(json.dumps({"mode": "allowlist", **json.loads(path)}))
    async with behind(rules=rules, trust=world.trust) as machine:
        url = f"https://api.test:{world.server.port}"
        assert SECRET in await shell(machine, f"curl -sS {url}/echo")
        assert "no rule of this service allows" in await shell(machine, f"curl -sS -d x {url}/echo")
        assert "no rule of this service allows" in await shell(machine, f"curl -sS {url}/big?n=1")
    assert len(audit.of("denied")) == 2


async def test_another_host_cannot_be_named_inside(behind: Behind, world: World, tmp_path: Path) -> None:
    async with behind(rules=write_rules(tmp_path), trust=world.trust) as machine:
        url = f"https://api.test:{world.server.port}/echo"
        output = await shell(machine, f"curl -sS -i --suppress-connect-headers -H 'Host: other.test' {url}")
    assert output.startswith("HTTP/1.1 421 ")


async def test_a_token_for_https_is_never_sent_in_the_open(behind: Behind, tmp_path: Path) -> None:
    with http_server(tmp_path) as server:
        async with behind(OPEN, rules=write_rules(tmp_path)) as machine:
            answer = json.loads(await shell(machine, f"curl -sS http://api.test:{server.port}/echo"))
    assert "authorization" not in answer["headers"]


async def test_a_token_for_plain_http_where_the_rule_says_so(behind: Behind, tmp_path: Path, audit: Audit) -> None:
    with http_server(tmp_path) as server:
        async with behind(OPEN, rules=write_rules(tmp_path, scheme="http")) as machine:
            answer = json.loads(
                await shell(machine, f"curl -sS -H 'authorization: x' http://api.test:{server.port}/echo")
            )
    assert answer["headers"]["authorization"] == SECRET
    assert audit.of("allowed")[0]["headers_set"] == 1


async def test_a_large_answer_comes_through_tls_whole(behind: Behind, world: World, tmp_path: Path) -> None:
    async with behind(rules=write_rules(tmp_path), trust=world.trust) as machine:
        url = f"https://api.test:{world.server.port}/big?n=20000000"
        assert (await shell(machine, f"curl -sS '{url}' | wc -c")).strip() == "20000000"


@pytest.mark.real
async def test_git_pushes_with_a_token_that_the_sandbox_never_sees(
    behind: Behind, world: World, tmp_path: Path, audit: Audit
) -> None:
    repository = tmp_path / "www" / "git" / "repo.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", "main", str(repository)], check=True, timeout=30)
    rules = write_rules(tmp_path, inject={"Authorization": FORGE_TOKEN})
    async with behind(rules=rules, trust=world.trust) as machine:
        output = await shell(
            machine,
            f"git clone -q https://api.test:{world.server.port}/git/repo.git && cd repo && head -c 3000000 /dev/urandom > f"
            " && git checkout -q -b main && git add f && git -c user.name=a -c user.email=a@b commit -q -m one"
            " && git push -q origin main && echo pushed; grep -rs hunter2 ~; env | grep -i basic",
        )
    assert output.splitlines()[-1] == "pushed", output
    log = subprocess.run(
        ["git", "--git-dir", str(repository), "log", "--oneline", "main"], capture_output=True, timeout=30
    )
    assert b"one" in log.stdout
    assert {line["headers_set"] for line in audit.of("allowed")} == {1}
