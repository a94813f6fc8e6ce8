"""`cubicle serve` and the commands beside it, as programs of their own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pty
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.support.fork_server import the_server
from tests.support.process import ServiceProcess

pytestmark = pytest.mark.real
PROGRAM = [sys.executable, "-c", "from cubicle.cli import main; main()"]


@pytest.fixture(scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServiceProcess]:
    folder: Path = tmp_path_factory.mktemp("running")
    service = ServiceProcess(folder / "data", DRIVER="memory", POOL_SIZE="0")
    try:
        await service.start()
        yield service
    finally:
        service.kill()
        await service.client.aclose()
        await asyncio.to_thread(said, folder, "rm", "--all")


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "DATA_DIR": str(folder / "data"),
        "DRIVER": "memory",
        "PORT": "0",
        "COLUMNS": "300",
        "LOG_FORMAT": "json",
    }


def said(folder: Path, *arguments: str, **changes: str) -> tuple[int, str]:
    """(exit code, output) of one command."""
    with tempfile.TemporaryFile() as output:
        code = the_server().start(arguments, environment(folder) | changes, folder, output.fileno()).wait(200)
        output.seek(0)
        return code, output.read().decode()


def folder_of(service: ServiceProcess) -> Path:
    return service._data.parent


async def test_a_second_service_over_the_same_folder_is_refused(service: ServiceProcess) -> None:
    code, text = await asyncio.to_thread(said, folder_of(service), "serve")
    assert code == 1
    assert text == f"Error: Another service uses DATA_DIR={service._data}. Stop it, or set another DATA_DIR.\n"
    assert (await service.client.get("/health")).status_code == 200


async def test_an_address_that_is_not_ours_is_named(service: ServiceProcess, tmp_path: Path) -> None:
    code, text = await asyncio.to_thread(said, tmp_path, "serve", HOST="203.0.113.7", MCP_API_KEY="k" * 20)
    assert code == 1
    assert "Set HOST to an address of this machine." in text
    code, text = await asyncio.to_thread(said, tmp_path, "serve", "--port", str(service.port))
    assert code == 1
    assert "Set PORT to another one." in text


def test_a_folder_that_cannot_be_made_is_said_in_a_sentence(tmp_path: Path) -> None:
    code, text = said(tmp_path, "serve", DATA_DIR="/proc/nothing")
    assert code == 1
    assert text.startswith("Error: /proc/nothing: ")
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("single", "file", "sentence"),
    [
        ("abc", None, "MCP_API_KEY: a key is at least 8 printable ASCII characters without blanks."),
        ("two words here", None, "MCP_API_KEY: a key is at least 8 printable ASCII characters without blanks."),
        ("", b'{"short": "acme"}', "API_KEYS_FILE: a key is at least 8 printable ASCII characters without blanks."),
        ("", b'{"long-enough": "main"}', "API_KEYS_FILE: no tenant may be named 'main', which is the operator's."),
        ("", b"{}", "API_KEYS_FILE holds no key, and there is no MCP_API_KEY"),
        ("", b"", "API_KEYS_FILE is empty: make a key with `cubicle keys add`."),
        ("", b"\xff\xfe", "API_KEYS_FILE is not UTF-8 text."),
    ],
)
def test_keys_that_cannot_be_used_stop_the_start(
    tmp_path: Path, single: str, file: bytes | None, sentence: str
) -> None:
    variables = {"MCP_API_KEY": single}
    if file is not None:
        (tmp_path / "keys.json").write_bytes(file)
        variables["API_KEYS_FILE"] = str(tmp_path / "keys.json")
    code, text = said(tmp_path, "serve", **variables)
    assert code == 1
    assert text.startswith(f"Error: {sentence}")
    assert "Traceback" not in text


async def test_the_bare_address_is_the_home_page(service: ServiceProcess) -> None:
    answer = await service.client.get("/")
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "<title>Cubicle</title>" in answer.text


async def test_an_upload_without_a_name_says_what_is_missing(service: ServiceProcess) -> None:
    answer: httpx.Response = await service.client.post("/api/uploads/one", files={"file": b"x"})
    assert answer.status_code == 400
    assert "/api/uploads/<chat>/<filename>" in answer.json()["detail"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_is_a_clean_end(tmp_path: Path, number: signal.Signals) -> None:
    service = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="0")
    await service.start()
    process = service._process
    assert process is not None
    process.send_signal(number)
    assert await asyncio.to_thread(process.wait, 100) == 0
    assert "Traceback" not in service.log()
    await service.client.aclose()


async def test_a_log_that_nobody_reads_stops_nobody(tmp_path: Path) -> None:
    """A terminal that is held by Ctrl-S, or `cubicle serve | less`."""
    service = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="0")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    try:
        await service.start(writing)
        for number in range(20):
            assert (await service.client.get(f"/files/none/{number}")).status_code == 404
        process = service._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 100) == 0
    finally:
        service.kill()
        await service.client.aclose()
        os.close(reading)
        os.close(writing)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a process that is the first of its kind")
@pytest.mark.parametrize("before", ["", "trap '' INT;"], ids=["", "a background job"])
def test_the_first_process_of_a_container_ends_when_told_while_it_starts(tmp_path: Path, before: str) -> None:
    """The kernel keeps from such a process each signal that it has not asked for."""
    process = subprocess.Popen(
        ["sh", "-c", f'{before} exec "$@"', "sh", "unshare", "--pid", "--fork", "--kill-child", *PROGRAM, "serve"],
        cwd=tmp_path,
        env=environment(tmp_path) | {"HOST": "0.0.0.0", "MCP_API_KEY": "k" * 20},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        assert "PUBLIC_BASE_URL" in process.stderr.readline()
        inner = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(inner[0]), signal.SIGTERM)
        assert process.wait(200) == 0
    finally:
        process.kill()
        process.wait(60)
        process.stderr.close()


async def test_a_command_after_two_dashes_runs_in_the_sandbox(service: ServiceProcess) -> None:
    await service.bash("shell", "true")
    code, text = await asyncio.to_thread(
        said, folder_of(service), "shell", "shell", "--", "sh", "-c", "echo in; exit 7"
    )
    assert (code, text) == (7, "in\n")


async def test_a_shell_has_the_terminal_of_its_caller(service: ServiceProcess) -> None:
    await service.bash("shell", "true")
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "shell", "shell", "sh", "-c", "echo [$TERM]"],
        cwd=folder_of(service),
        env=environment(folder_of(service)) | {"TERM": "screen-256color"},
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    assert await asyncio.to_thread(process.wait, 200) == 0
    shown = b""
    with contextlib.suppress(OSError):  # of a terminal that nobody has any more, this is the end
        while part := os.read(outer, 4096):
            shown += part
    os.close(outer)
    assert b"[screen-256color]" in shown


async def test_what_is_pasted_faster_than_it_is_taken_arrives_whole(service: ServiceProcess) -> None:
    await service.bash("shell", "true")
    pasted = os.urandom(1_500_000).hex().encode()
    outer, inner = pty.openpty()
    command = f"stty raw -echo; echo ready; sleep 1; head -c {len(pasted)} | sha256sum"
    process = subprocess.Popen(
        [*PROGRAM, "shell", "shell", "sh", "-c", command],
        cwd=folder_of(service),
        env=environment(folder_of(service)),
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)

    def paste() -> bytes:
        heard = b""
        while b"ready" not in heard:
            heard += os.read(outer, 4096)
        rest = memoryview(pasted)
        while rest:
            rest = rest[os.write(outer, rest[:4096]) :]
        while b"-" not in heard:
            heard += os.read(outer, 4096)
        return heard

    assert hashlib.sha256(pasted).hexdigest().encode() in await asyncio.wait_for(asyncio.to_thread(paste), 100)
    assert await asyncio.to_thread(process.wait, 60) == 0
    os.close(outer)


async def test_all_sandboxes_can_be_stopped_and_removed_at_once(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="1")
    await service.start()
    await service.bash("one", "true")
    await service.bash("two", "true")
    async with asyncio.timeout(100):  # one that is made while its service is killed belongs to nobody yet
        while len(list(tmp_path.glob("data/memory/*/pid"))) < 3:
            await asyncio.sleep(0.1)
    service.kill()
    await service.client.aclose()
    assert await asyncio.to_thread(said, tmp_path, "stop") == (1, "Error: Name one chat, or say --all.\n")
    code, text = await asyncio.to_thread(said, tmp_path, "stop", "--all")
    assert code == 0
    assert int(text.split()[1].rstrip(".")) == 3
    assert "running" not in (await asyncio.to_thread(said, tmp_path, "ps"))[1]
    assert (await asyncio.to_thread(said, tmp_path, "rm", "--all", "--now"))[0] == 0
    assert (await asyncio.to_thread(said, tmp_path, "ps")) == (0, f"No sandboxes in DATA_DIR={tmp_path / 'data'}.\n")


@pytest.mark.parametrize("changes", [{}, {"ROOT_PATH": "/under"}, {"ALLOWED_HOSTS": "elsewhere.example"}], ids=str)
async def test_the_doctor_knows_the_service_at_its_own_port(tmp_path: Path, changes: dict[str, str]) -> None:
    service = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="0", **changes)
    if "ALLOWED_HOSTS" in changes:
        service.client.headers["Host"] = changes["ALLOWED_HOSTS"]
    ours, another = changes | {"PORT": str(service.port)}, {"DATA_DIR": str(tmp_path / "other")}
    place = f"127.0.0.1:{service.port}"
    try:
        await service.start()
        code, text = await asyncio.to_thread(said, tmp_path, "doctor", **ours)
        assert code == 0
        assert f"the service of this DATA_DIR runs at {place}" in text
        code, text = await asyncio.to_thread(said, tmp_path, "doctor", **ours | another)
        assert f"{place} is taken by another program" in text
    finally:
        service.kill()
        await service.client.aclose()


async def test_a_shell_that_allows_few_open_files_does_not_limit_the_service(tmp_path: Path) -> None:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    service = ServiceProcess(tmp_path / "data", DRIVER="memory", POOL_SIZE="0")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(allowed, 512), most))
        try:
            await service.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
        assert resource.prlimit(service.pid, resource.RLIMIT_NOFILE) == (min(most, 65_536), most)
    finally:
        service.kill()
        await service.client.aclose()
