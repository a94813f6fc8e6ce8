"""The real nginx and the real Caddy, by the configuration that deploy/ has, in front of a service of a test."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conftest import absent

ROOT = Path(__file__).parents[2]
NAME = "tools.example.org"
PROXIES = ["nginx", "caddy"]


def options(port: int) -> dict[str, str]:
    """The settings of a service behind the proxy at this port."""
    return {
        "PUBLIC_BASE_URL": f"https://{NAME}:{port}/cubicle",
        "ROOT_PATH": "/cubicle",
        "PREVIEW_DOMAIN": "preview.example.net",
    }


def trusting(folder: Path) -> ssl.SSLContext:
    """Make the certificate of the proxy; who trusts it."""
    names = f"subjectAltName=DNS:{NAME},DNS:*.preview.example.net"
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "fullchain.pem")]
    subject = ["-subj", f"/CN={NAME}", "-addext", names]
    subprocess.run(["openssl", "req", "-x509", *made, *files, *subject], check=True, capture_output=True)
    return ssl.create_default_context(cafile=str(folder / "fullchain.pem"))


def _nginx(folder: Path, port: int, service: int) -> list[str]:
    site = (ROOT / "deploy/nginx/cubicle.conf").read_text()
    site = site.replace("127.0.0.1:8081", f"127.0.0.1:{service}").replace("listen 443", f"listen 127.0.0.1:{port}")
    site = site.replace("/etc/ssl/cubicle", str(folder))
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = folder / "nginx.conf"
    config.write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1; user root;"
        f"events {{}} http {{ access_log off; {paths}\n{site}\n}}"
    )
    return ["nginx", "-c", str(config), "-p", str(folder)]


def _caddy(folder: Path, port: int, service: int) -> list[str]:
    site = (ROOT / "deploy/caddy/Caddyfile").read_text()
    site = site.replace("127.0.0.1:8081", f"127.0.0.1:{service}").replace("/etc/ssl/cubicle", str(folder))
    for name in (NAME, "*.preview.example.net"):
        site = site.replace(f"\n{name} {{", f"\nhttps://{name}:{port} {{\n\tbind 127.0.0.1")
    alone = "{\n\tadmin off\n\tauto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(alone + site)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


@asynccontextmanager
async def reverse_proxy(kind: str, folder: Path, port: int, service: int) -> AsyncIterator[None]:
    """It listens at this port of loopback for as long as the block lasts; `trusting` was called."""
    if shutil.which(kind) is None:
        absent(f"needs {kind}: scripts/packages test")
    command = (_nginx if kind == "nginx" else _caddy)(folder, port, service)
    homes = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config")}
    with (folder / "output.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, env=os.environ | homes, stdout=output, stderr=output, cwd=folder
        )
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    assert process.returncode is None, (folder / "output.log").read_text()
                    await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
