"""What the proxy says to a model."""

from __future__ import annotations

import re

from cubicle.core.network import NetworkMode
from cubicle.egress.policy import Policy, Request, Rule

STATUS_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    421: "Misdirected Request",
    429: "Too Many Requests",
    502: "Bad Gateway",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}


def denial(policy: Policy, request: Request, rule: str, reason: str) -> str:
    return (
        f"The egress proxy of this sandbox did not let this request through.\n"
        f"Destination: {request.target}\n"
        f"Rule: {rule}\n"
        f"Why: {reason}.\n"
        f"What to do: trying again or another way does not help. If the task needs it, tell the user to ask "
        f"{policy.contact} for a rule that allows {request.target}.\n"
    )


def short_denial(policy: Policy, rule: str) -> str:
    """For the status line, which is all that most programs show of a refused CONNECT."""
    text = f"Denied by rule '{rule}' of the sandbox's egress proxy; ask {policy.contact}"
    return re.sub(r"[^ -~]", "?", text)[:200]


def note(policy: Policy, request: Request, rule: str, reason: str) -> str:
    """For whoever started the program that was denied: it may have shown nothing of it."""
    return (
        f"The sandbox's egress proxy denied {request.target} (rule '{rule}': {reason}). "
        f"If the task needs it, tell the user to ask {policy.contact} for a rule that allows it."
    )


def shown(policy: Policy, request: Request, reason: str) -> str:
    """For a person who watches the browser, which shows an error of its own."""
    return (
        f"The egress proxy of this service did not let the browser reach {request.target}: {reason}. "
        f"Whom to ask: {policy.contact}."
    )


def overview(policy: Policy) -> str:
    """The answer to somebody who opens the proxy itself: what holds in this sandbox."""
    default = {
        NetworkMode.NONE: "nothing leaves this sandbox",
        NetworkMode.ALLOWLIST: "only what a rule below allows",
        NetworkMode.OPEN: "everything public, save what a rule below denies",
    }[policy.mode]
    lines = [
        "This is the egress proxy of the sandbox: a proxy for HTTP (CONNECT and plain) and SOCKS5 on one port.",
        f"Mode: {policy.mode.value} ({default}).",
        *(_line(rule) for rule in policy.rules),
        f"For anything else, ask {policy.contact}.",
    ]
    return "\n".join(lines) + "\n"


def _line(rule: Rule) -> str:
    parts = [
        " ".join(rule.hosts),
        " ".join(map(str, rule.networks)),
        "port " + " ".join(_ports(ports) for ports in rule.ports) if rule.ports else "",
        rule.scheme.value if rule.scheme else "",
        " ".join(sorted(rule.methods)),
        " ".join(rule.paths),
        "(credentials are added by the proxy)" if rule.inject else "",
    ]
    return f"- {rule.action.value}: {'; '.join(part for part in parts if part) or 'everything'} [{rule.name}]"


def _ports(ports: range) -> str:
    return str(ports.start) if len(ports) == 1 else f"{ports.start}-{ports.stop - 1}"
