"""The composition root: builds each object once, owns their lifetimes, closes all."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from cubicle import removal
from cubicle.agents.mcp_servers import McpServers, read_servers
from cubicle.agents.runs import SubAgents
from cubicle.auditing import Auditing
from cubicle.browser.frame_store import FrameStore
from cubicle.browser.live_views import LiveViews
from cubicle.chat.access import Access
from cubicle.chat.activity import Activity
from cubicle.chat.journal_notes import JournalNotes
from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.drivers.factory import make_chat_index, make_driver, make_free_space, make_limits
from cubicle.fairness.fair_queue import FairQueue
from cubicle.files.uploads import Uploads
from cubicle.http_api.activity import ActivityRoutes
from cubicle.http_api.admin import AdminRoutes
from cubicle.http_api.archive import ArchiveRoutes
from cubicle.http_api.assets import CARD
from cubicle.http_api.audited import AuditedRequests, AuditRequired
from cubicle.http_api.auth import AccessCheck, SignIn
from cubicle.http_api.body_limit import BodyLimit
from cubicle.http_api.browser import BrowserRoutes
from cubicle.http_api.changes import ChangeRoutes
from cubicle.http_api.chats import chat_of
from cubicle.http_api.cors import Cors
from cubicle.http_api.disk_health import DiskHealthRoutes
from cubicle.http_api.draining import Drain, DrainCheck
from cubicle.http_api.ended_visits import EndedVisits
from cubicle.http_api.errors import HANDLERS
from cubicle.http_api.fair_share import FairShare
from cubicle.http_api.file_edits import FileEditRoutes
from cubicle.http_api.file_history import FileHistoryRoutes
from cubicle.http_api.file_search import SearchRoutes
from cubicle.http_api.file_views import FileViewRoutes
from cubicle.http_api.files import FileRoutes
from cubicle.http_api.forward_check import ForwardCheck
from cubicle.http_api.gauges import Gauges
from cubicle.http_api.home import HomeRoutes
from cubicle.http_api.isolation_health import IsolationHealthRoutes
from cubicle.http_api.issuer_login import IssuerLogin
from cubicle.http_api.links import LinkRoutes
from cubicle.http_api.live_view import LiveRoutes
from cubicle.http_api.login import Login
from cubicle.http_api.mcp_path import McpPath
from cubicle.http_api.metrics import MetricsRoutes
from cubicle.http_api.openapi import OpenApiRoutes
from cubicle.http_api.origin_check import OriginCheck
from cubicle.http_api.overview import OverviewRoutes
from cubicle.http_api.overview_numbers import Sources
from cubicle.http_api.page_policy import BadEmbedder, frame_ancestors
from cubicle.http_api.pages import Pages
from cubicle.http_api.port_app import make_port_app, own_names
from cubicle.http_api.port_hosts import PortHosts
from cubicle.http_api.ports import PortRoutes
from cubicle.http_api.prompt import PromptRoutes
from cubicle.http_api.protected_resource import ProtectedResourceRoutes
from cubicle.http_api.quota_check import QuotaCheck
from cubicle.http_api.raw import RawRoutes
from cubicle.http_api.replay import ReplayRoutes
from cubicle.http_api.request_log import RequestLog
from cubicle.http_api.request_metrics import RequestMetrics
from cubicle.http_api.route_table import RouteTable
from cubicle.http_api.sandbox_stats import SandboxStats
from cubicle.http_api.security_headers import SecurityHeaders
from cubicle.http_api.service import ServiceRoutes
from cubicle.http_api.skills import SkillRoutes
from cubicle.http_api.terminal import TerminalRoutes
from cubicle.http_api.timeline import TimelineRoutes
from cubicle.http_api.undo import UndoRoutes
from cubicle.http_api.uploads import UploadRoutes
from cubicle.http_api.visits import Visits
from cubicle.http_api.waking import StartRoutes
from cubicle.http_api.webhooks import WebhookRoutes
from cubicle.isolation.startup_check import StartupCheck
from cubicle.journal.journal import Journal
from cubicle.log import forget_user
from cubicle.mcp_api.endpoint import McpEndpoint
from cubicle.mcp_api.handlers import Instructions
from cubicle.mcp_api.ui_cards import UiCards
from cubicle.mcp_api.unfinished_calls import UnfinishedCalls
from cubicle.membership import ServiceProcess
from cubicle.metering import Metering
from cubicle.outbound import has_sub_agent, make_agent_tokens, make_network, make_sub_agents
from cubicle.ports.known_ports import KnownPorts
from cubicle.ports.links import PortLinks
from cubicle.ports.notes import PortNotes
from cubicle.ports.services import StartCommands
from cubicle.ports.shares import PortShares
from cubicle.prompt.catalogue import SkillCatalogue
from cubicle.prompt.provision import Provisioner, initial_files
from cubicle.prompt.settings_service import SettingsService
from cubicle.prompt.system_prompt import SystemPrompt
from cubicle.prompt.user_tokens import UserTokens
from cubicle.prompt.workspace import Workspace
from cubicle.sandbox.clock import CLOCK_FILE
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.fleet import Fleet
from cubicle.sandbox.free_space import FreeSpace
from cubicle.sandbox.sandbox_services import SandboxService
from cubicle.settings import BadSettings, Settings, base_url
from cubicle.startup import (
    check_isolation,
    checking_isolation,
    claim_image,
    collect_images,
    make_recorder,
    make_startup_check,
    make_webhooks,
    open_port_shares,
    running_recorder,
    telling_webhooks,
)
from cubicle.tools.registry import Registry
from cubicle.webhooks.webhooks import Webhooks

log = logging.getLogger(__name__)


def make_journal(settings: Settings, kind: type[Journal] = Journal) -> Journal:
    folder = removal.journal_folder(settings.data_dir)
    return kind(folder, limit=int(settings.journal_mb * 2**20), max_age=settings.journal_days * 86400)


@asynccontextmanager
async def running(settings: Settings, process: ServiceProcess | None = None) -> AsyncIterator[Starlette]:
    """The whole service, from the first sandbox of the pool to the last open connection; or one of its processes."""
    process = process or ServiceProcess()
    access = await Access.open(settings, removal.links_folder(settings.data_dir), web := make_web(settings))
    links = access.links
    port_links, port_shares = make_port_links(settings, access.secret, links), await open_port_shares(settings)
    users = SettingsService(web, settings.settings_url, settings.settings_token) if settings.settings_url else None
    library = SkillCatalogue(None, settings.skills_dir, settings.user_skills_dir, users)
    driver = make_driver(settings, space := make_free_space(settings), partial(initial_files, library))
    prompt = make_prompt(settings, library, links, driver, port_links)
    provisioner = Provisioner(library, prompt)
    tokens = UserTokens(users) if users is not None else None
    servers = await asyncio.to_thread(make_servers, settings)
    agent_tokens = make_agent_tokens(settings, access.secret)
    network = make_network(settings, driver, servers, agent_tokens, tokens, process.own, process.others)
    metering = Metering(settings, network, access.ring, process.own, process.others)
    notes = JournalNotes(journal := make_journal(settings, process.journal_kind))
    auditing = Auditing(settings, access, network, notes, process.own)
    calls, known_ports, recorder = UnfinishedCalls(journal), KnownPorts(), make_recorder(settings)
    beside = (metering, agent_tokens, network, StartCommands(known_ports), notes, calls, recorder)
    fleet = make_fleet(settings, driver, space, provisioner, [part.attached for part in beside], journal, process)
    webhooks = make_webhooks(settings, shared=process.is_shared, delivers=process.leads)
    screens, startup_check = LiveViews(), make_startup_check(settings, driver, only_looks=not process.is_first)
    process.read_from(driver, journal, port_shares)
    await claim_image(settings, driver)
    auditing.follow(fleet)
    async with (
        web, telling_webhooks(webhooks, fleet, metering.quotas, access.keys) as sources, auditing.audit, journal,
        running_recorder(recorder, fleet, screens), agent_tokens, network, fleet, screens,
    ):  # fmt: skip
        await check_isolation(startup_check, sources)
        if process.is_first:
            await collect_images(settings, driver)
        activity, workplace = Activity(journal), Workspace(fleet, provisioner, tokens)
        agents = make_sub_agents(settings, workplace, servers, agent_tokens, journal)
        built = Registry.build(
            workplace, settings, agents, activity, PortNotes(port_links, known_ports), journal, screens.hand_backs
        )
        registry = auditing.tools(metering.tools(built))
        home = HomeRoutes.build(settings, access.ring, fleet, registry, recorder, process.ask_others)
        uploads, queue = Uploads(fleet, journal), FairQueue()
        forget_removed(
            fleet, activity, prompt, agent_tokens, network, uploads, port_shares, port_links, links.store, notes,
            tokens, screens.hand_backs, known_ports, home, recorder,
        )  # fmt: skip
        endpoint = McpEndpoint(
            registry, uploads, instructions_by(prompt), settings, access.authentication, queue, calls, access.secret,
            access.watch, process.forwarder, home.clients, UiCards(links, fleet, port_links, CARD),
        )  # fmt: skip
        pages = await asyncio.to_thread(make_pages, settings, links, fleet, port_links)
        parts = Parts(
            settings, access, links, queue, library, prompt, provisioner, space, startup_check,
            fleet, screens, activity, agents, registry, uploads, endpoint, pages, port_links, port_shares, notes,
            metering, auditing, webhooks, process, known_ports, home, recorder.store,
        )  # fmt: skip
        async with (
            access.running(), metering.running(fleet), endpoint.running(), agents or nullcontext(),
            checking_isolation(startup_check, fleet, sources), process.running(fleet), home,
        ):  # fmt: skip
            yield make_app(parts)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes and the middleware are made of."""

    settings: Settings
    access: Access
    links: Links
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
    metering: Metering
    auditing: Auditing
    webhooks: Webhooks
    process: ServiceProcess
    known_ports: KnownPorts
    home: HomeRoutes
    frames: FrameStore


