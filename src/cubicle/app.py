"""The composition root: builds each object once, owns their lifetimes, closes all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from cubicle import removal
from cubicle.agents.adapters.registry import chosen
from cubicle.agents.agent_token import signing_key
from cubicle.agents.budget import BudgetLimits as Budget
from cubicle.agents.budget import BudgetStore
from cubicle.agents.live_tokens import LiveTokens
from cubicle.agents.mcp_servers import McpServers, read_servers
from cubicle.agents.runs import SubAgents
from cubicle.agents.upstreams import apis
from cubicle.browser.live_views import LiveViews
from cubicle.chat.activity import Activity
from cubicle.chat.authentication import Authentication
from cubicle.chat.journal_notes import JournalNotes
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.chat.links import Links, kept_secret
from cubicle.core.caller import Caller
from cubicle.core.keys import BadKeys, KeyRing
from cubicle.drivers.factory import make_chat_index, make_driver, make_free_space, make_limits
from cubicle.drivers.oci.images_in_use import sandboxes_by_image
from cubicle.egress.policy import Policy
from cubicle.egress.upstream_connections import EgressLimits
from cubicle.fairness.fair_queue import FairQueue
from cubicle.files.uploads import Uploads
from cubicle.http_api.activity import ActivityRoutes
from cubicle.http_api.admin import AdminRoutes
from cubicle.http_api.archive import ArchiveRoutes
from cubicle.http_api.auth import AccessCheck, SignIn
from cubicle.http_api.body_limit import BodyLimit
from cubicle.http_api.browser import BrowserRoutes
from cubicle.http_api.chats import chat_of
from cubicle.http_api.disk_health import DiskHealthRoutes
from cubicle.http_api.ended_visits import EndedVisits
from cubicle.http_api.errors import HANDLERS
from cubicle.http_api.fair_share import FairShare
from cubicle.http_api.files import FileRoutes
from cubicle.http_api.isolation_health import IsolationHealthRoutes
from cubicle.http_api.live_view import LiveRoutes
from cubicle.http_api.login import Login
from cubicle.http_api.openapi import OpenApiRoutes
from cubicle.http_api.origin_check import OriginCheck
from cubicle.http_api.page_policy import BadEmbedder, frame_ancestors
from cubicle.http_api.pages import Pages
from cubicle.http_api.port_app import make_port_app, own_names
from cubicle.http_api.port_hosts import PortHosts
from cubicle.http_api.ports import PortRoutes
from cubicle.http_api.prompt import PromptRoutes
from cubicle.http_api.raw import RawRoutes
from cubicle.http_api.replay import ReplayRoutes
from cubicle.http_api.request_log import RequestLog
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.security_headers import SecurityHeaders
from cubicle.http_api.service import ServiceRoutes
from cubicle.http_api.skills import SkillRoutes
from cubicle.http_api.terminal import TerminalRoutes
from cubicle.http_api.undo import UndoRoutes
from cubicle.http_api.uploads import UploadRoutes
from cubicle.http_api.visits import Visits
from cubicle.http_api.waking import StartRoutes
from cubicle.images.store import ImageStore
from cubicle.isolation import runner
from cubicle.isolation.runner import Report
from cubicle.isolation.startup_check import StartupCheck
from cubicle.journal.journal import Journal
from cubicle.log import forget_user
from cubicle.machine.errors import Unusable
from cubicle.mcp_api.endpoint import McpEndpoint
from cubicle.mcp_api.unfinished_calls import UnfinishedCalls
from cubicle.ports.links import PortLinks
from cubicle.ports.notes import PortNotes
from cubicle.ports.services import StartCommands
from cubicle.ports.shares import PortShares
from cubicle.prompt.catalogue import SkillCatalogue
from cubicle.prompt.provision import Provisioner
from cubicle.prompt.settings_service import SettingsService
from cubicle.prompt.system_prompt import SystemPrompt
from cubicle.prompt.user_tokens import UserTokens
from cubicle.prompt.workspace import Workspace
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.free_space import FreeSpace
from cubicle.sandbox.sandbox_services import SandboxService
from cubicle.settings import BadSettings, Settings, base_url
from cubicle.tools.registry import Registry
from cubicle.worker.network import NetworkWorker
from cubicle.worker.setup import Setup

log = logging.getLogger(__name__)

_RETRY_SECONDS = 2.0
_END_SECONDS = 60.0
"""A run that was told to end at its time limit has ended after this."""


def make_startup_check(settings: Settings, driver: Driver, *, exhaust: bool = False) -> StartupCheck:
    """Tries the isolation of a driver that is open."""

    async def prove() -> Report:
        host = await driver.host()
        return await runner.prove(driver, make_limits(settings), kernel=host.kernel, here=host.here, exhaust=exhaust)

    return StartupCheck(settings, prove, isolates=driver.capabilities.isolates)


def make_journal(settings: Settings) -> Journal:
    folder = removal.journal_folder(settings.data_dir)
    return Journal(folder, limit=int(settings.journal_mb * 2**20), max_age=settings.journal_days * 86400)


def make_budgets(settings: Settings) -> BudgetStore:
    return BudgetStore(
        removal.budgets_folder(settings.data_dir),
        Budget.of(settings),
        removal.tenant_budgets_folder(settings.data_dir),
        Budget.of_tenant(settings),
    )


def make_network(
    settings: Settings,
    driver: Driver,
    servers: McpServers,
    agent_tokens: LiveTokens,
    tokens: UserTokens | None = None,
) -> NetworkWorker:
    """The egress proxy and the agents' gateway, in a process of their own."""
    policy = Policy(
        settings.egress,
        most_connections=settings.egress_max_connections,
        most_bytes=settings.egress_max_mb_per_day << 20,
    )
    setup = Setup(
        policy,
        folder=removal.egress_folder(settings.data_dir),
        rules_file=settings.egress_rules_file,
        limits=EgressLimits(settings.egress_connect_timeout, settings.egress_idle_timeout),
        apis=apis(settings),
        servers=servers,
    )
    return NetworkWorker(
        setup,
        budgets=make_budgets(settings),
        tokens=agent_tokens,
        additions=tokens.rules if tokens is not None else None,
        transparent=lambda: driver.capabilities.transparent_proxy,
    )


