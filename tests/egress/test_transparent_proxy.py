"""The transparent proxy: programs that have never heard of a proxy obey the same policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import dns.message
import dns.rcode
import pytest

from cubicle.core.network import NetworkMode
from cubicle.drivers.oci import transparent_proxy
from cubicle.drivers.oci.driver import OciDriver
from cubicle.egress import handler
from cubicle.egress.fake_dns import RANGE, BadQuery, FakeDns
from cubicle.egress.policy import Policy
from cubicle.images.store import SUBUID_START, ImageStore
from cubicle.settings import load
from tests.conftest import absent
from tests.drivers.makers import some_base
from tests.egress.conftest import OPEN, Audit, Behind, shell
from tests.egress.servers import Server, http_server
from tests.egress.test_secrets import SECRET, write_rules

anyio = pytest.mark.anyio
walls = pytest.mark.oci
BARE = "env -u http_proxy -u https_proxy -u HTTP_PROXY -u HTTPS_PROXY -u all_proxy -u ALL_PROXY"


@pytest.fixture
def driver(tmp_path: Path) -> OciDriver:
    if not transparent_proxy.available():
        absent("needs nft and ip (Debian: apt-get install nftables iproute2)")
    store = ImageStore(load().image_dir)
    return OciDriver(tmp_path / "data", store, some_base(store).digest, SUBUID_START, runtime="runc", transparent=True)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "www").mkdir()
    with http_server(tmp_path / "www") as running:
        yield running


@anyio
@walls
async def test_a_program_without_a_proxy_gets_through_by_name(
    behind: Behind, driver: OciDriver, server: Server, audit: Audit
) -> None:
    async with behind(driver=driver, transparent=lambda: driver.capabilities.transparent_proxy) as machine:
        answer = await shell(machine, f"{BARE} curl -sS --max-time 60 http://web.test:{server.port}/echo")
        look_up = 'import socket; print(*map(socket.gethostbyname, ("web.test", "other.test")), sep="\\n")'
        found = await shell(machine, f"python3 -c '{look_up}'")
        again = await shell(
            machine, f"{BARE} curl -sS --max-time 60 http://web.test:{server.port}/big?n=3000000 | wc -c"
        )
    assert json.loads(answer)["headers"]["host"] == f"web.test:{server.port}"
    assert len({address for line in found.splitlines() if (address := IPv4Address(line)) in RANGE}) == 2
    assert again.strip() == "3000000"
    assert [(line["protocol"], line["host"]) for line in audit.of("allowed")] == [("captive", "web.test")] * 2


@anyio
@walls
async def test_a_program_without_a_proxy_is_denied_as_any_other(
    behind: Behind, driver: OciDriver, server: Server, audit: Audit
) -> None:
    async with behind(
        Policy(NetworkMode.OPEN), driver=driver, transparent=lambda: driver.capabilities.transparent_proxy
    ) as machine:
        told = await shell(machine, f"{BARE} curl -sS --max-time 60 http://web.test/")
        cut = await shell(machine, f"{BARE} curl -sS --max-time 60 http://web.test:{server.port}/; echo $?")
        by_address = await shell(machine, f"{BARE} curl -sS --max-time 60 http://169.254.169.254/latest")
        unknown = await shell(machine, f"{BARE} curl -sS --max-time 60 http://198.18.77.77:{server.port}/; echo $?")
        own = await shell(machine, "python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &"
                          f" {BARE} curl -s --retry 20 --retry-delay 1 --retry-connrefused -o /dev/null -w '%{{http_code}}' http://127.0.0.1:8000/; kill %1")  # fmt: skip
    assert "closed addresses" in told
    assert "Rule: closed addresses" in by_address
    assert cut.splitlines()[-1] == "52"
    assert unknown.splitlines()[-1] == "52"
    assert own.startswith("200"), "the sandbox's own servers stay its own"
    assert server.callers == 0
    assert {line["protocol"] for line in audit.lines} == {"captive"}


@anyio
@walls
async def test_a_secret_goes_to_the_name_that_was_looked_up(
    behind: Behind, driver: OciDriver, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "_HTTP", server.port)  # the usual one is not a test's to take
    rules = write_rules(tmp_path, scheme="http")
    curl = f"{BARE} curl -sS --max-time 60 http://api.test:{server.port}/echo"
    async with behind(rules=rules, driver=driver, transparent=lambda: driver.capabilities.transparent_proxy) as machine:
        elsewhere = await shell(machine, f"{curl} -i -H 'Host: evil.example'")
        callers = server.callers
        answer = json.loads(await shell(machine, curl))
    assert elsewhere.startswith("HTTP/1.1 421 ")
    assert callers == 0
    assert answer["headers"]["host"] == f"api.test:{server.port}"
    assert answer["headers"]["authorization"] == SECRET


@anyio
@walls
async def test_the_sandbox_cannot_undo_it(behind: Behind, driver: OciDriver) -> None:
    async with behind(OPEN, driver=driver, transparent=lambda: driver.capabilities.transparent_proxy) as machine:
        output = await shell(
            machine,
            "ip route del local default 2>&1; nft flush ruleset 2>&1; unshare -rn true 2>&1; cat /etc/resolv.conf;"
            " echo nameserver 8.8.8.8 > /etc/resolv.conf",
        )
        assert "ermission denied" in output
        _, uptime = await machine.output(["python3", "-c", UDP], timeout=100)
    assert uptime == b"refused\n"


LOOK_UP = """
import socket, struct, sys
question = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 0) + b"\\x03web\\x04test\\x00" + struct.pack("!2H", 1, 1)
for server in ("127.0.0.1", "8.8.8.8", "192.0.2.53"):
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.settimeout(60)
    sock.connect((server, 53))
    sock.send(question)
    print(socket.inet_ntoa(sock.recv(512)[-4:]))
