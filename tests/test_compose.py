"""`docker compose up` for a whole service: built, started, used, restarted and taken down, for real.

What the registries' base images would bring is taken from our own image, so that no registry is asked for one. The
image of the sandboxes is that one, too: building it anew from deploy/Dockerfile takes minutes, and is done by
`CUBICLE_LONG=1`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shlex
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest

from cubicle.drivers.docker.engine import EngineAddress, ensure_image
from cubicle.images import builder
from cubicle.images.store import ImageStore
from cubicle.settings import load
from tests.browser.typist import Typist
from tests.conftest import absent
from tests.drivers.makers import some_base
from tests.support.process import free_port
from tests.support.service import ACCEPT, messages, text

pytestmark = [pytest.mark.docker, pytest.mark.real, pytest.mark.timeout(1200)]
# A browser drops what it is loading whenever an interface of the machine comes or goes, and here some do: nothing beside it.
serial = pytest.mark.serial

ROOT = Path(__file__).parents[1]
KEY = "a-key-of-the-test"
VARIANT = "compose-test"
PYTHON_IMAGE, DEBIAN_IMAGE, SERVICE_IMAGE = (f"cubicle{name}:compose-test" for name in ("-python", "-debian", ""))
INDEX_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


def program() -> list[str]:
    """Compose: a part of the docker command, or the older program of its own."""
    asked = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False)
    if asked.returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose") is None:
        absent("needs docker compose: scripts/packages test")
    return ["docker-compose"]


def done(argv: list[str], limit: float = 300, **options: Any) -> str:
    """What a program prints; it must end well."""
    result = subprocess.run(argv, capture_output=True, text=True, timeout=limit, check=False, **options)
    assert result.returncode == 0, f"{' '.join(argv)}: {result.stdout[-3000:]}{result.stderr[-3000:]}"
    return result.stdout


@dataclass
class Stack:
    """The service of deploy/compose.yml, and a client of it."""

    folder: Path
    port: int
    argv: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The engine of a test has no network that reaches an index; and the service's image is the test's own.
        build = {"network": "host"}
        changed = {"service": {"image": SERVICE_IMAGE, "build": build}, "sandbox-image": {"build": build}}
        override = self.folder / "override.yml"
        override.write_text(json.dumps({"services": changed}))
        files = ["-f", str(ROOT / "deploy/compose.yml"), "-f", str(override)]
        self.argv = [*program(), "-p", f"cubicle-test-{self.port}", *files]

    def compose(self, *arguments: str, limit: float = 300, **more: str) -> str:
        environment = {
            "MCP_API_KEY": KEY,
            "PORT": str(self.port),
            "STATE_DIR": str(self.folder / "state"),
            "DOCKER_SOCKET": load().docker_host.removeprefix("unix://"),
            "VARIANT": VARIANT,
            "PYTHON_IMAGE": PYTHON_IMAGE,
            "DEBIAN_IMAGE": DEBIAN_IMAGE,
        }
        return done([*self.argv, *arguments], limit, env=os.environ | environment | more)

    @property
    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {KEY}"}
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=60, trust_env=False, verify=False
        )

    async def healthy(self, limit: float = 120, logs: list[str] | None = None) -> None:
        deadline = time.monotonic() + limit
        async with self.client as client:
            while time.monotonic() < deadline:
                try:
                    if (await client.get("/health")).status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.2)
        asked = subprocess.run(
            logs or [*self.argv, "logs", "service"], capture_output=True, text=True, timeout=60, check=False
        )
        raise AssertionError(f"the service does not answer: {asked.stdout[-3000:]}{asked.stderr[-3000:]}")

    async def bash(self, command: str, chat: str = "composed") -> str:
        params = {"name": "bash_tool", "arguments": {"command": command, "description": "test"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        async with self.client as client:
            answer = await client.post("/mcp", json=body, headers={"Accept": ACCEPT, "X-Chat-Id": chat})
        result = messages(answer)[-1]["result"]
        assert not result["isError"], result
        return text(result)

    def sandboxes(self) -> list[str]:
        """The containers of the service's sandboxes that run."""
        instance = hashlib.sha256(os.fsencode(self.folder / "state/data")).hexdigest()[:12]
        return done(["docker", "ps", "-q", "--filter", f"label=cubicle.instance={instance}"], 60).split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
async def images(folder: Path) -> None:
    """The image of the sandboxes, and a stand-in for the registry's Python, made of it."""
    store = ImageStore(load().image_dir)
    client = EngineAddress(load().docker_host).client()
    try:
        base = await asyncio.to_thread(some_base, store)
        image = await ensure_image(client, store, base.digest)
    finally:
        await client.close()
        await client.connector.close()
    await asyncio.to_thread(_stand_in, folder / "python", image.reference, PYTHON_IMAGE)
    await asyncio.to_thread(done, ["docker", "tag", image.reference, f"cubicle-sandbox:{VARIANT}"], 60)


