"""What sandboxes reach outside themselves, and what it may cost: the network worker and the coding agents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cubicle import removal
from cubicle.agents.adapters.registry import chosen
from cubicle.agents.agent_token import signing_key
from cubicle.agents.budget import BudgetLimits as Budget
from cubicle.agents.budget import BudgetStore
from cubicle.agents.live_tokens import LiveTokens
from cubicle.agents.mcp_servers import McpServers
from cubicle.agents.runs import SubAgents
from cubicle.agents.upstreams import apis
from cubicle.egress.policy import Policy
from cubicle.egress.upstream_connections import EgressLimits
from cubicle.journal.journal import Journal
from cubicle.prompt.user_tokens import UserTokens
from cubicle.prompt.workspace import Workspace
from cubicle.sandbox.driver import Driver
from cubicle.settings import Settings
from cubicle.worker.network import NetworkWorker
from cubicle.worker.setup import Setup

OwnPath = Callable[[Path], Path]
"""Where one of several processes keeps what each keeps for itself."""
OtherPaths = Callable[[Path], Sequence[Path]]
"""Where the others do."""
_END_SECONDS = 60.0
"""A run that was told to end at its time limit has ended after this."""


def make_budgets(
    settings: Settings, own: OwnPath = lambda path: path, others: OtherPaths = lambda path: ()
) -> BudgetStore:
    tenants, users = removal.tenant_budgets_folder(settings.data_dir), removal.user_budgets_folder(settings.data_dir)
    return BudgetStore(
        removal.budgets_folder(settings.data_dir),
        Budget.of(settings),
        own(tenants),
        Budget.of_tenant(settings),
        own(users),
        Budget.of_user(settings),
        (others(tenants), others(users)),
    )


def make_network(
    settings: Settings,
    driver: Driver,
    servers: McpServers,
    agent_tokens: LiveTokens,
    tokens: UserTokens | None = None,
    own: OwnPath = lambda path: path,
    others: OtherPaths = lambda path: (),
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
        budgets=make_budgets(settings, own, others),
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