def make_app(parts: Parts) -> Starlette:
    """Every route and all middleware."""
    settings, table = parts.settings, RouteTable(parts.settings.mcp_paths)
    access, ask_for_key = parts.access, asking_for_key(parts.pages)
    port_routes = PortRoutes(parts.fleet, parts.port_links, parts.port_shares, parts.known_ports)
    gauges = Gauges(parts.metering.metrics, parts.fleet, parts.queue, parts.space, parts.auditing.audit, parts.webhooks)
    overview, metrics = OverviewRoutes(make_sources(parts, gauges)), MetricsRoutes(gauges, parts.process.other_metrics)
    file_views = FileViewRoutes(parts.fleet)
    visits = EndedVisits(make_ports(parts))

    forwarder, cors = parts.process.forwarder, make_cors(parts, table)
    drain = Drain(settings.drain_seconds, parts.endpoint.drain, refuses=forwarder is None)

    def end_streams() -> None:
        """End what goes on by itself; a server calls it before it waits for its connections."""
        parts.endpoint.end_streams()
        port_routes.end_streams()
        file_views.end_streams()
        overview.end_streams()
        parts.home.end_streams()
        visits.end_soon()

    app = Starlette(
        routes=table.bind(
            **make_routes(parts, table), ports=port_routes, overview=overview, file_views=file_views, metrics=metrics
        ),
        middleware=[
            Middleware(RequestMetrics, parts.metering.metrics),
            Middleware(DrainCheck, drain, settings.mcp_paths),
            Middleware(PortHosts, visits, settings.preview_domains, own_names(settings)),
            Middleware(FairShare, parts.queue, parts.access.ring, parts.access.tokens),
            Middleware(SecurityHeaders, frame_ancestors(settings.embedders)),
            Middleware(RequestLog),
            Middleware(AuditedRequests, parts.auditing.audit),
            Middleware(McpPath, cors(parts.endpoint.endpoint), table),
            Middleware(BodyLimit, table),
            Middleware(cors),
            Middleware(OriginCheck, [base_url(settings)], table),
            Middleware(AccessCheck, access.authentication, table, ask_for_key, settings.single_user_mode, access.watch),
            *([Middleware(ForwardCheck, forwarder, table, parts.links)] if forwarder is not None else []),
            Middleware(AuditRequired, parts.auditing.audit),
            Middleware(QuotaCheck, parts.metering.quotas, table),
        ],
        exception_handlers=HANDLERS,
    )
    app.state.end_streams = end_streams
    app.state.drain = parts.process.draining(drain.run, parts.fleet)
    app.state.member_side = parts.process.member_side(app, parts.fleet, metrics.own, parts.home.tell_member)
    app.state.is_checked = lambda: not parts.startup_check.postponed
    app.state.fair_queue = parts.queue  # connections work on what they read in it
    return app


