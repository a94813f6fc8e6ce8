"""What a sandbox lays in the way, in every folder that the service reads, on the embedded driver: no file of the host
is read or changed, nothing hangs, and the archive is still made."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import httpx
import pytest

from cubicle.core.chat import Chat
from tests.support.process import ACCEPT, ServiceProcess

pytestmark = [pytest.mark.oci, pytest.mark.timeout(300)]

SECRET = b"a secret of the host"
OUTPUTS, UPLOADS, HOME = "/mnt/user-data/outputs", "/mnt/user-data/uploads", "/home/assistant"
SESSIONS = HOME + "/.claude/projects/p"
GOOD = json.dumps({"type": "user", "timestamp": "2026-01-01T00:00:00Z", "message": {"role": "user", "content": "hi"}})
LAY = """
import os, sys
folder, end, secret, good = sys.argv[1:]
os.makedirs(folder, exist_ok=True)
os.chdir(folder)
open("good" + end, "w").write(good + "\\n")
os.link("good" + end, "hard" + end)
for name, target in (("link-host", secret), ("link-up", "../" * 12 + secret[1:]), ("link-root", "/proc/1/root" + secret),
                     ("link-self", "link-self" + end), ("link-folder", os.path.dirname(secret))):
    os.symlink(target, name + end)
os.mkfifo("fifo" + end)
with open("sparse" + end, "w") as file:
    file.truncate(1 << 40)
for name in (b"new\\nline", b"bad\\xff\\xfeutf8"):
    open(name + end.encode(), "w").write("odd")
