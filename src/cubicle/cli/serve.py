"""`cubicle serve`: the service itself."""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from typing import Any

import click

from cubicle import heap
from cubicle import log as logs
from cubicle.backup import MARKER as RESTORING
from cubicle.cli import host_setup, workers
from cubicle.cli.errors import exits
from cubicle.cli.process import listen, place_of, prepare_process, run, settle_garbage
from cubicle.cli.terminal import configure_log, say_address
from cubicle.sandbox.service_lock import only_service_of
from cubicle.settings import BadSettings, Settings, base_url, load, misspelt

log = logging.getLogger("cubicle")

_LOCAL = ("127.0.0.1", "::1", "localhost")


@click.command()
@click.option("--host", help="Address to listen on (HOST).")
@click.option("--port", type=int, help="Port to listen on (PORT).")
@click.option("--driver", help="oci, docker, kubernetes or memory (DRIVER).")
@click.option("--yes", is_flag=True, help="Set up what is missing (system packages, sandbox image) without asking.")
@exits
def serve(yes: bool, **flags: Any) -> None:
    """Serve until interrupted, after asking to set up what is missing. Sandboxes go on when the service ends."""
    given = {name: value for name, value in flags.items() if value is not None}
    settings = load(**given)
    configure_log(settings)
    for name, meant in misspelt().items():
        log.warning("%s in .env is not a setting and has no effect: did you mean %s?", name, meant)
    if settings.workers > 1 and settings.replicas > 1:
        raise BadSettings("WORKERS: a replica is one process; with REPLICAS set it to 1, and add replicas instead.")
    prepare_process()
    listen(settings).close()  # a taken port is said before minutes are spent on the set-up
    host_setup.prepare(settings, yes=yes)
    try:
        with suppress(KeyboardInterrupt):
            if settings.workers > 1:
                warn_of_openness(settings)
                workers.run(settings, given)
            elif settings.replicas > 1:
                from cubicle.cli.member import serve_replica

                warn_of_openness(settings)
                run(serve_replica(settings))
            else:
                run(_serve(settings))
    finally:
        logs.flush()


def warn_of_openness(settings: Settings) -> None:
    is_open = not settings.mcp_api_key and settings.api_keys_file is None
    if settings.host not in _LOCAL and is_open:
        log.warning(
            "ANYBODY who can reach this address can run commands here: HOST=%s and no MCP_API_KEY is set", settings.host
        )
    if settings.host not in _LOCAL and not settings.public_base_url:
        log.warning("links will lead to %s: set PUBLIC_BASE_URL to the address that people use", base_url(settings))
    if (settings.data_dir / RESTORING).exists():
        raise BadSettings("A restore into this DATA_DIR was not finished: run the same `cubicle restore FILE` again.")


async def _serve(settings: Settings) -> None:
    from cubicle.app import running
    from cubicle.http_api.server import OPTIONS
    from cubicle.http_api.uvicorn_http import serve_app

    warn_of_openness(settings)
    with closing(listen(settings)) as listening, only_service_of(settings.data_dir, place_of(listening)):
        async with heap.kept_small(), running(settings) as app:
            settle_garbage()
            say_address(settings, base_url(settings))
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
