"""Serving as one of several processes: a worker of a host, or a replica on a cluster."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import closing

from cubicle import heap
from cubicle.cli.process import listen, settle_garbage
from cubicle.membership import Membership
from cubicle.sandbox.service_lock import replica_of
from cubicle.settings import BadSettings, Settings

log = logging.getLogger("cubicle")

_LOOK_SECONDS = 0.5


async def serve_member(
    settings: Settings, membership: Membership, *, shares_port: bool, on_ready: Callable[[], None]
) -> None:
    """Until interrupted. `shares_port`: other processes of this host listen on the same one."""
    from cubicle.app import running
    from cubicle.http_api.member_side import PublicSide
    from cubicle.http_api.server import OPTIONS
    from cubicle.http_api.uvicorn_http import serve_app

    async with membership.open() as inner, heap.kept_small(), running(settings, membership) as app:
        settle_garbage()
        with closing(listen(settings, shared=shares_port)) as listening:
            log.info("a worker serves", extra={"worker": membership.part.slot, "member": membership.owners.name})
            tell_when(app.state.is_checked, on_ready)
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


def tell_when(is_checked: Callable[[], bool], tell: Callable[[], None]) -> None:
    """Say that it is ready. While a full disk keeps the first worker from trying the isolation, no other is started:
    they only read its report, and would give chats sandboxes that nobody has tried."""
    if is_checked():
        tell()
    else:
        asyncio.get_running_loop().call_later(_LOOK_SECONDS, tell_when, is_checked, tell)


async def serve_replica(settings: Settings) -> None:
    """One of several replicas on a cluster, which share DATA_DIR and the secret."""
    from cubicle.drivers.factory import make_lease_records
    from cubicle.members.hop_keys import HopKeys
    from cubicle.record import BadRecord

    name = socket.gethostname()
    slot = settings.member_slot or _ordinal(name) + 1
    if not 1 <= slot <= settings.replicas:
        raise BadSettings(f"MEMBER_SLOT: {slot} is not one of the {settings.replicas} replicas (REPLICAS).")
    if settings.member_secret_file is None:
        raise BadSettings("MEMBER_SECRET_FILE: replicas need one, the same for all.")
    try:
        keys = HopKeys(file=settings.member_secret_file)
    except (BadRecord, OSError) as error:
        raise BadSettings(f"MEMBER_SECRET_FILE: {error}") from None
    records = make_lease_records(settings, slot, settings.member_host or socket.gethostbyname(name))
    membership = Membership(records, keys, slot=slot, slots=settings.replicas, first=True)
    with replica_of(settings.data_dir, f"{settings.host}:{settings.port}"):
        await serve_member(settings, membership, shares_port=False, on_ready=lambda: None)


def _ordinal(name: str) -> int:
    number = name.rpartition("-")[2]
    if not number.isdecimal() or len(number) > 4:
        raise BadSettings(f"MEMBER_SLOT: the host name {name} has no number at its end; set it for each replica.")
    return int(number)
