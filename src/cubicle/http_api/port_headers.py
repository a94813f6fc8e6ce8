"""Headers between a visitor and the program on a port: what is left out, what is added, what is rewritten.

OwnRedirect    the program sends its visitor to the service itself
BadFraming     the request's body is encoded in a way that is not passed on
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

from cubicle.core.cookies import OURS, PREFIX
from cubicle.core.hosts import ascii_name
from cubicle.core.origins import origin_of
from cubicle.core.port_names import PortName
from cubicle.ports.links import PARAMETER

Lines = list[tuple[bytes, bytes]]

COOKIE = "cubicle-port"
FRAME_COOKIE = "cubicle-port-frame"
"""Left in a frame of another site: the browser keeps it for frames of that site only (Partitioned)."""
KEY_HEADER = b"x-cubicle-key"
NOTE_HEADER = b"x-cubicle-port"
"""Of answers that are the service's own and not the program's."""

_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te")
) | {b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"}
_NOT_TO_PROGRAM = _HOP_BY_HOP | {
    *(b"host", b"expect", b"content-length", b"forwarded", b"x-real-ip"),
    *(b"authorization", b"cookie", KEY_HEADER),  # of cookies, those of others are added again
    *(b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-extensions", b"sec-websocket-protocol"),
}
_FOR_PROXIES = (b"x-accel-", b"x-sendfile", b"x-lighttpd-send", b"x-litespeed-")
"""Orders to a reverse proxy, say to send a file of its own: headers that begin like this are left out."""
_NOT_TO_VISITOR = _HOP_BY_HOP | {
    *(b"date", b"strict-transport-security", b"alt-svc", NOTE_HEADER),
    b"clear-site-data",  # it would clear the cookies of every name in the domain
}
_ABSOLUTE = re.compile(rb"(?:(https?):)?/{2,}([^/?#]*)(.*)|(https?):/?([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_LOCAL_NAMES = frozenset({"localhost", "::1", "::", "0.0.0.0"})  # noqa: S104 - compared, not bound


class OwnRedirect(ValueError):
    """The program's answer leads to the service's own pages."""


class BadFraming(ValueError):
    """The body of the request has a transfer coding besides chunked."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of the service itself the pages of a port have to do with."""

    own_hosts: frozenset[str] = frozenset()
    """Names of the service itself."""
    frame_parents: str = "'self'"
    """Who may show the pages of any port in a frame, as the sources of a Content-Security-Policy."""


@dataclass(frozen=True, slots=True)
class PortView:
    """How a visitor sees a port, and how the program behind it sees itself."""

    name: PortName
    host: str
    """As the visitor's browser wrote it, in lower case, with a port if it has one."""
    scheme: str
    address: str
    """Of the visitor."""
    around: Surroundings = Surroundings()
    framed: bool = False
    """The visitor came by the cookie of a frame."""
    foreign: bool = False
    """A page of another address asks: no cookie of the program's goes either way."""
    sibling: int | None = None
    """The port of the same chat whose page led here."""

    @property
    def origin(self) -> str:
        return self.origin_of(self.name.port)

    def origin_of(self, port: int) -> str:
        """The visitor's address of a port of the same chat."""
        return f"{self.scheme}://{port}-{self.name.id}{self.host.removeprefix(self.name.label)}"

    def sibling_of(self, url: str) -> int | None:
        """The port of the same chat that a URL or an Origin is of."""
        port = url.partition("://")[2].partition("-")[0]
        if not port.isdigit() or len(port) > 5 or not port.isascii():
            return None
        own = origin_of(self.origin_of(int(port)))
        return int(port) if own is not None and own == origin_of(url) else None

    @property
    def frame_policy(self) -> bytes:
        """Who may show a page of the port in a frame. A policy of the program's own holds besides it."""
        siblings = [] if self.sibling is None else [self.origin_of(self.sibling)]
        return " ".join(["frame-ancestors", self.around.frame_parents, *siblings]).encode()

    @property
    def inner_host(self) -> str:
        return "localhost" if self.name.port == 80 else f"localhost:{self.name.port}"

    @property
    def inner_origin(self) -> str:
        return f"http://{self.inner_host}"