os.mkdir("folder" + end)
"""
ODD = (b"new\nline", b"bad\xff\xfeutf8")
TRAPS = (b"link-host", b"link-up", b"link-root", b"link-self", b"link-folder/secret", b"fifo", b"device")


@pytest.fixture
def service(lasting: ServiceProcess) -> ServiceProcess:
    return lasting


@pytest.fixture
def chat(request: pytest.FixtureRequest) -> str:
    """Each test has a chat of its own."""
    return f"hostile-{hashlib.sha256(request.node.name.encode()).hexdigest()[:16]}"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
async def root(service: ServiceProcess, chat: str, tmp_path: Path, secret: Path) -> Path:
    """The sandbox's own root, seen from the host, once every folder holds its traps.

    A command cannot make a device, nor write to uploads: that the host does, as a guest in hostile hands would.
    """
    assert (await service.bash(chat, "true"))[0] is False
    name = (service._data / "owners" / Chat(chat).digest).readlink().name
    run = service._data / "sandboxes" / name / "run.json"
    root = Path(f"/proc/{json.loads(run.read_text())['process']['pid']}/root")
    (tmp_path / "lay.py").write_text(LAY)
    for folder, end in ((OUTPUTS, ""), (HOME, ""), (SESSIONS, ".jsonl")):
        program = f"python3 - {folder} '{end}' {secret} '{GOOD}' <<'E'\n{LAY}\nE\nmknod {folder}/device{end} c 1 5"
        failed, said = await service.bash(chat, program)
        assert failed, "a command made a device"
        assert "Traceback" not in said, said
        _device(root / folder[1:] / f"device{end}")
    assert (await service.bash(chat, f"ln -s {secret} {UPLOADS}/link"))[0], "a command wrote to uploads"
    there = root / "run/cubicle/uploads"  # where the guest writes them
    subprocess.run([sys.executable, tmp_path / "lay.py", there, "", secret, GOOD], check=True, timeout=60)
    _device(there / "device")
    return root


def _device(path: Path) -> None:
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # zeros without end
    path.chmod(0o666)


async def limited(awaitable: Any, seconds: float = 60) -> Any:
    async with asyncio.timeout(seconds):
        return await awaitable


async def beginning(client: httpx.AsyncClient, address: str) -> tuple[int, bytes]:
    """(status, the first bytes): a file may be a terabyte."""
    content = b""
    async with asyncio.timeout(60), client.stream("GET", address) as answer:
        async for chunk in answer.aiter_raw():
            content += chunk
            if len(content) > 65_536:
                break
    return answer.status_code, content


async def test_files_outputs_uploads_and_home(service: ServiceProcess, chat: str, root: Path) -> None:
    for area in ("outputs", "uploads", "workspace"):
        listed = await limited(service.client.get(f"/files/{chat}/{area}/?hidden=1"))
        kinds = {entry["name"]: entry["kind"] for entry in listed.json()["entries"]}
        assert {"good": "file", "hard": "file", "fifo": "other", "device": "other"}.items() <= kinds.items()
        for name in TRAPS:
            status, content = await beginning(service.client, f"/files/{chat}/{area}/{name.decode()}")
            assert status == 404, (area, name, content)
            assert SECRET not in content
            assert (await beginning(service.client, f"/preview/{chat}/{area}/{name.decode()}"))[0] == 404
        for name in ODD:
            assert await beginning(service.client, f"/files/{chat}/{area}/{quote_from_bytes(name)}") == (200, b"odd")
        status, content = await beginning(service.client, f"/files/{chat}/{area}/sparse")
        assert status == 200
        assert not content.strip(b"\0")


async def test_the_archive(service: ServiceProcess, chat: str, root: Path) -> None:
    answer = await limited(service.client.get(f"/files/{chat}/archive"))
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        for area in ("outputs", "uploads", "workspace"):
            assert {f"{area}/good", f"{area}/hard"} <= names
            assert sum(name.startswith(f"{area}/new_line~") for name in names) == 1
            assert not any(name.startswith((f"{area}/link", f"{area}/fifo", f"{area}/dev")) for name in names)
        assert SECRET not in b"".join(archive.read(name) for name in names)


async def test_saved_sessions_of_coding_agents(service: ServiceProcess, chat: str, root: Path) -> None:
    answer = await limited(service.client.get(f"/terminal/{chat}/sessions"))
    listed = {session["session_id"] for session in answer.json()["sessions"]}
    assert "good" in listed
    assert not {"fifo", "device", "link-host", "link-up", "link-root", "link-self"} & listed
    for name in (*listed, "fifo", "device", "link-host", "sparse"):
        page = await limited(service.client.get(f"/terminal/{chat}/sessions/{name}"))
        assert page.status_code == (200 if name in listed else 404)
        assert SECRET not in page.content


async def test_uploads_over_mcp_and_by_their_own_address(
    service: ServiceProcess, chat: str, root: Path, secret: Path
) -> None:
    listed = await limited(service.client.get(f"/api/uploads/{chat}"))
    names = {file["filename"] for file in listed.json()["files"]}
    assert {"good", "hard", "sparse"} <= names
    assert not {"link-host", "fifo", "device"} & names
    resources = (await _mcp(service, chat, "resources/list"))["result"]["resources"]
    for uri in [resource["uri"] for resource in resources] + [
        f"file://uploads/{chat}/{name}" for name in ("link-host", "link-folder%2Fsecret", "fifo", "device")
    ]:
        assert SECRET.decode() not in json.dumps(await limited(_mcp(service, chat, "resources/read", uri=uri)))
    for name in ("link-host", "fifo", "device"):  # a new file takes the name, and what it led to stays as it was
        assert (await limited(service.client.delete(f"/api/uploads/{chat}/{name}"))).status_code == 404
        saved = await limited(service.client.post(f"/api/uploads/{chat}/{name}", content=b"new"))
        assert saved.status_code == 201, saved.text
        assert (root / UPLOADS[1:] / name).read_bytes() == b"new"
    through = await limited(service.client.post(f"/api/uploads/{chat}/link-folder/planted", content=b"new"))
    assert through.status_code == 409, through.text
    assert secret.read_bytes() == SECRET
    assert not (secret.parent / "planted").exists()


@pytest.mark.parametrize("trap", ["ln -s {secret}", "mkfifo", "mkdir", "truncate -s 1T"])
async def test_what_stands_in_the_place_of_the_readme(
    service: ServiceProcess, chat: str, root: Path, secret: Path, trap: str
) -> None:
    laid = f"cd {HOME} && rm -f README.md && {trap.format(secret=secret)} README.md"
    assert (await service.bash(chat, laid))[0] is False
    headers = {"X-User-Email": "new@example.org"}  # another user's prompt: it is written anew
    call = {"name": "bash_tool", "arguments": {"command": "echo works", "description": "test"}}
    assert "works" in json.dumps(await limited(_mcp(service, chat, "tools/call", headers=headers, **call)))
    assert secret.read_bytes() == SECRET
    readme = root / HOME[1:] / "README.md"
    if trap.startswith("ln"):
        assert readme.is_symlink()  # it leads out of the home folder: nothing is written there
    elif trap.startswith("truncate"):
        assert readme.stat().st_size == 1024**4  # somebody's work, as far as we can know
    else:
        assert readme.is_dir() if trap == "mkdir" else b"new@example.org" in readme.read_bytes()


async def _mcp(
    service: ServiceProcess, chat: str, method: str, headers: dict[str, str] | None = None, **params: Any
) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    sent = {"Accept": ACCEPT, "Content-Type": "application/json", "X-Chat-Id": chat} | (headers or {})
    answer = await service.client.post("/mcp", content=json.dumps(body), headers=sent)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    result: dict[str, Any] = json.loads(lines[-1] if lines else answer.text)
    return result