def make_agent_tokens(settings: Settings, secret: bytes) -> LiveTokens:
    longest = settings.sub_agent_timeout + _END_SECONDS
    return LiveTokens(removal.agent_runs_folder(settings.data_dir), signing_key(secret), max_seconds=longest)


def make_sub_agents(
    settings: Settings, workplace: Workspace, servers: McpServers, tokens: LiveTokens, journal: Journal | None = None
) -> SubAgents | None:
    """The coding agents, if the service has a key for the API that they call."""
    return SubAgents(workplace, settings, servers, tokens, journal) if has_sub_agent(settings) else None


def has_sub_agent(settings: Settings) -> bool:
    return chosen(settings.sub_agent_cli).api in apis(settings)


def key_ring(settings: Settings) -> KeyRing:
    text = ""
    if settings.api_keys_file is not None:
        try:
            text = settings.api_keys_file.read_text("utf-8")
        except OSError as error:
            raise BadSettings(f"API_KEYS_FILE cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise BadSettings("API_KEYS_FILE is not UTF-8 text.") from None
    try:
        ring = KeyRing.parse(settings.mcp_api_key, text)
    except BadKeys as error:
        raise BadSettings(str(error)) from None
    if settings.api_keys_file is not None and not ring:
        raise BadSettings("API_KEYS_FILE holds no key, and there is no MCP_API_KEY: the service would be open to all.")
    return ring


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Starlette]:
    """The whole service, from the first sandbox of the pool to the last open connection."""
    ring = await asyncio.to_thread(key_ring, settings)
    keys = KeyAttempts(ring, settings.wrong_keys_per_minute)
    links = Links(
        secret := await asyncio.to_thread(kept_secret, settings.data_dir),
        base_url(settings),
        ring,
        days=settings.data_max_age_days,
    )
    port_links = make_port_links(settings, secret, links)
    port_shares = PortShares(removal.port_shares_folder(settings.data_dir), settings.preview_public)
    await asyncio.to_thread(port_shares.open)
    web = httpx.AsyncClient()
    users = SettingsService(web, settings.settings_url, settings.settings_token) if settings.settings_url else None
    space = make_free_space(settings)
    driver = make_driver(settings, space)
    library = SkillCatalogue(None, settings.skills_dir, settings.user_skills_dir, users)
    prompt = make_prompt(settings, library, links, driver, port_links)
    provisioner = Provisioner(library, prompt)
    tokens = UserTokens(users) if users is not None else None
    own = (base_url(settings), f"http://127.0.0.1:{settings.port}")
    servers = await asyncio.to_thread(read_servers, settings.mcp_servers_file, own)
    agent_tokens = make_agent_tokens(settings, secret)
    network = make_network(settings, driver, servers, agent_tokens, tokens)
    notes = JournalNotes(journal := make_journal(settings))
    calls = UnfinishedCalls(journal)
    beside = [agent_tokens.attached, network.attached, StartCommands().attached, notes.attached, calls.attached]
    fleet = make_fleet(settings, driver, space, provisioner, beside, journal)

    async def instructions(caller: Caller) -> str:
        return await prompt.rendered(caller.chat, caller.email, caller.name)

    screens = LiveViews()
    if driver.capabilities.image_store:
        await asyncio.to_thread(ImageStore(settings.image_dir).claim, settings.sandbox_image, settings.data_dir)
    startup_check = make_startup_check(settings, driver)
    async with web, journal, agent_tokens, network, fleet, screens:
        await startup_check.check()
        await collect_images(settings, driver)
        activity = Activity(journal)
        workplace = Workspace(fleet, provisioner, tokens)
        agents = make_sub_agents(settings, workplace, servers, agent_tokens, journal)
        registry = Registry.build(workplace, settings, agents, activity, PortNotes(port_links), journal)
        uploads = Uploads(fleet, journal)
        keepers = (activity, prompt, agent_tokens, network, uploads, port_shares, port_links, notes, tokens)
        for forget in (*(keeper.forget for keeper in keepers if keeper is not None), forget_user):
            fleet.on_removed(forget)
        authentication = Authentication(keys, links, settings.known_hosts)
        queue = FairQueue()
        endpoint = McpEndpoint(registry, uploads, instructions, settings, authentication, queue, calls, secret)
        pages = await asyncio.to_thread(make_pages, settings, links, fleet, port_links)
        parts = Parts(
            settings, ring, keys, links, authentication, queue, library, prompt, provisioner, space, startup_check,
            fleet, screens, activity, agents, registry, uploads, endpoint, pages, port_links, port_shares, notes,
        )  # fmt: skip
        async with endpoint.running(), agents or nullcontext(), checking_isolation(startup_check, fleet):
            yield make_app(parts)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes and the middleware are made of."""

    settings: Settings
    ring: KeyRing
    keys: KeyAttempts
    links: Links
    authentication: Authentication
    queue: FairQueue
    library: SkillCatalogue
    prompt: SystemPrompt
    provisioner: Provisioner
    space: FreeSpace
    startup_check: StartupCheck
    fleet: Fleet
    screens: LiveViews
    activity: Activity
    agents: SubAgents | None
    registry: Registry
    uploads: Uploads
    endpoint: McpEndpoint
    pages: Pages
    port_links: PortLinks
    port_shares: PortShares
    notes: JournalNotes


def make_app(parts: Parts) -> Starlette:
    """Every route and all middleware."""
    settings, table = parts.settings, RouteTable(parts.settings.mcp_paths)
    port_routes = PortRoutes(parts.fleet, parts.port_links, parts.port_shares)
    visits = EndedVisits(make_ports(parts))

    def end_streams() -> None:
        """End what goes on by itself; a server calls it before it waits for its connections."""
        parts.endpoint.end_streams()
        port_routes.end_streams()
        visits.end_soon()

    app = Starlette(
        routes=table.bind(**make_routes(parts, table), ports=port_routes),
        middleware=[
            Middleware(PortHosts, visits, settings.preview_domains, own_names(settings)),
            Middleware(FairShare, parts.queue, parts.ring),
            Middleware(SecurityHeaders, frame_ancestors(settings.embedders)),
            Middleware(RequestLog),
            Middleware(BodyLimit, table),
            Middleware(OriginCheck, [base_url(settings)], table),
            Middleware(
                AccessCheck, parts.authentication, table, asking_for_key(parts.pages), settings.single_user_mode
            ),
        ],
        exception_handlers=HANDLERS,
    )
    app.state.end_streams = end_streams
    app.state.fair_queue = parts.queue  # connections work on what they read in it
    return app


def make_port_links(settings: Settings, secret: bytes, links: Links) -> PortLinks:
    return PortLinks(
        secret, links, domain=settings.preview_domain, port=settings.port, hours=settings.preview_link_hours
    )


def make_ports(parts: Parts) -> ASGIApp:
    settings, links, shares = parts.settings, parts.port_links, parts.port_shares
    return make_port_app(settings, parts.fleet, links, shares, parts.ring, parts.queue, base_url(settings))


def make_routes(parts: Parts, table: RouteTable) -> dict[str, object]:
    """The handlers, by the names that the table of routes has for them."""
    settings, fleet, links, pages = parts.settings, parts.fleet, parts.links, parts.pages
    mode, visits = settings.single_user_mode, Visits(fleet, parts.provisioner)
    return {
        "mcp": parts.endpoint,
        "service": ServiceRoutes(parts.registry, settings, locked=bool(parts.ring)),
        "prompt": PromptRoutes(parts.prompt, mode, base_url(settings)),
        "skills": SkillRoutes(parts.library, mode),
        "disk": DiskHealthRoutes(parts.space),
        "isolation": IsolationHealthRoutes(parts.startup_check),
        "openapi": OpenApiRoutes(table, settings.embedders),
        "uploads": UploadRoutes(parts.uploads, settings.max_upload_mb),
        "archive": ArchiveRoutes(fleet, pages.asleep_page),
        "files": FileRoutes(fleet, links, pages.asleep_page),
        "raw": RawRoutes(fleet, links),
        "browser": BrowserRoutes(fleet, settings.public_base_url, visits=visits),
        "live_view": LiveRoutes(fleet, parts.screens, parts.notes),
        "terminal": TerminalRoutes(fleet, sub_agents=parts.agents, visits=visits, notes=parts.notes),
        "activity": ActivityRoutes(parts.activity),
        "start": StartRoutes(fleet, visits),
        "replay": ReplayRoutes(parts.registry.journal, removal.journal_folder(settings.data_dir)),
        "undo": UndoRoutes(fleet, parts.activity, parts.registry.journal),
        "admin": AdminRoutes(fleet, parts.activity),
        "login": Login(parts.keys, links, pages.login_page),
        "pages": pages,
    }


def make_prompt(
    settings: Settings, library: SkillCatalogue, links: Links, driver: Driver, port_links: PortLinks
) -> SystemPrompt:
    return SystemPrompt(
        library,
        links,
        command_timeout=settings.command_timeout,
        network=settings.egress.value,
        limits=make_limits(settings).words() if driver.capabilities.isolates else "",
        sub_agent=has_sub_agent(settings),
        ports=port_links,
    )


def make_fleet(
    settings: Settings,
    driver: Driver,
    space: FreeSpace,
    provisioner: Provisioner,
    sandbox_services: Sequence[SandboxService],
    journal: Journal,
) -> Fleet:
    return Fleet(
        driver,
        make_chat_index(settings),
        pool_size=settings.pool_size,
        idle_after=settings.container_max_age_hours * 3600,
        remove_after=settings.data_max_age_days * 86400,
        trash_after=settings.trash_days * 86400,
        clock_file=settings.data_dir / "clock.json",
        furnish=provisioner.dress,
        sandbox_services=sandbox_services,
        space=space,
        journal=journal,
    )


@asynccontextmanager
async def checking_isolation(startup_check: StartupCheck, fleet: Fleet) -> AsyncIterator[None]:
    """If the disk was too full to try them, try until it is done: before that no chat gets a sandbox.

    Ends the block with Unusable when a layer that must hold is missing.
    """

    async def keep_trying() -> None:
        while startup_check.postponed:
            await asyncio.sleep(_RETRY_SECONDS)
            await startup_check.check()
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


async def collect_images(settings: Settings, driver: Driver) -> None:
    """Remove the images that no chat of any service on this host stands on."""
    if driver.capabilities.image_store:
        store = ImageStore(settings.image_dir)
        today = await asyncio.to_thread(store.resolve, settings.sandbox_image)
        in_use = {today.digest, *(seen.image for seen in await driver.list())}
        gone = await asyncio.to_thread(store.settle, settings.data_dir, in_use, sandboxes_by_image)
        for base in gone:
            log.info("removed an image that no chat uses", extra={"image": base.digest[:12]})


def make_pages(settings: Settings, links: Links, fleet: Fleet, port_links: PortLinks) -> Pages:
    try:
        return Pages(
            embedders=settings.embedders,
            raw_base=RawRoutes(fleet, links).pictures,
            is_there=FileRoutes(fleet, links).has,
            condition=lambda request: fleet.condition(chat_of(request)),
            locked=links.locked,
            frames=port_links.frame_source,
            run_scripts=settings.pages_run_scripts,
        )
    except BadEmbedder as error:
        raise BadSettings(f"EMBEDDERS: {error}") from None


def asking_for_key(pages: Pages) -> SignIn:
    return lambda request, message: pages.login_page(request, message=message, status=401)