def _stand_in(context: Path, reference: str, name: str) -> None:
    """How this machine reaches its index of packages goes with it: certificates, and the index that variables name."""
    context.mkdir()
    trusted = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    shutil.copy(trusted or "/etc/ssl/certs/ca-certificates.crt", context / "ca.crt")
    variables = {"SSL_CERT_FILE": "/opt/ca.crt", "PIP_CERT": "/opt/ca.crt"}
    variables |= {name: os.environ[name] for name in INDEX_VARIABLES if name in os.environ}
    lines = [f"FROM {reference}", "USER root", "COPY ca.crt /opt/ca.crt"]
    lines += [f"ENV {name}={json.dumps(value)}" for name, value in variables.items()]
    (context / "Dockerfile").write_text("\n".join(lines) + "\n")
    done(["docker", "build", "-t", name, str(context)], 300)


@pytest.fixture(scope="module")
def built(folder: Path, images: None) -> Stack:
    """The service's image is there. The engine still knows the layers that another process of this run had it build."""
    stack = Stack(folder, free_port())
    (folder / "state").mkdir()
    stack.compose("build", "service", limit=600)
    return stack


@pytest.fixture(scope="module")
def stack(built: Stack) -> Iterator[Stack]:
    stack = built
    try:
        stack.compose("up", "-d", "--no-build")
        yield stack
    finally:
        try:
            stack.compose("run", "--rm", "--no-deps", "service", "rm", "--all")
        finally:
            stack.compose("down", "--timeout", "20")


@pytest.fixture
async def up(stack: Stack) -> Stack:
    await stack.healthy()
    return stack


async def test_the_image_of_the_service_is_built_and_starts(built: Stack) -> None:
    """Without a network, and beside other tests: what the tests below wait for is then there."""
    run = ["docker", "run", "--rm", "--network", "none", SERVICE_IMAGE, "--version"]
    assert await asyncio.to_thread(done, run, 120) == f"cubicle, version {version('cubicle')}\n"


@serial
async def test_a_command_runs_in_a_container_beside_the_service(up: Stack) -> None:
    assert await up.bash("id -un && hostname") == "assistant\ncubicle\n"
    assert await asyncio.to_thread(up.sandboxes)


@serial
async def test_files_go_in_and_come_out(up: Stack) -> None:
    async with up.client as client:
        sent = await client.post("/api/uploads/composed/letter.txt", content=b"from outside")
        assert sent.status_code == 201, sent.text
        assert await up.bash("tr a-z A-Z < /mnt/user-data/uploads/letter.txt | tee /mnt/user-data/outputs/loud.txt")
        fetched = await client.get("/files/composed/loud.txt")
    assert fetched.text == "FROM OUTSIDE"


@serial
async def test_a_person_types_into_the_terminal(up: Stack) -> None:
    async with up.client as client:
        started = await client.post("/terminal/composed/start-ttyd")
        assert started.json()["running"], started.text
    headers = {"Authorization": f"Bearer {KEY}"}
    typist = await Typist.at(f"ws://127.0.0.1:{up.port}/terminal/composed/ws", headers=headers)
    await typist.type("echo $((6 * 7))-typed\n")
    await typist.until("42-typed", 60)
    await typist.leave()


@serial
async def test_the_walls_are_proved_from_inside_the_service(up: Stack) -> None:
    said = await asyncio.to_thread(up.compose, "exec", "-T", "service", "cubicle", "doctor", "--prove", limit=1000)
    assert "none is open" in said, said
    async with up.client as client:
        told = (await client.get("/health/walls")).json()
    # The service is in a container of its own: what asks the host's own files and processes cannot be tried from there.
    verdicts = [finding["verdict"] for finding in told["findings"]]
    assert told["not_checked"] == verdicts.count("not checked") == 3
    assert "missing" not in verdicts
    assert not told["holds"]
    assert told["attempts"] > 60


@serial
async def test_no_sandbox_holds_the_engines_socket(up: Stack) -> None:
    await up.bash("true")
    for container in await asyncio.to_thread(up.sandboxes):
        (shown,) = json.loads(await asyncio.to_thread(done, ["docker", "inspect", container], 60))
        assert not [mount for mount in shown["Mounts"] if mount["Source"].endswith(".sock")]
        assert shown["HostConfig"]["NetworkMode"] == "none"