def make_cors(parts: Parts, table: RouteTable) -> Callable[[ASGIApp], Cors]:
    origins, hosts = parts.settings.cors_origins, parts.settings.known_hosts
    return partial(Cors, table=table, origins=origins, locked=bool(parts.access.ring), hosts=hosts)


def make_web(settings: Settings) -> httpx.AsyncClient:
    """For the settings service and issuers. Reading all authorities takes long; without those two it trusts nobody."""
    calls = bool(settings.settings_url or settings.oauth_issuers)
    return httpx.AsyncClient(verify=httpx.create_ssl_context() if calls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))


def make_servers(settings: Settings) -> McpServers:
    """Those of MCP_SERVERS_FILE. Blocks."""
    own = (base_url(settings), f"http://127.0.0.1:{settings.port}")
    return read_servers(settings.mcp_servers_file, own)


class Keeper(Protocol):
    """Knows something of chats."""

    def forget(self, chat: Chat) -> Awaitable[None] | None: ...


def forget_removed(fleet: Fleet, *keepers: Keeper | None) -> None:
    """Have all of them forget what they know of a chat that is removed."""
    for forget in (*(keeper.forget for keeper in keepers if keeper is not None), forget_user):
        fleet.on_removed(forget)


def make_port_links(settings: Settings, secret: bytes, links: Links) -> PortLinks:
    return PortLinks(
        secret, links, domain=settings.preview_domain, port=settings.port, hours=settings.preview_link_hours
    )


