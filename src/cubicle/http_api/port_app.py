"""What answers under the names of ports: nothing of the service's own routes is behind it."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.types import ASGIApp

from cubicle.chat.key_attempts import KeyAttempts
from cubicle.core.chat import Chat
from cubicle.core.hosts import ascii_name, without_port
from cubicle.core.keys import KeyRing
from cubicle.fairness.fair_queue import FairQueue
from cubicle.http_api.forwarding import Forwarder
from cubicle.http_api.port_access import LinkUsed, PortAccess
from cubicle.http_api.port_headers import Surroundings
from cubicle.http_api.port_hosts import PortFairShare
from cubicle.http_api.port_proxy import PortProxy
from cubicle.ports.links import PortLinks
from cubicle.ports.running_visits import RunningVisits
from cubicle.ports.shares import PortShares
from cubicle.sandbox.fleet import Fleet
from cubicle.settings import Settings


def make_port_app(
    settings: Settings,
    fleet: Fleet,
    links: PortLinks,
    shares: PortShares,
    ring: KeyRing,
    queue: FairQueue,
    base: str,
    used: LinkUsed = lambda chat, token, address: None,
    forwarder: Forwarder | None = None,
) -> ASGIApp:
    """`base` is where people reach the service itself."""

    def chats() -> list[Chat]:
        return [seen.chat for seen in fleet.overview() if seen.chat is not None and seen.name]

    def elsewhere(chat: Chat) -> bool:
        return forwarder is not None and not forwarder.owners.owns(chat.digest)

    # Wrong keys are counted apart: a page on a port could make its visitor's browser send them.
    keys = KeyAttempts(ring, settings.wrong_keys_per_minute)
    visits = RunningVisits()
    shares.when_ended(visits.end_share)
    around = Surroundings(frozenset(own_names(settings)), frame_parents(settings, base))
    access = PortAccess(links, shares, keys, chats, used, elsewhere)
    proxy = PortProxy(fleet, access, visits, around, forwarder)
    return PortFairShare(proxy, queue, ring)


def own_names(settings: Settings) -> tuple[str, ...]:
    """Host names that are the service's own, as far as it knows, in lower case and without a port."""
    named = (urlsplit(settings.public_base_url).hostname, *map(without_port, settings.allowed_hosts), settings.host)
    return tuple(dict.fromkeys(ascii_name(name) or name.lower() for name in named if name))


def frame_parents(settings: Settings, base: str) -> str:
    """Who may show the pages of a port in a frame, besides the ports of the same chat: the workspace, and those who may
    show the workspace. As the sources of a Content-Security-Policy."""
    parts = urlsplit(base)
    own = [f"{parts.scheme}://{parts.netloc}", *map(without_port, settings.allowed_hosts)]
    if not settings.preview_domain:  # then the browser is on the same machine
        own += [f"http://127.0.0.1:{settings.port}", f"http://localhost:{settings.port}"]
    return " ".join(dict.fromkeys(["'self'", *own, *settings.embedders]))
