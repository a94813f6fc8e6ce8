"""What a sandbox may reach through the egress proxy.

Rules are tried in order and the first that fits decides. When none fits, the mode does: `open` allows, `allowlist`
denies; `none` denies without asking the rules. Closed addresses (`egress/blocked_networks.py`) are denied in every
mode, unless the rule that allows names their network.

BadRule      a rule that cannot be meant; the message says what to write instead
BadTarget    a destination that is not a host and a port
BadRules     a file of rules that cannot be used; the message says where it is wrong
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from cubicle.core.bad_settings import BadSettings
from cubicle.core.network import NetworkMode
from cubicle.egress.blocked_networks import Address, Network, closed_range, faces, opens

DEFAULT_CONTACT = "the operator of this Cubicle service"

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_WEB_PORTS = {"http": 80, "https": 443}
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SECOND_LEVEL = frozenset({"ac", "co", "com", "edu", "go", "gov", "gob", "mil", "ne", "net", "nom", "or", "org"})
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_NEVER_INJECTED = frozenset({"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"})


class BadRule(ValueError):
    """A rule that cannot be meant."""


class BadTarget(ValueError):
    """Not a destination."""


class BadRules(BadSettings):
    """The rules file cannot be used; the message says where it is wrong."""


class Action(StrEnum):
    ALLOW = "allow"
    DENY = "deny"


class Scheme(StrEnum):
    HTTP = "http"
    HTTPS = "https"


@dataclass(frozen=True, slots=True)
class Target:
    """Where to: a name or an address, and a port. Make one with `parse`."""

    host: str
    port: int
    literal: Address | None = None

    @classmethod
    def parse(cls, host: str, port: int) -> Target:
        if not 0 < port < 65536:
            raise BadTarget("A port is a number from 1 to 65535.")
        text = host.lower()
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        try:
            if "%" in text:
                raise BadTarget("An address with a zone cannot be reached from here.")
            literal = ip_address(text)
            return cls(str(literal), port, literal)
        except BadTarget:
            raise
        except ValueError:
            return cls(host_name(text), port)

    @classmethod
    def of(cls, url: str) -> Target:
        """Where a browser goes for this web address."""
        try:
            parts = urlsplit(url)
            port = parts.port or _WEB_PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise BadTarget("That is not a web address.") from None
        return cls.parse(parts.hostname or "", port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def host_name(text: str) -> str:
    """A host name in the one form in which names are compared."""
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadTarget("That is not a host name (names beyond ASCII are written in their xn-- form).")
    if _NUMBER.fullmatch(labels[-1]):
        raise BadTarget("That is neither a host name nor an address in its usual form.")
    return name


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody in the sandbox wants. Without a scheme it is a tunnel, into which nobody looks."""

    target: Target
    scheme: Scheme | None = None
    method: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; what it leaves empty it does not ask about."""

    name: str
    action: Action = Action.ALLOW
    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    ports: tuple[range, ...] = ()
    scheme: Scheme | None = None
    methods: frozenset[str] = frozenset()
    paths: tuple[str, ...] = ()
    inject: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        for pattern in self.hosts:
            _check_pattern(pattern, self.action)
        for pattern in self.paths:
            if not pattern.startswith("/") or "*" in pattern[:-1]:
                raise BadRule(f"the path {pattern!r}: starts with / and may end with *, as in /api/*")
        if self.inject and (self.action is Action.DENY or not self.hosts or self.scheme is None):
            raise BadRule("inject belongs to an allow rule with hosts and a scheme")
        for header, value in self.inject:
            if not _TOKEN.fullmatch(header) or header.lower() in _NEVER_INJECTED:
                raise BadRule(f"inject: {header!r} is not a header that can be set")
            if not value or not value.isascii() or not value.isprintable():
                raise BadRule(f"inject: the value of {header} must be one line of ASCII text")

    def names(self, target: Target) -> bool:
        """Whether host and port are ones that this rule is about."""
        if self.hosts and (target.literal is not None or not any(_matches(p, target.host) for p in self.hosts)):
            return False
        return not self.ports or any(target.port in ports for ports in self.ports)

    def fits(self, request: Request) -> bool:
        """Whether the rule is about this request, its address aside."""
        if not self.names(request.target):
            return False
        if request.scheme is None:
            # Nobody sees what goes through a tunnel: what might be denied inside is denied, and nothing is allowed.
            return not self._looks_inside or self.action is Action.DENY
        if self.scheme is not None and self.scheme is not request.scheme:
            return False
        if self.methods and not self._method_fits(request.method):
            return False
        return not self.paths or self._path_fits(request.path)

    @property
    def _looks_inside(self) -> bool:
        return bool(self.scheme or self.methods or self.paths)

    def _method_fits(self, method: str) -> bool:
        return (method.upper() if self.action is Action.DENY else method) in self.methods

    def _path_fits(self, path: str) -> bool:
        straight = _straight(path)
        if straight is None:
            return self.action is Action.DENY
        return any(straight == p or (p.endswith("*") and straight.startswith(p[:-1])) for p in self.paths)

    def holds(self, address: Address) -> bool:
        return not self.networks or any(
            face in network for face in faces(address) for network in self.networks if face.version == network.version
        )

    def opens(self, address: Address) -> bool:
        return any(opens(network, address) for network in self.networks)


@dataclass(frozen=True, slots=True)
class Policy:
    """What holds for one chat."""

    mode: NetworkMode
    rules: tuple[Rule, ...] = ()
    contact: str = DEFAULT_CONTACT
    most_connections: int = 256
    most_bytes: int = 0
    """In 24 hours, both ways together; 0: no limit."""
    additions: tuple[Rule, ...] = ()
    """Rules that open nothing: they set their headers on what the others allow."""


@dataclass(frozen=True, slots=True)
class PolicyVerdict:
    """The answer to a request, and which rule gave it."""

    allowed: bool
    rule: str
    reason: str = ""
    inject: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def foresee(policy: Policy, request: Request) -> PolicyVerdict | None:
    """A denial that no address can change, or None.

    A name that nothing allows is not even looked up: a look-up is a message to whoever owns the domain.
    """
    if policy.mode is NetworkMode.NONE:
        return PolicyVerdict(False, "mode none", "sandboxes of this service have no network")
    for rule in policy.rules:
        if not rule.fits(request):
            continue
        if rule.action is Action.DENY:
            if not rule.networks:
                return _denied(rule)
        elif rule.hosts or request.target.literal is not None or not rule.networks:
            return None
    return None if policy.mode is NetworkMode.OPEN else _unlisted(request)


def judge(policy: Policy, request: Request, address: Address, *, own: bool = False) -> PolicyVerdict:
    """Whether the request may go to this address; `own` says that it is one of the service's host."""
    verdict = _judge(policy, request, address, own)
    if not verdict.allowed or not policy.additions:
        return verdict
    headers = {
        name.lower(): (name, value) for rule in policy.additions if rule.fits(request) for name, value in rule.inject
    }
    headers |= {name.lower(): (name, value) for name, value in verdict.inject}
    return replace(verdict, inject=tuple(headers.values()))