def connection_options(lines: Iterable[tuple[bytes, bytes]]) -> set[bytes]:
    """The headers that are for one connection only, by the Connection header itself."""
    return {
        option.strip().lower() for name, value in lines if name.lower() == b"connection" for option in value.split(b",")
    }


def without_key(target: bytes) -> bytes:
    """The same target or URL less the token of a link."""
    path, mark, query = target.partition(b"?")
    kept = [part for part in query.split(b"&") if part.partition(b"=")[0] != PARAMETER.encode()]
    return path + (b"?" + b"&".join(kept) if mark and kept else b"")


def to_program(lines: Lines, view: PortView) -> Lines:
    """The headers of a request as the program gets them. Raises BadFraming.

    Authorization is the service's on this way: it never goes on, whatever it holds.
    """
    left_out = _NOT_TO_PROGRAM | (connection_options(lines) - {b"close"})
    sent: Lines = [(b"Host", view.inner_host.encode())]
    for name, value in lines:
        read_as = name.replace(b"_", b"-")  # by programs that get headers as variables of an environment
        if read_as in left_out or read_as.startswith(b"x-forwarded-"):
            continue
        if name in (b"origin", b"referer"):
            value = without_key(_as_inner(value, view))
        sent.append((name, value))
    sent += _forwarded(view) + _framing(lines)
    if not view.foreign and (cookies := b"; ".join(_others_cookies(lines))):
        sent.append((b"Cookie", cookies))
    return sent


def _forwarded(view: PortView) -> Lines:
    _, _, port = view.host.rpartition(":") if ":" in view.host else ("", "", "443" if view.scheme == "https" else "80")
    return [
        (b"X-Forwarded-For", view.address.encode("latin-1", "replace")),
        (b"X-Forwarded-Host", view.host.encode()),
        (b"X-Forwarded-Port", port.encode()),
        (b"X-Forwarded-Proto", view.scheme.encode()),
    ]


def _framing(lines: Lines) -> Lines:
    """How the body's end is told: by one header, whatever the client sent."""
    codings = [value.strip().lower() for name, value in lines if name == b"transfer-encoding"]
    if codings and codings != [b"chunked"]:
        raise BadFraming("The body may have no other transfer coding than chunked.")
    if codings:
        return [(b"Transfer-Encoding", b"chunked")]
    lengths = {value.strip() for name, value in lines if name == b"content-length"}
    if len(lengths) > 1 or any(not length.isdigit() or len(length) > 18 for length in lengths):
        raise BadFraming("The length of the body is not clear.")
    return [(b"Content-Length", length) for length in lengths]


def _others_cookies(lines: Lines) -> Iterable[bytes]:
    for name, value in lines:
        for pair in value.split(b";") if name == b"cookie" else ():
            if pair.strip() and not _is_ours(pair):
                yield pair.strip()


def _is_ours(pair: bytes) -> bool:
    """Whether a cookie is named like one of the service's. A value without a name is sent as if it were a pair."""
    name = pair.strip().lstrip(b"= \t").partition(b"=")[0].strip()
    return name.removeprefix(PREFIX.encode()).startswith(OURS.encode())


def _as_inner(value: bytes, view: PortView) -> bytes:
    """An Origin or Referer of the port's own pages, as the program names itself; others stay as they are."""
    outer = view.origin.encode()
    rest = value[len(outer) :]
    if value[: len(outer)].lower() == outer and (not rest or rest.startswith((b"/", b"?"))):
        return view.inner_origin.encode() + rest
    return value


def to_visitor(lines: Lines, view: PortView, status: int) -> Lines:
    """The headers of the program's answer as the visitor gets them. Raises OwnRedirect."""
    left_out = _NOT_TO_VISITOR | connection_options(lines)
    if status in (204, 304):
        left_out |= {b"content-length"}
    sent: Lines = []
    for name, value in lines:
        lowered = name.lower()
        if lowered in left_out or lowered.startswith(_FOR_PROXIES):
            continue
        if lowered == b"location":
            value = location(value, view)
        elif lowered == b"access-control-allow-origin" and value.strip().lower() == view.inner_origin.encode():
            value = view.origin.encode()
        elif lowered == b"set-cookie":
            kept = None if view.foreign else cookie(value, view)
            if kept is None:
                continue
            value = kept
        sent.append((lowered, value))
    sent.append((b"content-security-policy", view.frame_policy))
    return sent


