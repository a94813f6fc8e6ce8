"""Every setting of the service, read once from the environment and an .env file: the one reader of both."""

from __future__ import annotations

import difflib
import io
import ipaddress
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from dotenv.parser import parse_stream
from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import DotEnvSettingsSource, NoDecode, SettingsConfigDict

from cubicle.core.bad_settings import BadSettings as BadSettings
from cubicle.core.chat_isolation import Isolation
from cubicle.core.hosts import names_of_this_machine
from cubicle.core.identity import LinkAccess
from cubicle.core.network import NetworkMode
from cubicle.core.port_names import LOCAL_DOMAIN, is_domain
from cubicle.oauth_settings import OAuthSettings
from cubicle.operation_settings import OperationSettings
from cubicle.settings_docker import DockerSettings
from cubicle.settings_kubernetes import KubernetesSettings


class DriverName(StrEnum):
    OCI = "oci"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"
    MEMORY = "memory"


class RequireIsolation(StrEnum):
    AUTO = "auto"
    WARN = "warn"
    ENFORCE = "enforce"


class ViewImages(StrEnum):
    TEXT = "text"
    BLOCKS = "blocks"


class LogFormat(StrEnum):
    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


def _state_dir(name: str) -> Path:
    return Path("/var/lib/cubicle") / name


