"""The policy of the egress proxy, row by row."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cubicle.core.network import NetworkMode
from cubicle.egress.blocked_networks import closed_range, faces, plain
from cubicle.egress.policy import (
    Action,
    BadRule,
    BadTarget,
    Policy,
    Request,
    Rule,
    Scheme,
    Target,
    foresee,
    host_name,
    judge,
    terminates,
)

PUBLIC = "93.184.216.34"


def rule(name: str = "r", *, cidr: str = "", ports: tuple[range, ...] = (), **more: object) -> Rule:
    networks = tuple(ip_network(text) for text in cidr.split())
    return Rule(name, networks=networks, ports=ports, **more)  # type: ignore[arg-type]


def ask(url: str, method: str = "GET") -> Request:
    """`host:port` is a tunnel, `http://host:port/path` a request that the proxy can read."""
    scheme, found, rest = url.partition("://")
    if not found:
        host, _, port = url.rpartition(":")
        return Request(Target.parse(host, int(port)))
    authority, slash, path = rest.partition("/")
    host, _, port = authority.rpartition(":")
    return Request(Target.parse(host, int(port)), Scheme(scheme), method, slash + path)


DENY = Action.DENY
EXAMPLE = rule("example", hosts=("example.com", "*.example.com"))
TABLE: list[tuple[str, NetworkMode, tuple[Rule, ...], Request, str, str | None]] = [
    # what it shows, mode, rules, request, address, the rule that allows (None: denied)
    ("open lets the public world through", NetworkMode.OPEN, (), ask("a.org:443"), PUBLIC, "mode open"),
    ("open keeps closed addresses closed", NetworkMode.OPEN, (), ask("a.org:443"), "10.0.0.1", None),
    ("none lets nothing through", NetworkMode.NONE, (), ask("a.org:443"), PUBLIC, None),
    ("none does not ask the rules", NetworkMode.NONE, (EXAMPLE,), ask("example.com:443"), PUBLIC, None),
    ("allowlist denies what no rule names", NetworkMode.ALLOWLIST, (EXAMPLE,), ask("a.org:443"), PUBLIC, None),
    ("a name", NetworkMode.ALLOWLIST, (EXAMPLE,), ask("example.com:443"), PUBLIC, "example"),
    ("a name in capitals", NetworkMode.ALLOWLIST, (EXAMPLE,), ask("EXAMPLE.com:443"), PUBLIC, "example"),
    ("a name with its last dot", NetworkMode.ALLOWLIST, (EXAMPLE,), ask("example.com.:443"), PUBLIC, "example"),
    ("a wildcard", NetworkMode.ALLOWLIST, (EXAMPLE,), ask("a.b.example.com:443"), PUBLIC, "example"),
    ("a wildcard is no suffix", NetworkMode.ALLOWLIST, (EXAMPLE,), ask("badexample.com:443"), PUBLIC, None),
    (
        "a wildcard is not the name itself",
        NetworkMode.ALLOWLIST,
        (rule(hosts=("*.a.org",)),),
        ask("a.org:443"),
        PUBLIC,
        None,
    ),
    ("a name is not its address", NetworkMode.ALLOWLIST, (EXAMPLE,), ask(f"{PUBLIC}:443"), PUBLIC, None),
    ("a name that is private", NetworkMode.ALLOWLIST, (EXAMPLE,), ask("example.com:443"), "192.168.1.1", None),
    (
        "a name and its network",
        NetworkMode.ALLOWLIST,
        (rule(hosts=("git.corp.example",), cidr="10.0.0.0/8"),),
        ask("git.corp.example:22"),
        "10.1.2.3",
        "r",
    ),
    (
        "a name outside its network",
        NetworkMode.ALLOWLIST,
        (rule(hosts=("git.corp.example",), cidr="10.0.0.0/8"),),
        ask("git.corp.example:22"),
        PUBLIC,
        None,
    ),
    (
        "one rule for the name, one for the network",
        NetworkMode.ALLOWLIST,
        (EXAMPLE, rule("net", cidr="10.0.0.0/8")),
        ask("example.com:443"),
        "10.1.2.3",
        "net",
    ),
    (
        "a network by address",
        NetworkMode.ALLOWLIST,
        (rule(cidr="10.0.0.0/8"),),
        ask("10.9.9.9:5432"),
        "10.9.9.9",
        "r",
    ),
    ("a network in open mode", NetworkMode.OPEN, (rule(cidr="10.1.0.0/16"),), ask("db.corp:5432"), "10.1.0.5", "r"),
    ("beside that network", NetworkMode.OPEN, (rule(cidr="10.1.0.0/16"),), ask("db.corp:5432"), "10.2.0.5", None),
    (
        "everything is no permission to reach the host",
        NetworkMode.OPEN,
        (rule(cidr="0.0.0.0/0 ::/0"),),
        ask("a.org:80"),
        "127.0.0.1",
        None,
    ),
    ("loopback by rule", NetworkMode.OPEN, (rule(cidr="127.0.0.0/8"),), ask("localhost:80"), "127.0.0.1", "r"),
    (
        "link-local does not hold the metadata",
        NetworkMode.OPEN,
        (rule(cidr="169.254.0.0/16"),),
        ask("169.254.169.254:80"),
        "169.254.169.254",
        None,
    ),
    (
        "the metadata by its own address",
        NetworkMode.OPEN,
        (rule(cidr="169.254.169.254/32"),),
        ask("169.254.169.254:80"),
        "169.254.169.254",
        "r",
    ),
    ("a port", NetworkMode.ALLOWLIST, (rule(ports=(range(443, 444),)),), ask("a.org:443"), PUBLIC, "r"),
    ("another port", NetworkMode.ALLOWLIST, (rule(ports=(range(443, 444),)),), ask("a.org:80"), PUBLIC, None),
    ("a range of ports", NetworkMode.ALLOWLIST, (rule(ports=(range(8000, 8101),)),), ask("a.org:8100"), PUBLIC, "r"),
    (
        "the first rule that fits decides: deny",
        NetworkMode.OPEN,
        (rule("no", action=DENY, hosts=("x.example.com",)), EXAMPLE),
        ask("x.example.com:80"),
        PUBLIC,
        None,
    ),
    (
        "the first rule that fits decides: allow",
        NetworkMode.OPEN,
        (EXAMPLE, rule("no", action=DENY, hosts=("x.example.com",))),
        ask("x.example.com:80"),
        PUBLIC,
        "example",
    ),
    ("a denied network", NetworkMode.OPEN, (rule(action=DENY, cidr="93.184.0.0/16"),), ask("a.org:80"), PUBLIC, None),
    (
        "a denied network behind NAT64",
        NetworkMode.OPEN,
        (rule(action=DENY, cidr="93.184.0.0/16"),),
        ask("a.org:80"),
        "64:ff9b::5db8:d822",
        None,
    ),
    ("a denied port", NetworkMode.OPEN, (rule(action=DENY, ports=(range(25, 26),)),), ask("a.org:25"), PUBLIC, None),
    ("a broad denial is fine", NetworkMode.OPEN, (rule(action=DENY, hosts=("*.org",)),), ask("a.org:80"), PUBLIC, None),
    (
        "a method",
        NetworkMode.ALLOWLIST,
        (rule(methods=frozenset({"GET"})),),
        ask("http://a.org:80/x"),
        PUBLIC,
        "r",
    ),
    (
        "another method",
        NetworkMode.ALLOWLIST,
        (rule(methods=frozenset({"GET"})),),
        ask("http://a.org:80/x", "POST"),
        PUBLIC,
        None,
    ),
    (
        "a tunnel where methods matter",
        NetworkMode.ALLOWLIST,
        (rule(methods=frozenset({"GET"})),),
        ask("a.org:80"),
        PUBLIC,
        None,
    ),
    (
        "a tunnel around a denied method",
        NetworkMode.OPEN,
        (rule(action=DENY, methods=frozenset({"POST"})),),
        ask("a.org:80"),
        PUBLIC,
        None,
    ),
    (
        "a denied method in small letters",
        NetworkMode.OPEN,
        (rule(action=DENY, methods=frozenset({"POST"})),),
        ask("http://a.org:80/", "post"),
        PUBLIC,
        None,
    ),
    ("a path", NetworkMode.ALLOWLIST, (rule(paths=("/api/*",)),), ask("http://a.org:80/api/v1?q=/.."), PUBLIC, "r"),
    ("another path", NetworkMode.ALLOWLIST, (rule(paths=("/api/*",)),), ask("http://a.org:80/apis"), PUBLIC, None),
    ("an exact path", NetworkMode.ALLOWLIST, (rule(paths=("/a",)),), ask("http://a.org:80/a"), PUBLIC, "r"),
    ("more than the exact path", NetworkMode.ALLOWLIST, (rule(paths=("/a",)),), ask("http://a.org:80/a/b"), PUBLIC, None),
    *(
        (f"crooked: {path}", NetworkMode.ALLOWLIST, (rule(paths=("/api/*",)),), ask(f"http://a.org:80{path}"), PUBLIC, None)
        for path in (
            "/api/../x",
            "/api/%2e%2e/x",
            "/api/..",
            "/api/./x",
            "/api//x",
            "/api/..%2fx",
            "/api/%5c..%5cx",
            "/api/..;/x",
            "/api/%252e%252e/x",
            "/api/%00",
            "/api/%ff",
        )
    ),
    (
        "a crooked path where a path is denied",
        NetworkMode.OPEN,
        (rule(action=DENY, paths=("/admin*",)),),
        ask("http://a.org:80/x/../admin"),
        PUBLIC,
        None,
    ),
    ("a scheme", NetworkMode.ALLOWLIST, (rule(scheme=Scheme.HTTPS),), ask("https://a.org:443/"), PUBLIC, "r"),
    ("another scheme", NetworkMode.ALLOWLIST, (rule(scheme=Scheme.HTTPS),), ask("http://a.org:443/"), PUBLIC, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "rules", "request_", "address", "by"), [r[1:] for r in TABLE], ids=[r[0] for r in TABLE]
)
def test_the_policy(
    mode: NetworkMode, rules: tuple[Rule, ...], request_: Request, address: str, by: str | None
) -> None:
    policy = Policy(mode, rules)
    verdict = judge(policy, request_, ip_address(address))
    assert (verdict.rule if verdict.allowed else None) == by
    assert verdict.rule
    assert verdict.allowed or verdict.reason
    if by is not None:
        assert foresee(policy, request_) is None, "what is allowed must be looked up"


CLOSED = [
    *("0.0.0.0", "10.255.255.255", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.1.1", "172.16.0.1"),
    *("172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255"),
    *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("fd00:ec2::254", "fd20:ce::254", "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
    *(
        "::ffff:169.254.169.254",
        "64:ff9b::a00:1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:808:808::1",
    ),
    *("2001::1", "2001:db8::1", "fc00::1", "fdff::1", "fe80::1", "fec0::1", "ff02::1", "4000::1", "100::1", "3fff::1"),
]


@pytest.mark.parametrize("text", CLOSED)
def test_a_closed_address_is_denied_in_every_mode(text: str) -> None:
    address = ip_address(text)
    assert closed_range(address)
    for mode in NetworkMode:
        verdict = judge(Policy(mode, (rule(hosts=("a.org",)),)), ask("a.org:80"), address)
        assert not verdict.allowed


@pytest.mark.parametrize(
    "text", ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::808:808"]
)
def test_a_public_address_is_open(text: str) -> None:
    assert closed_range(ip_address(text)) is None


def test_an_address_of_the_host_itself_is_closed_unless_it_is_named_alone() -> None:
    address = ip_address(PUBLIC)
    assert not judge(Policy(NetworkMode.OPEN), ask("a.org:80"), address, own=True).allowed
    assert not judge(
        Policy(NetworkMode.OPEN, (rule(cidr="93.184.216.0/24"),)), ask("a.org:80"), address, own=True
    ).allowed
    assert judge(Policy(NetworkMode.OPEN, (rule(cidr=f"{PUBLIC}/32"),)), ask("a.org:80"), address, own=True).allowed


def test_a_mapped_address_is_the_one_behind_it() -> None:
    assert plain(ip_address("::ffff:1.2.3.4")) == ip_address("1.2.3.4")
    assert faces(ip_address("64:ff9b::102:304"))[1] == ip_address("1.2.3.4")


FORESEEN = [
    # mode, rules, request, denied before any look-up
    (NetworkMode.NONE, (), "a.org:443", True),
    (NetworkMode.OPEN, (), "a.org:443", False),
    (NetworkMode.ALLOWLIST, (), "secret-data.evil.org:443", True),
    (NetworkMode.ALLOWLIST, (EXAMPLE,), "x.example.com:443", False),
    (NetworkMode.ALLOWLIST, (rule(cidr="10.0.0.0/8"),), "secret-data.evil.org:443", True),
    (NetworkMode.ALLOWLIST, (rule(cidr="10.0.0.0/8"),), "10.0.0.1:443", False),
    (NetworkMode.ALLOWLIST, (rule(ports=(range(443, 444),)),), "a.org:443", False),
    (NetworkMode.ALLOWLIST, (rule(action=DENY, cidr="8.0.0.0/8"),), "a.org:443", True),
    (NetworkMode.OPEN, (rule(action=DENY, cidr="8.0.0.0/8"),), "a.org:443", False),
    (NetworkMode.OPEN, (rule(action=DENY, hosts=("a.org",)),), "a.org:443", True),
]


@pytest.mark.parametrize(("mode", "rules", "url", "denied"), FORESEEN)
def test_a_name_that_nothing_allows_is_not_looked_up(
    mode: NetworkMode, rules: tuple[Rule, ...], url: str, denied: bool
) -> None:
    assert (foresee(Policy(mode, rules), ask(url)) is not None) == denied


@pytest.mark.parametrize(
    "host",
    [
        *("*", "*.com", "*.co.uk", "*.com.au", "*.*.com", "a.*.com", "a*.example.com", "", ".", "*."),
        *(
            "10.0.0.1",
            "1.2.3.4",
            "::1",
            "Example.com",
            "example.com.",
            "-a.com",
            "a b.com",
            "bücher.example",
            "http://a.org",
        ),
    ],
)
def test_a_host_that_cannot_be_meant_is_refused(host: str) -> None:
    with pytest.raises(BadRule):
        rule(hosts=(host,))


@pytest.mark.parametrize(
    "host", ["localhost", "example.com", "*.example.com", "*.a.co.uk", "xn--bcher-kva.example", "a_b.c.d"]
)
def test_a_host_that_can_be_meant(host: str) -> None:
    assert rule(hosts=(host,)).hosts == (host,)


@pytest.mark.parametrize("path", ["api", "/a*b", "*"])
def test_a_path_that_cannot_be_meant_is_refused(path: str) -> None:
    with pytest.raises(BadRule):
        rule(paths=(path,))


TOKEN = (("Authorization", "Bearer t"),)


@pytest.mark.parametrize(
    "more",
    [
        {"inject": TOKEN, "scheme": Scheme.HTTPS},
        {"inject": TOKEN, "hosts": ("a.org",)},
        {"inject": TOKEN, "hosts": ("a.org",), "scheme": Scheme.HTTPS, "action": DENY},
        {"inject": (("Host", "b"),), "hosts": ("a.org",), "scheme": Scheme.HTTPS},
        {"inject": (("X: y", "b"),), "hosts": ("a.org",), "scheme": Scheme.HTTPS},
        {"inject": (("X", "a\r\nb"),), "hosts": ("a.org",), "scheme": Scheme.HTTPS},
        {"inject": (("X", ""),), "hosts": ("a.org",), "scheme": Scheme.HTTPS},
    ],
)
def test_a_secret_needs_a_host_a_scheme_and_a_clean_header(more: dict[str, object]) -> None:
    with pytest.raises(BadRule):
        rule(**more)  # type: ignore[arg-type]


def test_a_secret_goes_only_where_its_rule_fits() -> None:
    inject = rule("token", hosts=("api.example.com",), scheme=Scheme.HTTPS, inject=TOKEN)
    policy = Policy(NetworkMode.OPEN, (inject,))
    address = ip_address(PUBLIC)
    assert judge(policy, ask("https://api.example.com:443/"), address).inject == TOKEN
    assert judge(policy, ask("http://api.example.com:443/"), address).inject == ()
    assert judge(policy, ask("https://example.com:443/"), address).inject == ()
    assert "Bearer" not in repr(policy)


def test_the_proxy_looks_into_tls_only_where_a_rule_sets_a_header() -> None:
    inject = rule("token", hosts=("api.example.com",), scheme=Scheme.HTTPS, inject=TOKEN)
    target = Target.parse("api.example.com", 443)
    assert terminates(Policy(NetworkMode.OPEN, (inject,)), target)
    assert not terminates(Policy(NetworkMode.NONE, (inject,)), target)
    assert not terminates(Policy(NetworkMode.OPEN, (rule("no", action=DENY), inject)), target)
    assert not terminates(Policy(NetworkMode.OPEN, (inject,)), Target.parse("example.com", 443))


@pytest.mark.parametrize(
    "text", ["2130706433", "127.1", "0x7f.1", "0x7f000001", "017700000001", "1.2.3.4.5", "fe80::1%eth0", "", "a..b"]
)
def test_an_address_in_disguise_is_no_target(text: str) -> None:
    with pytest.raises(BadTarget):
        Target.parse(text, 80)


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_has_its_bounds(port: int) -> None:
    with pytest.raises(BadTarget):
        Target.parse("a.org", port)


@settings(deadline=None)
@given(st.text(max_size=300))
def test_any_text_is_a_target_or_is_refused(text: str) -> None:
    try:
        target = Target.parse(text, 80)
    except BadTarget:
        return
    assert target.host.isascii()
    assert target.host == target.host.lower()
    if target.literal is None:
        assert host_name(target.host) == target.host


@settings(deadline=None)
@given(st.ip_addresses())
def test_no_address_is_open_without_being_global(address: object) -> None:
    shown = plain(ip_address(str(address)))
    if closed_range(shown) is None:
        assert shown.is_global or "64:ff9b::" in str(shown)
