"""Package managers and the browser in a sandbox of the true image, each against a small index of the test's own.

They are told where the index is, as they would be of any private one, and nothing about the proxy: neither a proxy nor
a certificate.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cubicle.drivers.oci.driver import OciDriver
from cubicle.images.store import SUBUID_START, BuiltImage, ImageStore
from cubicle.machine.errors import Unusable
from cubicle.machine.machine import Machine
from cubicle.settings import load
from tests.conftest import absent
from tests.egress.conftest import Audit, Behind
from tests.egress.servers import Server, http_server
from tests.egress.test_secrets import World, world, write_rules

pytestmark = [pytest.mark.anyio, pytest.mark.oci, pytest.mark.real, pytest.mark.timeout(900)]
__all__ = ["world"]


@pytest.fixture
def driver(tmp_path: Path) -> OciDriver:
    store = ImageStore(load().image_dir)
    return OciDriver(tmp_path / "data", store, _with_everything(store).digest, SUBUID_START, runtime="runc")


def _with_everything(store: ImageStore) -> BuiltImage:
    for variant in ("standard", "full"):
        try:
            return store.resolve(variant)
        except Unusable:
            continue
    absent("needs the sandbox image standard: make image")
    raise AssertionError


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "www"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def server(site: Path) -> Iterator[Server]:
    with http_server(site) as running:
        yield running


async def said(machine: Machine, command: str) -> str:
    """What a command prints; it must end well, in whatever time a busy machine takes."""
    exit, output = await machine.output(command, timeout=240)
    assert exit.code == 0, output.decode(errors="replace")
    return output.decode()


def heard(audit: Audit, host: str) -> set[str]:
    """By which protocols a host was reached."""
    return {line["protocol"] for line in audit.of("allowed") if line["host"] == host}


def write_wheel(folder: Path) -> Path:
    """A wheel as PEP 427 has it, its RECORD with the hash of each file."""
    info = "tiny_thing-1.0.dist-info"
    files = {
        "tiny_thing.py": "WORD = 'a wheel arrived'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tiny-thing\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{name},{_digest(text)},{len(text)}" for name, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    path = folder / "tiny_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def _digest(text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"sha256={digest}"


async def test_pip_installs_from_an_index(
    behind: Behind, driver: OciDriver, site: Path, world: World, tmp_path: Path, audit: Audit
) -> None:
    """Over HTTPS, to a host whose certificate nobody outside of the proxy has to trust."""
    wheel = write_wheel(site)
    page = site / "simple/tiny-thing/index.html"
    page.parent.mkdir(parents=True)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page.write_text(f'<!DOCTYPE html><a href="../../{wheel.name}#sha256={digest}">{wheel.name}</a>')
    async with behind(driver=driver, rules=write_rules(tmp_path), trust=world.trust) as machine:
        index = f"https://api.test:{world.server.port}/simple"
        await said(machine, f"pip install --index-url {index} tiny-thing")
        assert await said(machine, "python3 -c 'import tiny_thing; print(tiny_thing.WORD)'") == "a wheel arrived\n"
    assert heard(audit, "api.test") == {"https"}


async def test_npm_installs_from_a_registry(
    behind: Behind, driver: OciDriver, site: Path, world: World, tmp_path: Path, audit: Audit
) -> None:
    package = site / "package"
    package.mkdir()
    (package / "package.json").write_text(json.dumps({"name": "tiny-thing", "version": "1.0.0", "main": "index.js"}))
    (package / "index.js").write_text("module.exports = 'a package arrived'\n")
    subprocess.run(["tar", "czf", "tiny-thing.tgz", "package"], cwd=site, check=True, timeout=60)
    base = f"https://api.test:{world.server.port}"
    sealed = base64.b64encode(hashlib.sha512((site / "tiny-thing.tgz").read_bytes()).digest()).decode()
    dist = {"tarball": f"{base}/tiny-thing.tgz", "integrity": f"sha512-{sealed}"}
    version = {"name": "tiny-thing", "version": "1.0.0", "main": "index.js", "dist": dist}
    document = {"name": "tiny-thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
    (site / "tiny-thing").write_text(json.dumps(document))
    async with behind(driver=driver, rules=write_rules(tmp_path), trust=world.trust) as machine:
        await said(machine, f"mkdir fresh && cd fresh && npm install --no-audit --registry {base}/ tiny-thing")
        assert await said(machine, "cd fresh && node -p \"require('tiny-thing')\"") == "a package arrived\n"
    assert heard(audit, "api.test") == {"https"}


async def test_apt_fetches_from_an_archive(
    behind: Behind, driver: OciDriver, site: Path, server: Server, audit: Audit
) -> None:
    """In folders of the user's own, for nobody in a sandbox is root."""
    tree = site / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = "Package: tiny-thing\nVersion: 1.0\nArchitecture: all\nMaintainer: A Test <a@test>\nDescription: tiny\n"
    (tree / "DEBIAN/control").write_text(control)
    (tree / "usr/share/tiny-thing").mkdir(parents=True)
    (tree / "usr/share/tiny-thing/word").write_text("a package arrived\n")
    subprocess.run(["dpkg-deb", "--build", tree, site / "tiny-thing.deb"], check=True, timeout=60, capture_output=True)
    built = (site / "tiny-thing.deb").read_bytes()
    where = f"Filename: ./tiny-thing.deb\nSize: {len(built)}\nSHA256: {hashlib.sha256(built).hexdigest()}\n"
    (site / "Packages").write_text(control + where)
    archive = f"deb [trusted=yes] http://archive.test:{server.port} ./"
    own = (
        "-o Dir::Etc::sourcelist=$HOME/sources.list -o Dir::Etc::sourceparts=- -o Dir::State=$HOME -o Dir::Cache=$HOME"
    )
    async with behind(driver=driver) as machine:
        await said(machine, f"echo '{archive}' > sources.list; mkdir -p lists/partial archives/partial")
        await said(machine, f"apt-get {own} update && apt-get {own} download tiny-thing && dpkg-deb -x *.deb here")
        assert await said(machine, "cat here/usr/share/tiny-thing/word") == "a package arrived\n"
    assert heard(audit, "archive.test") == {"http"}


async def test_chromium_shows_a_page(
    behind: Behind, driver: OciDriver, site: Path, server: Server, audit: Audit
) -> None:
    (site / "page.html").write_text("<title>a page arrived</title>")
    program = f"""
from playwright.sync_api import sync_playwright
with sync_playwright() as playwright:
    browser = playwright.chromium.connect_over_cdp("http://127.0.0.1:9222", timeout=120_000)
    page = browser.contexts[0].new_page()
    page.goto("http://page.test:{server.port}/page.html", timeout=120_000)
    print(page.title())
    page.goto("http://10.0.0.1/", timeout=120_000)
    print(page.inner_text("body"))
"""
    async with behind(driver=driver) as machine:
        await said(machine, "cubicle-browser")
        shown = await said(machine, f"python3 - <<'END'\n{program}\nEND")
    assert shown.startswith("a page arrived\n")
    assert "Rule: closed addresses" in shown
    assert heard(audit, "page.test") == {"http"}
