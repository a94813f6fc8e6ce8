"""Host names of ports: `{port}-{id}.{domain}`. One function says what a request's Host means; nothing else looks at it.

A name beneath a preview domain never means the service itself, and no other name means a port.

BadHost         the request names its host in a way that two readers could understand differently
NoSuchPortName  a name beneath a preview domain that is no port's
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LOCAL_DOMAIN = "localhost"
"""Browsers resolve every name beneath it to this machine."""
ID_LENGTH = 32
MAX_DOMAIN = 253 - len("65535-") - ID_LENGTH - 1
_NAME = re.compile(r"([1-9][0-9]{0,4})-([0-9a-f]{32})", re.ASCII)
_AUTHORITY = re.compile(rb"([A-Za-z0-9._-]{0,253})(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")
_ABSOLUTE = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]*)")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


class BadHost(ValueError):
    """The host is named twice, in two ways, or in letters that a name does not have."""


class NoSuchPortName(ValueError):
    """The name is beneath a preview domain, and no port has it."""


@dataclass(frozen=True, slots=True)
class PortName:
    """A port of the chat that has this id in the names of its ports."""

    port: int
    id: str

    @property
    def label(self) -> str:
        return f"{self.port}-{self.id}"


def is_domain(text: str) -> bool:
    """Whether names of ports can stand beneath this one; in lower case, without a port or a dot at its end."""
    return len(text) <= MAX_DOMAIN and all(map(_LABEL.fullmatch, text.split("."))) and not text.split(".")[-1].isdigit()


def port_of(hosts: Sequence[bytes], target: bytes, domains: Sequence[str], own: Sequence[str] = ()) -> PortName | None:
    """The port that a request is for, by its Host lines and its target; None if it is for the service itself.

    `own` are names of the service, in lower case: one beneath a preview domain (cubicle.localhost) is not refused.
    Raises BadHost and NoSuchPortName, for which the service answers nothing but a refusal.
    """
    named = [_meaning(host.strip(b" \t"), domains, own) for host in hosts]
    if len(named) > 1:
        raise BadHost("The request has more than one Host.")
    absolute = _ABSOLUTE.match(target)
    if absolute is not None:
        named.append(_meaning(absolute[1], domains, own))
    for meaning in named:
        if isinstance(meaning, NoSuchPortName):
            raise meaning
    if len(set(named)) > 1:
        raise BadHost("The request's target names another host than its Host.")
    found = named[0] if named else None
    if found is not None and absolute is None and not target.startswith(b"/"):
        raise BadHost("The request's target is no path.")
    assert not isinstance(found, NoSuchPortName)
    return found


def origin_form(target: bytes) -> bytes:
    """The path and query of a target, byte for byte: `/…`."""
    absolute = _ABSOLUTE.match(target)
    rest = target[absolute.end() :] if absolute is not None else target
    return rest if rest.startswith(b"/") else b"/" + rest


def _meaning(host: bytes, domains: Sequence[str], own: Sequence[str]) -> PortName | NoSuchPortName | None:
    """What one spelling of a host means. Raises BadHost for one that looks like a port's and is not plainly one."""
    match = _AUTHORITY.fullmatch(host)
    if match is None:
        lowered = host.lower()
        if not host.isascii() or any(domain.encode() in lowered for domain in domains):
            raise BadHost("The Host is no host name.")
        return None
    name = (match[1] or b"").decode("ascii").lower()
    for domain in domains:
        if name.rstrip(".") == domain and domain != LOCAL_DOMAIN:
            return NoSuchPortName(f"{domain} is for the names of ports, and has none itself.")
        if name.rstrip(".").endswith(f".{domain}"):
            return None if name in own and not _NAME.match(name) else _port(name, domain)
    return None


def _port(name: str, domain: str) -> PortName | NoSuchPortName:
    found = _NAME.fullmatch(name.removesuffix(f".{domain}"))
    if found is None or int(found[1]) > 65535:
        return NoSuchPortName("No port of any chat has this name.")
    return PortName(int(found[1]), found[2])