print(socket.gethostbyname("web.test"))
"""


@anyio
@walls
async def test_names_are_answered_over_udp_whichever_server_is_asked(behind: Behind, driver: OciDriver) -> None:
    async with behind(OPEN, driver=driver, transparent=lambda: driver.capabilities.transparent_proxy) as machine:
        found = await shell(machine, f"python3 -c '{LOOK_UP}'")
    addresses = [line.split()[0] for line in found.splitlines()]
    assert len(addresses) == 4, found
    assert len(set(addresses)) == 1
    assert IPv4Address(addresses[0]) in RANGE


@anyio
@walls
async def test_ipv6_is_refused_at_once(behind: Behind, driver: OciDriver) -> None:
    async with behind(OPEN, driver=driver, transparent=lambda: driver.capabilities.transparent_proxy) as machine:
        by_address = await shell(machine, f"{BARE} timeout 60 curl -sS 'http://[2001:db8::1]/' 2>&1; echo $?")
        by_name = await shell(machine, f"{BARE} timeout 60 curl -6 -sS http://web.test/ 2>&1; echo $?")
    assert by_address.splitlines()[-1] == "7", by_address
    assert by_name.splitlines()[-1] == "6", by_name


UDP = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.settimeout(60)
sock.connect(("8.8.8.8", 443))
try:
    sock.send(b"hello"); sock.recv(10)
except ConnectionRefusedError:
    print("refused")
"""


def ask(names: FakeDns, name: str, kind: str = "A") -> dns.message.Message:
    return dns.message.from_wire(names.answer(dns.message.make_query(name, kind).to_wire()))


def test_a_name_keeps_its_address_and_the_address_its_name() -> None:
    names = FakeDns()
    first, second = ask(names, "A.example."), ask(names, "b.example.")
    address = IPv4Address(first.answer[0][0].to_text())
    assert address in RANGE
    assert names.name(address) == "a.example"
    assert ask(names, "a.example.").answer[0][0] == first.answer[0][0]
    assert second.answer[0][0] != first.answer[0][0]


def test_other_kinds_of_records_are_empty_and_odd_names_do_not_exist() -> None:
    assert not ask(FakeDns(), "a.example.", "AAAA").answer
    assert ask(FakeDns(), "a.example.", "AAAA").rcode() == dns.rcode.NOERROR
    assert ask(FakeDns(), "1.2.3.4.").rcode() == dns.rcode.NXDOMAIN


def test_the_name_of_longest_ago_is_forgotten() -> None:
    names = FakeDns()
    first = names.address("first.example")
    for number in range(16_384):
        names.address(f"{number}.example")
    assert names.name(first) != "first.example"
    assert len({names.address(f"{number}.example") for number in range(16_384)}) == 16_384


@pytest.mark.parametrize("query", [b"", b"\0", bytes(12), b"\xff" * 40, bytes(11) + b"\x01" + b"\xc0\x0c"])
def test_nonsense_is_no_query(query: bytes) -> None:
    try:
        answer = FakeDns().answer(query)
    except BadQuery:
        return
    assert dns.message.from_wire(answer).rcode() == dns.rcode.FORMERR
