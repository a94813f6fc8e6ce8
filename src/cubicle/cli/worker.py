"""One worker of several: `python -m cubicle.cli.worker FD`, as cubicle.cli.workers starts it. FD takes a byte when it
serves."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import closing, suppress
from typing import Any

import click

from cubicle import heap
from cubicle import log as logs
from cubicle.cli.errors import exits
from cubicle.cli.process import listen, prepare_process, run, settle_garbage
from cubicle.settings import Settings, load

log = logging.getLogger("cubicle")


@click.command()
@click.argument("ready", type=int)
@exits
def main(ready: int) -> None:
    """Serve as one of several, until interrupted or until the parent is gone."""
    told: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    settings = load(**told["given"])
    logs.configure(settings.log_format.value)
    prepare_process()
    try:
        with suppress(KeyboardInterrupt):
            run(_serve(settings, told, ready))
    finally:
        logs.flush()


async def _serve(settings: Settings, told: dict[str, Any], ready: int) -> None:
    from cubicle.app import running
    from cubicle.http_api.member_side import PublicSide
    from cubicle.http_api.server import OPTIONS
    from cubicle.http_api.uvicorn_http import serve_app
    from cubicle.members.disk_records import FOLDER, DiskRecords
    from cubicle.members.hop_keys import HopKeys
    from cubicle.membership import Membership

    slot, slots = int(told["slot"]), int(told["slots"])
    asyncio.get_running_loop().add_reader(0, _parent_gone)
    records = DiskRecords(settings.data_dir / FOLDER, slot)
    membership = Membership(
        records, HopKeys(bytes.fromhex(told["secret"])), slot=slot, slots=slots, first=told["first"]
    )
    async with membership.open() as inner, heap.kept_small(), running(settings, membership) as app:
        settle_garbage()
        with closing(listen(settings, shared=True)) as listening:
            log.info("a worker serves", extra={"worker": slot, "member": records.name})
            os.write(ready, b"1")
            os.close(ready)
            await serve_app(
                PublicSide(app),
                listening,
                app.state.end_streams,
                app.state.drain,
                (inner, app.state.member_side),
                root_path=settings.root_path,
                forwarded_allow_ips=list(settings.forwarded_allow_ips),
                timeout_graceful_shutdown=5,
                **OPTIONS,
            )


def _parent_gone() -> None:
    """Nothing ever comes on standard input but its end."""
    asyncio.get_running_loop().remove_reader(0)
    log.warning("the parent of the workers is gone: this one ends")
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