def make_ports(parts: Parts) -> ASGIApp:
    settings, links, shares = parts.settings, parts.port_links, parts.port_shares
    used = parts.auditing.port_link_used
    return make_port_app(
        settings, parts.fleet, links, shares, parts.access.ring, parts.queue, base_url(settings), used,
        parts.process.forwarder,
    )  # fmt: skip


def make_sources(parts: Parts, gauges: Gauges) -> Sources:
    metering, fleet = parts.metering, parts.fleet
    return Sources(
        fleet, parts.activity, gauges, metering.lag, metering.quotas, metering.budgets, parts.startup_check,
        parts.access.ring, SandboxStats(fleet),
    )  # fmt: skip


def make_routes(parts: Parts, table: RouteTable) -> dict[str, object]:
    """The handlers, by the names that the table of routes has for them."""
    settings, fleet, links, pages = parts.settings, parts.fleet, parts.links, parts.pages
    mode, visits = settings.single_user_mode, Visits(fleet, parts.provisioner)
    login = Login(parts.access.keys, links, pages.login_page)
    return {
        "mcp": parts.endpoint,
        "service": ServiceRoutes(parts.registry, settings, locked=bool(parts.access.ring)),
        "resource": ProtectedResourceRoutes(parts.access.tokens, settings.root_path),
        "prompt": PromptRoutes(parts.prompt, mode, base_url(settings)),
        "skills": SkillRoutes(parts.library, mode),
        "disk": DiskHealthRoutes(parts.space),
        "isolation": IsolationHealthRoutes(parts.startup_check),
        "openapi": OpenApiRoutes(table, settings.embedders),
        "uploads": UploadRoutes(parts.uploads, settings.max_upload_mb),
        "archive": ArchiveRoutes(fleet, pages.asleep_page),
        "files": FileRoutes(fleet, links, pages.asleep_page),
        "raw": RawRoutes(fleet, links),
        "browser": BrowserRoutes(fleet, settings.public_base_url, visits=visits, screens=parts.screens),
        "live_view": LiveRoutes(fleet, parts.screens, parts.notes),
        "terminal": TerminalRoutes(fleet, sub_agents=parts.agents, visits=visits, notes=parts.notes),
        "activity": ActivityRoutes(parts.activity, parts.registry.journal),
        "start": StartRoutes(fleet, visits),
        "file_search": SearchRoutes(fleet),
        "file_edits": FileEditRoutes(fleet, parts.registry.journal),
        "file_history": FileHistoryRoutes(fleet, parts.registry.journal),
        "replay": ReplayRoutes(parts.registry.journal, removal.journal_folder(settings.data_dir)),
        "timeline": TimelineRoutes(parts.registry.journal, parts.frames),
        "changes": ChangeRoutes(fleet),
        "undo": UndoRoutes(fleet, parts.activity, parts.registry.journal),
        "links": LinkRoutes(links),
        "admin": AdminRoutes(fleet, parts.activity),
        "webhooks": WebhookRoutes(parts.webhooks),
        "home": parts.home,
        "login": login,
        "issuer_login": IssuerLogin(parts.access.sign_in, links, login, pages.login_page),
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


def instructions_by(prompt: SystemPrompt) -> Instructions:
    return lambda caller: prompt.rendered(caller.chat, caller.email, caller.name)


def make_fleet(
    settings: Settings,
    driver: Driver,
    space: FreeSpace,
    provisioner: Provisioner,
    sandbox_services: Sequence[SandboxService],
    journal: Journal,
    process: ServiceProcess,
) -> Fleet:
    return Fleet(
        driver,
        make_chat_index(settings),
        pool_size=-(-settings.pool_size // process.part.slots),
        freeze_after=settings.freeze_seconds,
        pool_max=settings.pool_max // process.part.slots,
        idle_after=settings.container_max_age_hours * 3600,
        remove_after=settings.data_max_age_days * 86400,
        trash_after=settings.trash_days * 86400,
        clock_file=process.own(settings.data_dir / CLOCK_FILE),
        furnish=provisioner.dress,
        sandbox_services=sandbox_services,
        space=space,
        journal=journal,
        sharing=process,
    )


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
            issuer=urlsplit(settings.oauth_issuers[0]).netloc if settings.oauth_client_id else "",
        )
    except BadEmbedder as error:
        raise BadSettings(f"EMBEDDERS: {error}") from None


def asking_for_key(pages: Pages) -> SignIn:
    return lambda request, message: pages.login_page(request, message=message, status=401)