def _judge(policy: Policy, request: Request, address: Address, own: bool) -> PolicyVerdict:
    if policy.mode is NetworkMode.NONE:
        return PolicyVerdict(False, "mode none", "sandboxes of this service have no network")
    closed = closed_range(address) or ("an address of the service's own host" if own else None)
    for rule in policy.rules:
        if not rule.fits(request) or not rule.holds(address):
            continue
        if rule.action is Action.DENY:
            return _denied(rule)
        if closed is None or rule.opens(address):
            return PolicyVerdict(True, rule.name, inject=rule.inject)
    if closed is not None:
        return PolicyVerdict(
            False, "closed addresses", f"{address} is {closed}; only a rule that names it could open it"
        )
    return PolicyVerdict(True, "mode open") if policy.mode is NetworkMode.OPEN else _unlisted(request)


def terminates(policy: Policy, target: Target) -> bool:
    """Whether the proxy has to look into TLS to this target, because a rule sets a header there."""
    if policy.mode is not NetworkMode.NONE:
        for rule in policy.rules:
            if not rule.names(target):
                continue
            if rule.inject and rule.scheme is Scheme.HTTPS:
                return True
            if rule.action is Action.DENY and not (rule.networks or rule.scheme or rule.methods or rule.paths):
                return False
        return any(rule.names(target) for rule in policy.additions)
    return False


def _denied(rule: Rule) -> PolicyVerdict:
    return PolicyVerdict(False, rule.name, "a rule of this service denies it")


def _unlisted(request: Request) -> PolicyVerdict:
    return PolicyVerdict(False, "mode allowlist", f"no rule of this service allows {request.target}")


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern


def _check_pattern(pattern: str, action: Action) -> None:
    name = pattern.removeprefix("*.")
    if pattern == "*":
        raise BadRule("the host '*' is too broad; name a domain, as in *.example.com, or leave hosts out")
    if name != pattern and action is Action.ALLOW:
        labels = name.split(".")
        country = len(labels) == 2 and len(labels[1]) == 2 and labels[0] in _SECOND_LEVEL
        if len(labels) < 2 or country:
            raise BadRule(f"the host {pattern!r} is too broad; name a domain, as in *.example.com")
    try:
        clean = host_name(name)
    except BadTarget:
        raise BadRule(f"the host {pattern!r}: a name, or *. and a name; addresses belong into addresses") from None
    if clean != name:
        raise BadRule(f"the host {pattern!r}: written in small letters and without a dot at its end")


def _straight(path: str) -> str | None:
    """The path as its server reads it, or None where servers differ."""
    text = unquote(path.partition("?")[0], errors="replace")
    if re.search(r"[\\\x00-\x1f\x7f�%]|//|;|(?:^|/)\.{1,2}(?:/|$)", text) or re.search(r"%2f", path, re.IGNORECASE):
        return None
    return text
