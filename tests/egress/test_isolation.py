"""The proxy where it belongs: in the wall of a sandbox that has no other way out."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import pytest

from cubicle.egress.tls_authority import Authority
from cubicle.sandbox.driver import Driver
from tests.drivers.makers import docker, oci
from tests.egress.conftest import Audit, Behind, shell
from tests.egress.servers import http_server

pytestmark = pytest.mark.anyio

WALLED = [
    pytest.param(oci("runc"), id="oci-runc", marks=pytest.mark.oci),
    pytest.param(oci("runsc"), id="oci-runsc", marks=pytest.mark.oci),
    pytest.param(docker(""), id="docker-runc", marks=pytest.mark.docker),
    pytest.param(docker("runsc"), id="docker-runsc", marks=pytest.mark.docker),
]


@pytest.fixture(params=WALLED)
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    made: Driver = request.param(tmp_path)()
    return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    authority = Authority(tmp_path / "public-authority")
    authority.open()
    return authority


async def test_the_proxy_is_the_only_way_out(behind: Behind, driver: Driver, tmp_path: Path, audit: Audit) -> None:
    with http_server(tmp_path) as server:
        async with behind(driver=driver) as machine:
            assert machine.environment["HTTP_PROXY"] == "http://127.0.0.1:3128"
            url = f"http://web.test:{server.port}/echo"
            for way in ("", "-p", "-x socks5h://127.0.0.1:1080"):
                assert json.loads(await shell(machine, f"curl -sS {way} {url}"))["method"] == "GET"
            asked = server.callers
            for way in ("http://127.0.0.1", "http://8.8.8.8", "http://web.test"):
                output = await shell(machine, f"curl -sS --noproxy '*' --max-time 60 {way}:{server.port}/echo; echo $?")
                assert output.splitlines()[-1] in ("6", "7"), output
            links = await shell(machine, "cat /proc/net/dev /proc/net/route")
    assert server.callers == asked
    assert len(audit.of("allowed")) == 3
    assert [line.split(":")[0].strip() for line in links.splitlines() if ":" in line] == ["lo"]


async def test_a_secret_is_added_and_the_bundle_cannot_be_changed(
    behind: Behind, driver: Driver, authority: Authority, tmp_path: Path
) -> None:
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rules]]\nname = "t"\nhosts = ["api.test"]\naddresses = ["127.0.0.0/8"]\ninject.X-Token = "hunter2"'
    )
    rules.chmod(0o600)
    context = await asyncio.to_thread(authority.context, "api.test")
    with http_server(tmp_path, tls=context) as server:
        async with behind(driver=driver, rules=rules, trust=trust) as machine:
            answer = json.loads(await shell(machine, f"curl -sS https://api.test:{server.port}/echo"))
            touched = await shell(machine, "echo x >> /run/egress/ca.crt || rm -f /run/egress/ca.crt || echo no")
    assert answer["headers"]["x-token"] == "hunter2"
    assert touched.endswith("no\n")
