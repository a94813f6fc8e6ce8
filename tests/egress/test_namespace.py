"""The policy against real servers at real addresses: the world of this test is a network namespace of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from ipaddress import ip_address, ip_network

import pytest

from cubicle.core.network import NetworkMode
from cubicle.egress.blocked_networks import Address
from cubicle.egress.policy import Action, Policy, Rule
from tests.conftest import absent
from tests.egress.conftest import Audit, Behind, shell
from tests.egress.namespaces import Namespace, cable, enter
from tests.egress.servers import Server, http_server

pytestmark = pytest.mark.anyio

PORT = 8080
NAMES = {
    "public.example": ["93.184.216.34"],
    "six.example": ["2606:4700::1111"],
    "both.example": ["10.0.0.5", "93.184.216.34"],
    "private.example": ["10.0.0.5"],
    "metadata.example": ["169.254.169.254"],
}
ADDRESSES = [
    *("93.184.216.34", "8.8.8.8", "10.0.0.5", "100.64.0.9", "169.254.169.254", "172.16.3.4", "192.168.7.7"),
    *("198.18.0.1", "2606:4700::1111", "fd00:ec2::254", "fc00::5"),
]


class World:
    """Servers at all of the addresses, and who was asked."""

    def __init__(self, here: Namespace, servers: dict[str, Server]) -> None:
        self.here = here
        self.servers = servers

    @property
    def asked(self) -> set[str]:
        return {address for address, server in self.servers.items() if server.callers}


async def resolve(host: str) -> Sequence[Address]:
    if host not in NAMES:
        raise OSError("no such name")
    return [ip_address(text) for text in NAMES[host]]


@pytest.fixture(scope="module")
def whole_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    if os.geteuid() != 0:
        absent("needs root: it makes network namespaces")
    with cable(ADDRESSES) as (here, there), ExitStack() as stack:
        servers = {
            address: there.within(
                lambda address=address: stack.enter_context(http_server(folder, address=address, port=PORT))  # type: ignore[misc]
            )
            for address in ADDRESSES
        }
        yield World(here, servers)


@pytest.fixture
def world(whole_world: World) -> Iterator[World]:
    """The world before anybody was asked anything; this thread is in it."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    for server in whole_world.servers.values():
        server.callers = 0
    enter(whole_world.here.handle)
    try:
        yield whole_world
    finally:
        enter(home)
        os.close(home)


def by(name: str, *, cidr: str = "", deny: bool = False, **more: object) -> Rule:
    networks = tuple(ip_network(text) for text in cidr.split())
    return Rule(name, Action.DENY if deny else Action.ALLOW, networks=networks, **more)  # type: ignore[arg-type]