@serial
async def test_a_restarted_service_goes_on_with_the_sandboxes_that_run(up: Stack) -> None:
    started = "until pgrep -x sleep >/dev/null; do :; done"
    await up.bash(f"echo kept > ~/note; setsid sleep 3600 </dev/null >/dev/null 2>&1 & {started}")
    before = await up.bash("pgrep -x sleep")
    await asyncio.to_thread(up.compose, "restart", "--timeout", "20", "service")
    await up.healthy()
    assert await up.bash("pgrep -x sleep; cat ~/note") == f"{before}kept\n"


@serial
async def test_a_service_that_was_taken_down_finds_its_chats_again(up: Stack) -> None:
    await up.bash("echo still > ~/there")
    await asyncio.to_thread(up.compose, "down", "--timeout", "20")
    assert await asyncio.to_thread(up.sandboxes), "sandboxes outlive the service"
    await asyncio.to_thread(up.compose, "up", "-d", "--no-build")
    await up.healthy()
    assert await up.bash("cat ~/there") == "still\n"


@serial
async def test_the_engine_hears_that_the_service_is_well(up: Stack) -> None:
    """By the health check that the image carries, asked now and not in half a minute."""
    container = (await asyncio.to_thread(up.compose, "ps", "-q", "service")).strip()
    shown = await asyncio.to_thread(done, ["docker", "inspect", container], 60)
    check = json.loads(shown)[0]["Config"]["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    await asyncio.to_thread(done, ["docker", "exec", container, *check[1:]], 60)


@serial
async def test_the_documented_docker_run_starts_a_service(up: Stack, tmp_path: Path) -> None:
    """The command of docs/docker.md, but for what this machine has elsewhere: names, port, socket, folder."""
    alone = Stack(tmp_path, free_port())
    state = tmp_path / "state"
    state.mkdir()
    name = f"cubicle-test-run-{alone.port}"
    argv = documented_run(
        {
            "cubicle": SERVICE_IMAGE,
            "--name cubicle": f"--name {name}",
            "127.0.0.1:8081:": f"127.0.0.1:{alone.port}:",
            "-v /var/run/docker.sock": f"-v {load().docker_host.removeprefix('unix://')}",
            "/var/lib/cubicle:/var/lib/cubicle": f"{state}:{state}",
        }
    )
    settings = {
        "DATA_DIR": state / "data",
        "IMAGE_DIR": state / "images",
        "SANDBOX_IMAGE": f"cubicle-sandbox:{VARIANT}",
    }
    options = [word for key, value in settings.items() for word in ("-e", f"{key}={value}")]
    # The engine of the tests has no bridge of its own: the container joins the network that compose made.
    network = ["--network", f"cubicle-test-{up.port}_default"]
    argv[2:2] = [*network, *options]
    await asyncio.to_thread(done, argv, 60, env=os.environ | {"MCP_API_KEY": KEY})
    try:
        await alone.healthy(logs=["docker", "logs", name])
        assert await alone.bash("id -un") == "assistant\n"
    finally:
        await asyncio.to_thread(done, ["docker", "rm", "-f", name], 120)
        gone = ["docker", "run", "--rm", *options, *argv[argv.index("-v") : -1], SERVICE_IMAGE, "rm", "--all", "--now"]
        await asyncio.to_thread(done, gone, 120)


def documented_run(changes: dict[str, str]) -> list[str]:
    """The words of the `docker run` of docs/docker.md, with these parts replaced; the first replaces the image."""
    page = (ROOT / "docs/docker.md").read_text()
    command = page[page.index("docker run -d") :].split("```")[0].replace("\\\n", " ").strip()
    (image, own), *parts = changes.items()
    assert command.endswith(f" {image}")
    command = command.removesuffix(image) + own
    for part, instead in parts:
        assert command.count(part) == 1, part
        command = command.replace(part, instead)
    return shlex.split(command)


@serial
@pytest.mark.timeout(3600)
@pytest.mark.long
async def test_the_image_of_the_sandboxes_is_built_from_a_bare_debian(up: Stack) -> None:
    await asyncio.to_thread(_build_from_bare_debian, up)
    look = [
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "cubicle-sandbox:slim",
        "bash",
        "-c",
        "id -un; command -v ttyd",
    ]
    assert await asyncio.to_thread(done, look, 120) == "assistant\n/usr/bin/ttyd\n"


def _build_from_bare_debian(stack: Stack) -> None:
    bare, tree = "cubicle-bare:compose-test", stack.folder / "bare.tar"
    done(["mmdebstrap", "--variant=minbase", builder.RELEASE, str(tree), *builder.sources(builder.RELEASE)], 900)
    done(["docker", "import", str(tree), bare])
    _stand_in(stack.folder / "debian", bare, DEBIAN_IMAGE)
    stack.compose("build", "sandbox-image", limit=1800, VARIANT="slim")
