"""What a worker has to know from its first moment on. The service pickles it into a file that only the worker reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cubicle.agents.mcp_servers import McpServers
from cubicle.agents.upstreams import UpstreamApi
from cubicle.egress.policy import Policy
from cubicle.egress.rules_file import RulesSource
from cubicle.egress.upstream_connections import EgressLimits


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of the egress proxy and of the agents' gateway. Its repr shows no secret."""

    policy: Policy
    folder: Path
    """Of the egress proxy: its certificate authority and the allowances of the chats."""
    rules_file: Path | None = None
    limits: EgressLimits = field(default_factory=EgressLimits)
    has_additions: bool = False
    """Whether chats may have rules of their own that set headers."""
    trust_file: Path | None = None
    """Certificates to trust in servers instead of those of the host."""
    apis: Mapping[str, UpstreamApi] = field(default_factory=dict, repr=False)
    servers: McpServers = field(default_factory=McpServers, repr=False)
    rules: RulesSource | None = None
    """The last rules that could be used."""
    log_level: int = 20