NONE: set[str] = set()
ROWS: list[tuple[str, NetworkMode, tuple[Rule, ...], str, set[str]]] = [
    # what it shows, mode, rules, host that is asked for, addresses that hear of it
    ("open: public", NetworkMode.OPEN, (), "public.example", {"93.184.216.34"}),
    ("open: by address", NetworkMode.OPEN, (), "8.8.8.8", {"8.8.8.8"}),
    ("open: version 6", NetworkMode.OPEN, (), "six.example", {"2606:4700::1111"}),
    ("open: version 6 by address", NetworkMode.OPEN, (), "[2606:4700::1111]", {"2606:4700::1111"}),
    ("open: private by name", NetworkMode.OPEN, (), "private.example", NONE),
    ("open: private by address", NetworkMode.OPEN, (), "10.0.0.5", NONE),
    ("open: private 172.16", NetworkMode.OPEN, (), "172.16.3.4", NONE),
    ("open: private 192.168", NetworkMode.OPEN, (), "192.168.7.7", NONE),
    ("open: carrier", NetworkMode.OPEN, (), "100.64.0.9", NONE),
    ("open: benchmark", NetworkMode.OPEN, (), "198.18.0.1", NONE),
    ("open: metadata by name", NetworkMode.OPEN, (), "metadata.example", NONE),
    ("open: metadata by address", NetworkMode.OPEN, (), "169.254.169.254", NONE),
    ("open: metadata mapped", NetworkMode.OPEN, (), "[::ffff:169.254.169.254]", NONE),
    ("open: metadata version 6", NetworkMode.OPEN, (), "[fd00:ec2::254]", NONE),
    ("open: unique local", NetworkMode.OPEN, (), "[fc00::5]", NONE),
    ("open: the host itself, by its public address", NetworkMode.OPEN, (), "11.0.0.1", NONE),
    ("open: mapped public is dialled as what it is", NetworkMode.OPEN, (), "[::ffff:8.8.8.8]", {"8.8.8.8"}),
    ("open: of two addresses only the public one", NetworkMode.OPEN, (), "both.example", {"93.184.216.34"}),
    (
        "open: denied by name",
        NetworkMode.OPEN,
        (by("x", deny=True, hosts=("public.example",)),),
        "public.example",
        NONE,
    ),
    ("open: denied by network", NetworkMode.OPEN, (by("x", deny=True, cidr="93.0.0.0/8"),), "public.example", NONE),
    ("open: denied by port", NetworkMode.OPEN, (by("x", deny=True, ports=(range(PORT, PORT + 1),)),), "8.8.8.8", NONE),
    ("open: private by rule", NetworkMode.OPEN, (by("x", cidr="10.0.0.0/8"),), "private.example", {"10.0.0.5"}),
    ("open: unique local by rule", NetworkMode.OPEN, (by("x", cidr="fc00::/64"),), "[fc00::5]", {"fc00::5"}),
    ("open: all is not private", NetworkMode.OPEN, (by("x", cidr="0.0.0.0/0"),), "private.example", NONE),
    ("open: link-local is not metadata", NetworkMode.OPEN, (by("x", cidr="169.254.0.0/16"),), "169.254.169.254", NONE),
    (
        "open: metadata by its own rule",
        NetworkMode.OPEN,
        (by("x", cidr="169.254.169.254/32"),),
        "metadata.example",
        {"169.254.169.254"},
    ),
    ("allowlist: nothing", NetworkMode.ALLOWLIST, (), "public.example", NONE),
    (
        "allowlist: a name",
        NetworkMode.ALLOWLIST,
        (by("x", hosts=("public.example",)),),
        "public.example",
        {"93.184.216.34"},
    ),
    ("allowlist: its address", NetworkMode.ALLOWLIST, (by("x", hosts=("public.example",)),), "93.184.216.34", NONE),
    ("allowlist: a network", NetworkMode.ALLOWLIST, (by("x", cidr="8.8.0.0/16"),), "8.8.8.8", {"8.8.8.8"}),
    ("allowlist: another network", NetworkMode.ALLOWLIST, (by("x", cidr="8.9.0.0/16"),), "8.8.8.8", NONE),
    (
        "allowlist: a name that is private",
        NetworkMode.ALLOWLIST,
        (by("x", hosts=("private.example",)),),
        "private.example",
        NONE,
    ),
    ("none", NetworkMode.NONE, (by("x", cidr="8.8.0.0/16"),), "8.8.8.8", NONE),
]


@pytest.mark.parametrize(("mode", "rules", "host", "heard"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_the_policy_holds_on_the_wire(
    world: World, behind: Behind, audit: Audit, mode: NetworkMode, rules: tuple[Rule, ...], host: str, heard: set[str]
) -> None:
    url = f"'http://{host}:{PORT}/echo'"
    ways = ("", "-p", "-x socks5h://127.0.0.1:1080")
    async with behind(Policy(mode, rules), resolve=resolve) as machine:
        assert machine.environment["HTTP_PROXY"] == "http://127.0.0.1:3128"
        answers = [await shell(machine, f"curl -sS --max-time 60 {way} {url}") for way in ways]
    assert world.asked == heard
    assert len(audit.of("allowed")) == (3 if heard else 0)
    assert len(audit.of("denied")) == (0 if heard else 3)
    for answer in answers if heard else ():
        assert json.loads(answer)["peer"] in ("11.0.0.1", "2600::1")