def cookie(value: bytes, view: PortView) -> bytes | None:
    """A cookie of the program's, for this one name only; None for one that is named like ours."""
    pair, *attributes = value.split(b";")
    if _is_ours(pair):
        return None
    without = {b"domain"} | ({b"samesite", b"secure", b"partitioned"} if view.framed else set())
    kept = [one for one in attributes if one.partition(b"=")[0].strip().lower() not in without]
    if view.framed:
        kept += [b" SameSite=None", b" Secure", b" Partitioned"]
    return b";".join([pair, *kept])


def location(value: bytes, view: PortView) -> bytes:
    """Where a redirect leads, as the visitor reaches it. Raises OwnRedirect.

    Read as browsers do: without tabs and outer blanks, a backslash as a slash, any number of slashes.
    """
    plain = value.translate(None, b"\t\r\n").strip(bytes(range(33))).replace(b"\\", b"/")
    match = _ABSOLUTE.fullmatch(plain)
    if match is None:
        return value
    scheme, authority, rest = (match[1] or b"", match[2], match[3]) if match[2] is not None else match.group(4, 5, 6)
    host, port = _split(_as_read(authority.rpartition(b"@")[2]))
    if _is_local(host):
        default = 443 if (scheme.decode().lower() or view.scheme) == "https" else 80
        return f"{view.origin_of(port or default)}".encode() + (rest if rest.startswith(b"/") else b"/" + rest)
    if host in view.around.own_hosts:
        raise OwnRedirect("The program in the sandbox leads to the service's own address.")
    return value


def _as_read(authority: bytes) -> str:
    """As browsers read it: without percent signs, in ASCII whatever its letters and dots are. Raises OwnRedirect for
    what cannot be read, and could be anything."""
    decoded = unquote_to_bytes(authority)
    try:
        text = decoded.decode()
    except UnicodeDecodeError:
        text = decoded.decode("latin-1")
    plain = ascii_name(text)
    if plain is None:
        raise OwnRedirect("The program in the sandbox leads to an address that cannot be read.")
    return plain


def _split(authority: str) -> tuple[str, int | None]:
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdigit() or authority.endswith("]"):
        host, port = authority.removesuffix(":"), ""
    number = int(port[:6]) if port else None
    return host.strip("[]").rstrip("."), number if number and number < 65536 else None


def _is_local(host: str) -> bool:
    """Whether a program means its own machine by this host."""
    if host in _LOCAL_NAMES:
        return True
    try:
        if ":" in host:
            found = ipaddress.IPv6Address(host.partition("%")[0])
            return found.is_loopback or (found.ipv4_mapped is not None and found.ipv4_mapped.is_loopback)
        return ipaddress.IPv4Address(socket.inet_aton(host)).is_loopback
    except (ValueError, OSError):
        return False


def preflight(method: str, lines: Sequence[tuple[bytes, bytes]], view: PortView) -> Lines | None:
    """What a browser is told that asks whether a page of the same chat may send a request; None where it asks nothing
    such. It shows no cookie with that, only with the request itself: then the port may be opened by it, or not."""
    found = dict(lines)
    origin, wanted = found.get(b"origin", b""), found.get(b"access-control-request-method")
    if method != "OPTIONS" or wanted is None or view.sibling_of(origin.decode("latin-1")) is None:
        return None
    headers = found.get(b"access-control-request-headers")
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-allow-methods", wanted),
        *([(b"access-control-allow-headers", headers)] if headers else []),
        (b"vary", b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
    ]


def is_navigation(method: str, lines: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a person opens a page: a tab or a frame that is loaded, not what a page fetches by itself."""
    found = dict(lines)
    mode = found.get(b"sec-fetch-mode")
    by_accept = mode is None and b"text/html" in found.get(b"accept", b"")
    return method == "GET" and (mode == b"navigate" or by_accept)
