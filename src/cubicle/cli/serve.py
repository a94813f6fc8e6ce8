"""`cubicle serve`: the service itself."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import resource
import signal
import socket
import sys
from contextlib import closing, suppress
from typing import Any

import click
import uvloop

from cubicle import heap
from cubicle import log as logs
from cubicle.backup import MARKER as RESTORING
from cubicle.cli import host_setup
from cubicle.cli.errors import exits
from cubicle.fairness.fair_queue import task_factory
from cubicle.sandbox.service_lock import only_service_of
from cubicle.settings import BadSettings, Settings, base_url, load, misspelt

log = logging.getLogger("cubicle")

_OPEN_FILES = 65_536
_SWITCH_SECONDS = 0.0005
"""The event loop waits so long for the interpreter's lock while a thread works; a call needs it a hundred times."""
_LOCAL = ("127.0.0.1", "::1", "localhost")


@click.command()
@click.option("--host", help="Address to listen on (HOST).")
@click.option("--port", type=int, help="Port to listen on (PORT).")
@click.option("--driver", help="oci, docker or memory (DRIVER).")
@click.option("--yes", is_flag=True, help="Set up what is missing (system packages, sandbox image) without asking.")
@exits
def serve(yes: bool, **flags: Any) -> None:
    """Serve until interrupted, after asking to set up what is missing. Sandboxes go on when the service ends."""
    settings = load(**{name: value for name, value in flags.items() if value is not None})
    logs.configure(settings.log_format.value)
    for name, meant in misspelt().items():
        log.warning("%s in .env is not a setting and has no effect: did you mean %s?", name, meant)
    # A script's background job begins with interrupts ignored, and the first process of a container ignores SIGTERM
    # unless it asks for it; as an interrupt, that also closes what is open.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    _allow_many_files()
    heap.keep_small()
    _listen(settings).close()  # a taken port is said before minutes are spent on the set-up
    host_setup.prepare(settings, yes=yes)
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.get_loop().set_task_factory(task_factory)
            runner.run(_serve(settings))
    finally:
        logs.flush()


async def _serve(settings: Settings) -> None:
    from cubicle.app import running
    from cubicle.http_api.server import OPTIONS
    from cubicle.http_api.uvicorn_http import serve_app

    is_open = not settings.mcp_api_key and settings.api_keys_file is None
    if settings.host not in _LOCAL and is_open:
        log.warning(
            "ANYBODY who can reach this address can run commands here: HOST=%s and no MCP_API_KEY is set", settings.host
        )
    if settings.host not in _LOCAL and not settings.public_base_url:
        log.warning("links will lead to %s: set PUBLIC_BASE_URL to the address that people use", base_url(settings))
    if (settings.data_dir / RESTORING).exists():
        raise BadSettings("A restore into this DATA_DIR was not finished: run the same `cubicle restore FILE` again.")
    with closing(_listen(settings)) as listening, only_service_of(settings.data_dir, _place(listening)):
        async with heap.kept_small(), running(settings) as app:
            _settle_garbage()
            address = base_url(settings)
            log.info("serving", extra={"address": address, "driver": settings.driver.value})
            log.info("MCP clients connect to %s%s; people open %s/admin", address, settings.mcp_paths[0], address)
            await serve_app(
                app,
                listening,
                app.state.end_streams,
                app.state.drain,
                root_path=settings.root_path,
                forwarded_allow_ips=list(settings.forwarded_allow_ips),
                timeout_graceful_shutdown=5,
                **OPTIONS,
            )


def _allow_many_files() -> None:
    """A shell allows 1,024 unless asked for more, and an upload that comes slowly keeps four of them open."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, min(most, _OPEN_FILES)), most))


def _settle_garbage() -> None:
    """Half a million objects stay for good once everything is imported: looking at them again and again stalls the
    loop for a tenth of a second."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


def _listen(settings: Settings) -> socket.socket:
    """Bind before anything is started, so that a taken port is said at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        fixed = "PORT to another one" if error.errno == errno.EADDRINUSE else "HOST to an address of this machine"
        raise BadSettings(f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}. Set {fixed}.") from None
    listening.listen(4096)
    listening.setblocking(False)
    return listening


def _place(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"