class Settings(OAuthSettings, OperationSettings, DockerSettings, KubernetesSettings):
    """One field per setting; the description of each is its line in docs/settings.md."""

    model_config = SettingsConfigDict(env_file=".env", env_file_encoding="utf-8", extra="ignore", frozen=True)

    host: str = Field(
        "127.0.0.1", description="Address to listen on. Beyond loopback without a key, the service logs a warning."
    )
    port: int = Field(8081, ge=0, le=65535, description="Port to listen on.")
    root_path: str = Field("", description="Path prefix under which a reverse proxy serves the service.")
    public_base_url: str = Field(
        "",
        description="URL at which people and models reach the service, in ASCII (`xn--…`); "
        "empty: the address it listens on.",
    )
    data_dir: Path = Field(
        _state_dir("data"), description="All state of the service. Services with different folders share no chats."
    )
    image_dir: Path = Field(
        _state_dir("images"),
        description="Built sandbox images: a cache that all services of the machine share.",
    )

    driver: DriverName = Field(
        DriverName.OCI,
        description="Where sandboxes live: oci (embedded), docker, kubernetes, memory (no isolation, for tests).",
    )
    oci_runtime: str = Field("", description="runc, crun, runsc or a path; empty: the first that works on this host.")
    sandbox_image: str = Field(
        "standard", description="Image variant (slim, standard, full) or the name of a built image."
    )
    pool_size: int = Field(
        2,
        ge=0,
        le=64,
        description="Blank sandboxes kept running, so that a new chat does not wait for a start; 0: none.",
    )
    pool_max: int = Field(
        100,
        ge=0,
        le=1000,
        description="To so many the pool grows while new chats come, as far as there is memory (docs/pool.md).",
    )
    sandbox_memory_mb: int = Field(2048, ge=64, description="Memory limit of a sandbox, MiB.")
    sandbox_cpus: float = Field(2.0, gt=0, description="CPU limit of a sandbox.")
    sandbox_pids: int = Field(512, ge=16, description="Process limit of a sandbox.")
    sandbox_disk_mb: int = Field(10240, ge=16, description="Disk limit of a sandbox, MiB.")
    min_free_mb: int = Field(
        1024,
        ge=0,
        description="Free space that is kept on the disk of DATA_DIR, MiB, at most 5 % of it: below it no sandbox is "
        "started, and running ones get “no space left”; 0: no floor.",
    )

    require_walls: RequireIsolation = Field(
        RequireIsolation.AUTO,
        description="What to do when the startup isolation check finds a missing layer: warn, or enforce (do not "
        "serve); auto: enforce, except with DRIVER=memory.",
    )

    mcp_api_key: str = Field(
        "", description="Bearer secret of the service, at least 8 characters without blanks; empty: no authentication."
    )
    api_keys_file: Path | None = Field(
        None,
        description="File of the keys of several customers, which `cubicle keys` makes (docs/keys.md); read again when "
        "it changes. The names main, operator and cubicle are reserved.",
    )
    prompt_links: LinkAccess = Field(
        LinkAccess.VIEW,
        description="What the links in prompts allow: view (look and download), or control (also type, click, upload "
        "and delete).",
    )
    wrong_keys_per_minute: int = Field(
        30,
        ge=0,
        le=1_000_000,
        description="Wrong keys that one address (of IPv6: one /64) may show in a minute; 3 times as many in 10 "
        "minutes, 6 times as many in an hour. Then it gets 429 until that time is over. 0: no limit.",
    )
    forwarded_allow_ips: Annotated[tuple[str, ...], NoDecode] = Field(
        ("127.0.0.1", "::1"),
        description="Addresses and networks of the reverse proxies whose X-Forwarded-For and X-Forwarded-Proto count, "
        "separated by commas; *: everybody's, so that a client can forge its address.",
    )
    mcp_paths: Annotated[tuple[str, ...], NoDecode] = Field(
        ("/mcp", "/mcp/computer_use"), description="Paths at which MCP answers, separated by commas."
    )
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Host names that the service answers to, separated by commas; empty: any, but on loopback without "
        "a key only the names of this machine and that of PUBLIC_BASE_URL.",
    )
    embedders: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Origins that may show the pages in a frame, separated by commas; empty: the service's own."
    )
    preview_domain: str = Field(
        "",
        description="Domain beneath which the ports of sandboxes are reached, as `{port}-{id}.` and this name; a "
        "wildcard DNS record and certificate must lead it here (docs/ports.md). Empty: localhost, which works on the "
        "same machine.",
    )
    preview_public: Annotated[tuple[str, ...], NoDecode] = Field(
        (),
        description="Tenants whose people may share a port with anybody by a public link, separated by commas; *: all "
        "(main: who uses MCP_API_KEY). Empty: nobody.",
    )
    preview_link_hours: float = Field(
        168, gt=0, le=8760, description="Hours that a private link to a port works. A public one says when it ends."
    )
    pages_run_scripts: bool = Field(
        False,
        description="Run the scripts of HTML files that a model made as soon as the file is opened; otherwise they run "
        "when the person clicks Run this page. For set-ups in which all files are trusted.",
    )
    single_user_mode: Isolation = Field(
        Isolation.LENIENT,
        description="unset: a chat id is optional; true: one sandbox for all; false: a chat id is required.",
    )

    egress: NetworkMode = Field(
        NetworkMode.OPEN,
        description="What sandboxes may reach: open (everything public), allowlist (what a rule allows), none.",
    )
    egress_rules_file: Path | None = Field(
        None, description="Rules of the egress proxy, TOML or JSON (docs/egress.md); read again when it changes."
    )
    egress_captive: bool = Field(
        True,
        description="Embedded driver: redirect programs that ignore proxies to the egress proxy (needs nft and ip).",
    )
    egress_max_connections: int = Field(
        256, ge=1, le=512, description="Connections through the egress proxy that one chat may have at once."
    )
    egress_max_mb_per_day: int = Field(
        102400, ge=0, description="MiB that one chat may send and receive in 24 hours; 0: no limit."
    )
    egress_connect_timeout: float = Field(15, gt=0, le=300, description="Seconds to wait for a server outside.")
    egress_idle_timeout: float = Field(
        600, gt=0, le=86400, description="Seconds without a byte after which a connection to the outside is cut."
    )

    command_timeout: float = Field(
        120, ge=1, le=86400, description="Seconds a command may run when the call does not say."
    )
    freeze_seconds: float = Field(
        60,
        ge=0,
        le=86400,
        description="Seconds without use after which a sandbox in which no program runs is frozen (docs/idle.md); the "
        "next use lets it run on. 0: never.",
    )
    container_max_age_hours: float = Field(
        24, gt=0, description="Hours of idleness after which a sandbox is stopped; fractions are allowed."
    )
    data_max_age_days: float = Field(
        30, gt=0, description="Days after the last use at which a chat is moved to the trash, with all its files."
    )
    trash_days: float = Field(
        7,
        ge=0,
        description="Days in which `cubicle undelete` can restore a removed chat; 0: it is deleted at once.",
    )
    max_upload_mb: int = Field(512, ge=1, description="Largest upload, MiB.")
    skills_dir: Path | None = Field(None, description="Folder of more skills, offered to every user.")
    user_skills_dir: Path | None = Field(
        None, description="Folder of users' own skills: one folder per user, named by the SHA-256 of the e-mail."
    )
    settings_url: str = Field(
        "", description="URL of a service that has users' skills and tokens (docs/settings-service.md)."
    )
    settings_token: str = Field("", description="Bearer secret for the settings service.")
    sub_agent_cli: str = Field(
        "claude",
        description="Coding agent of sub_agent: claude, codex, opencode or gemini, or its path in the sandbox.",
    )
    sub_agent_max_turns: int = Field(
        25, ge=1, le=1000, description="Turns of a coding agent when the call does not say."
    )
    sub_agent_timeout: float = Field(3600, ge=1, le=86400, description="Seconds that a coding agent may run.")
    sub_agent_default_model: str = Field(
        "", description="Model when the call names none: an alias or a full name; empty: the agent's own default."
    )
    sub_agent_budget_usd: float = Field(
        0, ge=0, description="Dollars that the agents of one chat may spend on models; 0: no limit."
    )
    sub_agent_max_requests: int = Field(
        0, ge=0, description="Calls of a model that the agents of one chat may make; 0: no limit."
    )
    sub_agent_max_tokens: int = Field(
        0, ge=0, description="Tokens that the agents of one chat may use, read and written; 0: no limit."
    )
    sub_agent_tenant_budget_usd: float = Field(
        0, ge=0, description="Dollars that the agents of all chats of one tenant may spend on models; 0: no limit."
    )
    sub_agent_tenant_max_requests: int = Field(
        0, ge=0, description="Calls of a model that the agents of all chats of one tenant may make; 0: no limit."
    )
    sub_agent_tenant_max_tokens: int = Field(
        0, ge=0, description="Tokens that the agents of all chats of one tenant may use; 0: no limit."
    )
    sub_agent_tenant_days: float = Field(
        30, ge=0, le=36500, description="Days after which a tenant's limits are counted again from zero; 0: never."
    )
    mcp_servers_file: Path | None = Field(
        None, description="JSON file of the MCP servers (`mcpServers`) that X-MCP-Servers may name."
    )
    anthropic_base_url: str = Field(
        "https://api.anthropic.com", description="URL of the Anthropic API, or of a gateway for it."
    )
    anthropic_api_key: str = Field("", description="Key of the Anthropic API; it never enters a sandbox.")
    anthropic_auth_token: str = Field("", description="Bearer token of a gateway; wins over ANTHROPIC_API_KEY.")
    anthropic_custom_headers: str = Field(
        "", description="More headers for the Anthropic API: `Name: value`, one a line."
    )
    anthropic_default_sonnet_model: str = Field("", description="Model that the alias sonnet stands for.")
    anthropic_default_opus_model: str = Field("", description="Model that the alias opus stands for.")
    anthropic_default_haiku_model: str = Field("", description="Model that the alias haiku stands for.")
    openai_base_url: str = Field("https://api.openai.com/v1", description="URL of the OpenAI API, for codex.")
    openai_api_key: str = Field("", description="Key of the OpenAI API; it never enters a sandbox.")
    gemini_base_url: str = Field(
        "https://generativelanguage.googleapis.com", description="URL of the Gemini API, for gemini."
    )
    gemini_api_key: str = Field("", description="Key of the Gemini API; it never enters a sandbox.")
    view_images: ViewImages = Field(
        ViewImages.TEXT,
        description="How view answers for an image: text (a data: URI) or blocks (a real MCP image block).",
    )
    log_format: LogFormat = Field(
        LogFormat.AUTO,
        description="text, json, or auto: JSON when standard error is not a terminal; on one, only warnings.",
    )

    @field_validator("single_user_mode", mode="before")
    @classmethod
    def _isolation(cls, value: Any) -> Isolation:
        return value if isinstance(value, Isolation) else Isolation.parse(str(value))

    @field_validator("mcp_paths", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        paths = tuple(p.strip().rstrip("/") for p in parts if p.strip())
        if not paths or not all(p.startswith("/") for p in paths):
            raise ValueError("must be paths that start with /, separated by commas")
        return paths

    @field_validator("allowed_hosts", "embedders", "forwarded_allow_ips", "preview_public", mode="before")
    @classmethod
    def _hosts(cls, value: Any) -> tuple[str, ...]:
        parts = value.split(",") if isinstance(value, str) else list(value)
        return tuple(p.strip() for p in parts if p.strip())

    @field_validator("forwarded_allow_ips")
    @classmethod
    def _networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for part in value if value != ("*",) else ():
            try:
                ipaddress.ip_network(part)
            except ValueError:
                raise ValueError("must be addresses or networks (10.0.0.0/8), separated by commas, or *") from None
        return value

    @field_validator(
        "api_keys_file",
        "egress_rules_file",
        "skills_dir",
        "user_skills_dir",
        "mcp_servers_file",
        mode="before",
    )
    @classmethod
    def _empty_is_none(cls, value: Any) -> Any:
        return value or None

    @field_validator("public_base_url", "root_path")
    @classmethod
    def _ascii(cls, value: str, info: ValidationInfo) -> str:
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError("must be ASCII without blanks; a host name of other letters is written as xn--…")
        named = info.field_name == "public_base_url" and value
        if named and not ((parts := urlsplit(value)).hostname and parts.scheme in ("http", "https")):
            raise ValueError("must begin with http:// or https:// and a host name, as in https://tools.example.net")
        return value

    @field_validator("preview_domain")
    @classmethod
    def _domain(cls, value: str, info: ValidationInfo) -> str:
        domain = value.strip().lower()
        if domain and not is_domain(domain):
            raise ValueError("must be a plain host name in ASCII, such as preview.example.net, without scheme and port")
        own = (urlsplit(info.data.get("public_base_url", "")).hostname or "").lower()
        if domain and (own == domain or own.endswith(f".{domain}")):
            raise ValueError(
                "must not be the name of PUBLIC_BASE_URL or one above it: its pages could set cookies for the service"
            )
        return domain

    @field_validator("anthropic_base_url", "openai_base_url", "gemini_base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError("must be an address that starts with https:// or http://")
        return value.rstrip("/")

    @property
    def preview_domains(self) -> tuple[str, ...]:
        """Every domain beneath which a name is a port's, the one of links first."""
        return tuple(dict.fromkeys(name for name in (self.preview_domain, LOCAL_DOMAIN) if name))

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """The names that the service answers to; none: any. A service without a key is open to this machine's own."""
        if self.allowed_hosts or self.mcp_api_key or self.api_keys_file is not None:
            return self.allowed_hosts
        return names_of_this_machine(self.host, self.public_base_url)


def load(**overrides: Any) -> Settings:
    """The settings of this process; `overrides` are the flags of the command line."""
    _check_env_file()
    try:
        return Settings(**overrides)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, e['loc'])).upper()}: {e['msg'].removeprefix('Value error, ')}{_input_of(e)}"
            for e in error.errors()
        ]
        raise BadSettings("; ".join(lines)) from None


