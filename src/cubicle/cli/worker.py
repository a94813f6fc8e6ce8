"""One worker of several: `python -m cubicle.cli.worker FD`, as cubicle.cli.workers starts it. FD takes a byte when it
serves, and one every second from then on, for as long as its event loop goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import click

from cubicle import log as logs
from cubicle.cli.errors import exits
from cubicle.cli.process import prepare_process, run
from cubicle.cli.terminal import configure_log
from cubicle.cli.workers import BEAT_SECONDS
from cubicle.settings import Settings, load

log = logging.getLogger("cubicle")

_GRACE_SECONDS = 1.0
"""For calls that are about to end, when the parent is gone."""


@click.command()
@click.argument("ready", type=int)
@exits
def main(ready: int) -> None:
    """Serve as one of several, until interrupted or until the parent is gone."""
    told: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    for inherited in (ready, int(told.get("lock", ready))):
        os.set_inheritable(inherited, False)
    settings = settings_of(told)
    configure_log(settings)
    prepare_process()
    try:
        with suppress(KeyboardInterrupt):
            run(_serve(settings, told, ready))
    finally:
        logs.flush()


def settings_of(told: dict[str, Any]) -> Settings:
    """The parent's own: a worker that is started again has those of the others, whatever `.env` says by now."""
    if "settings" in told:
        return Settings(_env_file=None, **told["settings"])
    return load(**told["given"])


async def _serve(settings: Settings, told: dict[str, Any], ready: int) -> None:
    from cubicle.cli.member import serve_member
    from cubicle.members.disk_records import FOLDER, DiskRecords
    from cubicle.members.hop_keys import HopKeys
    from cubicle.membership import Membership

    def tell() -> None:
        os.set_blocking(ready, False)
        _beat(ready)

    asyncio.get_running_loop().add_reader(0, _parent_gone)
    slot = int(told["slot"])
    records, keys = DiskRecords(settings.data_dir / FOLDER, slot), HopKeys(bytes.fromhex(told["secret"]))
    membership = Membership(records, keys, slot=slot, slots=int(told["slots"]), first=told["first"])
    await serve_member(settings, membership, shares_port=True, on_ready=tell)


def _beat(ready: int) -> None:
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(ready, b"1")
    asyncio.get_running_loop().call_later(BEAT_SECONDS, _beat, ready)


def _parent_gone() -> None:
    """Nothing ever comes on standard input but its end."""
    asyncio.get_running_loop().remove_reader(0)
    log.warning("the parent of the workers is gone: this one ends")
    signal.raise_signal(signal.SIGTERM)
    # The lock of DATA_DIR is held until all have ended, and somebody may wait for it to start the service again.
    asyncio.get_running_loop().call_later(_GRACE_SECONDS, signal.raise_signal, signal.SIGTERM)


if __name__ == "__main__":
    main()
