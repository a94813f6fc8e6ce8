"""Programs that people use find the proxy by its variables, unchanged."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.egress.conftest import CHAT, Audit, Behind, shell
from tests.egress.servers import Server, http_server
from tests.setup.programs import pip_wheel, put_node

pytestmark = [pytest.mark.anyio, pytest.mark.real]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "www"
    folder.mkdir()
    return folder


@pytest.fixture
def server(site: Path) -> Iterator[Server]:
    with http_server(site) as running:
        yield running


def home(folder: Path) -> Path:
    """/home/assistant of the sandbox, as this machine sees it."""
    return folder / "memory" / CHAT.digest / "home"


def through(audit: Audit, host: str) -> bool:
    return any(line["host"] == host for line in audit.of("allowed"))


async def test_git_clones(behind: Behind, site: Path, server: Server, audit: Audit) -> None:
    script = """
git init -q -b main src && cd src && echo hello > file && git add file
git -c user.name=a -c user.email=a@b commit -q -m one && cd ..
git clone -q --bare src repo.git && git --git-dir=repo.git update-server-info
"""
    subprocess.run(["sh", "-ec", script], cwd=site, check=True, timeout=120)
    async with behind() as machine:
        output = await shell(machine, f"git clone -q http://git.test:{server.port}/repo.git && cat repo/file")
    assert output.endswith("hello\n")
    assert through(audit, "git.test")


async def test_pip_downloads(behind: Behind, site: Path, server: Server, audit: Audit, tmp_path: Path) -> None:
    wheel = site / "files" / "tiny_thing-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_thing.py", "x = 1\n")
        archive.writestr("tiny_thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n")
        archive.writestr(
            "tiny_thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_thing-1.0.dist-info/RECORD", "")
    page = site / "simple" / "tiny-thing" / "index.html"
    page.parent.mkdir(parents=True)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page.write_text(
        f'<!DOCTYPE html><html><body><a href="/files/{wheel.name}#sha256={digest}">{wheel.name}</a></body></html>'
    )
    async with behind() as machine:
        shutil.copy(pip_wheel(), home(tmp_path) / "pip.whl")
        output = await shell(
            machine,
            "python3 pip.whl/pip download -q --no-deps --disable-pip-version-check --trusted-host index.test"
            f" --index-url http://index.test:{server.port}/simple tiny-thing; ls",
        )
    assert wheel.name in output
    assert through(audit, "index.test")


async def test_npm_installs(behind: Behind, site: Path, server: Server, audit: Audit, tmp_path: Path) -> None:
    package = site / "package"
    package.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "tiny-thing", "version": "1.0.0"}))
    subprocess.run(["tar", "czf", "tiny-thing.tgz", "package"], cwd=site, check=True, timeout=30)
    base = f"http://registry.test:{server.port}"
    dist = {
        "tarball": f"{base}/tiny-thing.tgz",
        "shasum": hashlib.sha1((site / "tiny-thing.tgz").read_bytes()).hexdigest(),
    }
    version = {"name": "tiny-thing", "version": "1.0.0", "dist": dist}
    (site / "tiny-thing").write_text(
        json.dumps({"name": "tiny-thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
    )
    async with behind() as machine:
        put_node(home(tmp_path))
        npm = "./node npm/bin/npm-cli.js install --prefix ./fresh --no-audit --no-fund"
        output = await shell(machine, f"mkdir fresh; {npm} --registry {base}/ tiny-thing 2>&1; ls fresh/node_modules")
    assert "tiny-thing" in output.splitlines()[-1], output
    assert through(audit, "registry.test")


async def test_python_fetches(behind: Behind, server: Server, audit: Audit) -> None:
    program = f"import urllib.request as r; print(r.urlopen('http://py.test:{server.port}/echo').status)"
    async with behind() as machine:
        _, output = await machine.output(["python3", "-c", program], timeout=120)
    assert output == b"200\n"
    assert through(audit, "py.test")


async def test_node_24_fetches(behind: Behind, server: Server, audit: Audit, tmp_path: Path) -> None:
    async with behind() as machine:
        put_node(home(tmp_path))
        program = f"fetch('http://node.test:{server.port}/echo').then(r => r.json()).then(r => console.log(r.method))"
        _, output = await machine.output(["/home/assistant/node", "-e", program], timeout=60)
    assert output.strip().endswith(b"GET"), output
    assert through(audit, "node.test")


async def test_a_denied_program_shows_the_model_why(behind: Behind, audit: Audit) -> None:
    async with behind() as machine:
        output = await shell(
            machine,
            "python3 -c 'import urllib.request as r; r.urlopen(\"https://10.0.0.1/\")'",
        )
    assert "Denied by rule 'closed addresses' of the sandbox's egress proxy" in output