def _input_of(error: Any) -> str:
    """What was set, unless it is a secret."""
    return "" if str(error["loc"][-1]).endswith(("_key", "_token", "_headers")) else f" (it is {error['input']!r})"


def _check_env_file() -> None:
    """A line that says nothing would be passed over, and with it the key that closes the service: stop instead."""
    file = Path(".env").absolute()
    if not file.is_file():
        return
    try:
        text = file.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadSettings(f"{file}, line {line}: this is not UTF-8 text.") from None
    except OSError as error:
        raise BadSettings(f"{file} cannot be read: {error.strerror}.") from None
    faults = []
    for binding in parse_stream(io.StringIO(text)):
        if binding.error:
            written, line = binding.original.string, binding.original.line
            statement = written.lstrip()
            line += written.count("\n", 0, len(written) - len(statement))  # the blank lines before it
            faults.append(f"line {line}: {_fault(statement)}")
    if faults:
        raise BadSettings(f"{file}, {'; '.join(faults)}.")


def _fault(statement: str) -> str:
    """What is wrong with a line, without a word of it that could be a secret."""
    name, equals, value = statement.removeprefix("export ").partition("=")
    known = name.strip().upper() if name.strip().lower() in Settings.model_fields else ""
    if equals and value.lstrip()[:1] in ("'", '"'):
        where = f"the value of {known}" if known else "the value"
        return f"{where} begins with a quote, and the line does not end with it"
    return "it is neither NAME=value nor a comment (#)"


def misspelt() -> dict[str, str]:
    """Names in the .env file that no setting has, by the setting that each is probably meant for."""
    try:
        _check_env_file()
    except BadSettings:
        return {}
    known = [name.upper() for name in Settings.model_fields]
    written = [name.upper() for name in DotEnvSettingsSource(Settings).env_vars]
    near = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.75) for name in written if name not in known}
    return {name: found[0] for name, found in near.items() if found}


def terminal_type() -> str:
    """What kind of terminal this process has: no setting, but a fact of the environment all the same."""
    return os.environ.get("TERM") or "xterm-256color"


def base_url(settings: Settings) -> str:
    """Where people reach the service, as far as it can know."""
    if settings.public_base_url:
        return settings.public_base_url.rstrip("/")
    host = "127.0.0.1" if settings.host in ("", "0.0.0.0", "::") else settings.host  # noqa: S104 — compared, not bound
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}{settings.root_path.rstrip('/')}"
