"""What a service does before it answers: it tries its isolation, and looks after the images of sandboxes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cubicle import removal
from cubicle.browser.frame_recorder import FrameRecorder
from cubicle.browser.frame_store import FrameStore
from cubicle.browser.live_views import LiveViews
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_limits
from cubicle.drivers.oci.images_in_use import sandboxes_by_image
from cubicle.images.store import ImageStore
from cubicle.isolation import runner
from cubicle.isolation.runner import Report
from cubicle.isolation.startup_check import StartupCheck
from cubicle.machine.errors import Unusable
from cubicle.ports.shares import PortShares
from cubicle.quotas.quotas import Quotas
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.lifecycle import LifecycleEvent
from cubicle.settings import BadSettings, Settings
from cubicle.webhooks.receivers import BadReceivers
from cubicle.webhooks.sources import EventSources
from cubicle.webhooks.webhooks import Webhooks

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0


def make_startup_check(
    settings: Settings, driver: Driver, *, exhaust: bool = False, only_looks: bool = False
) -> StartupCheck:
    """Tries the isolation of a driver that is open. `only_looks`: another process of the service does."""

    async def prove() -> Report:
        host = await driver.host()
        return await runner.prove(driver, make_limits(settings), kernel=host.kernel, here=host.here, exhaust=exhaust)

    return StartupCheck(settings, prove, isolates=driver.capabilities.isolates, only_looks=only_looks)


@asynccontextmanager
async def checking_isolation(startup_check: StartupCheck, fleet: Fleet, sources: EventSources) -> AsyncIterator[None]:
    """If the disk was too full to try them, try until it is done: before that no chat gets a sandbox.

    Ends the block with Unusable when a layer that must hold is missing.
    """

    async def keep_trying() -> None:
        while startup_check.postponed:
            await asyncio.sleep(_RETRY_SECONDS)
            await check_isolation(startup_check, sources)
        fleet.hold = ""

    if not startup_check.postponed:
        yield
        return
    fleet.hold = "The service has not checked its isolation yet: the host was short of disk space."
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(keep_trying(), name="isolation check")
            yield
            task.cancel()
    except* Unusable as errors:
        raise errors.exceptions[0] from None


async def open_port_shares(settings: Settings) -> PortShares:
    shares = PortShares(removal.port_shares_folder(settings.data_dir), settings.preview_public)
    await asyncio.to_thread(shares.open)
    return shares


def make_recorder(settings: Settings) -> FrameRecorder:
    """Without a journal there is no replay, and no pictures for it."""
    total = int(settings.replay_total_mb * 2**20)
    limit = int(settings.replay_mb * 2**20) if settings.journal_mb else 0
    store = FrameStore(removal.frames_folder(settings.data_dir), limit=limit, total=total)
    return FrameRecorder(store, removal.journal_folder(settings.data_dir))


@asynccontextmanager
async def running_recorder(recorder: FrameRecorder, fleet: Fleet, screens: LiveViews) -> AsyncIterator[None]:
    """The life of the recorder, which is told when there is something to see, and when a person drives."""

    def in_use(chat: Chat) -> bool:
        seen = fleet.state(chat)
        return seen is not None and seen.leases > 0

    recorder.in_use, recorder.is_driven = in_use, screens.is_driven
    async with recorder.running():
        yield


def make_webhooks(settings: Settings, *, shared: bool = False, delivers: bool = True) -> Webhooks:
    folder = removal.webhooks_folder(settings.data_dir)
    across_hosts = settings.replicas > 1
    return Webhooks(folder, settings.webhooks_file, shared=shared, across_hosts=across_hosts, delivers=delivers)


@asynccontextmanager
async def telling_webhooks(
    webhooks: Webhooks, fleet: Fleet, quotas: Quotas, keys: KeyAttempts
) -> AsyncIterator[EventSources]:
    """Within the block, receivers are told of events. Raises BadSettings."""
    sources = EventSources(webhooks)
    fleet.lifecycle.listen(lambda event: _tell_of_sandbox(sources, event))
    quotas.on_reached, keys.on_new_address = sources.quota_reached, sources.key_used
    try:
        await webhooks.__aenter__()
    except BadReceivers as error:
        raise BadSettings(str(error)) from None
    try:
        yield sources
    finally:
        await webhooks.__aexit__()


async def _tell_of_sandbox(sources: EventSources, event: LifecycleEvent) -> None:
    if event.chat is not None:
        what = "removed" if event.what == "deleted" else event.what
        await sources.sandbox_changed(event.chat, what, event.reason)


async def check_isolation(startup_check: StartupCheck, sources: EventSources) -> None:
    """Raises Unusable when a layer that must hold is missing."""
    startup_check.complaint = ""
    try:
        await startup_check.check()
    except Unusable:
        await sources.isolation_failed(startup_check.complaint, serves=False)
        raise
    if startup_check.complaint:
        await sources.isolation_failed(startup_check.complaint, serves=True)


async def collect_images(settings: Settings, driver: Driver) -> None:
    """Remove the images that no chat of any service on this host stands on."""
    if driver.capabilities.image_store:
        store = ImageStore(settings.image_dir)
        today = await asyncio.to_thread(store.resolve, settings.sandbox_image)
        in_use = {today.digest, *(seen.image for seen in await driver.list())}
        gone = await asyncio.to_thread(store.settle, settings.data_dir, in_use, sandboxes_by_image)
        for base in gone:
            log.info("removed an image that no chat uses", extra={"image": base.digest[:12]})


async def claim_image(settings: Settings, driver: Driver) -> None:
    """No other service of this host removes the image while this one uses it."""
    if driver.capabilities.image_store:
        await asyncio.to_thread(ImageStore(settings.image_dir).claim, settings.sandbox_image, settings.data_dir)
