from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core.port_names import BadHost, NoSuchPortName, PortName, is_domain, origin_form, port_of

ID = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32
DOMAINS = ("preview.example.org", "localhost")
OWN = ("cubicle.localhost", "tools.example.org")
PORT = PortName(5173, ID)
NAME = f"5173-{ID}.preview.example.org"

TABLE: list[tuple[list[str], str, PortName | type[Exception] | None]] = [
    # names of ports
    ([NAME], "/", PORT),
    ([f"{NAME}:443"], "/", PORT),
    ([f"{NAME}:8081"], "/a?b", PORT),
    ([f" {NAME}\t"], "/", PORT),
    ([NAME.upper()], "/", PORT),
    ([f"5173-{ID}.Preview.Example.ORG"], "/", PORT),
    ([f"5173-{ID}.localhost"], "/", PORT),
    ([f"5173-{ID}.localhost:8081"], "/", PORT),
    ([f"1-{ID}.localhost"], "/", PortName(1, ID)),
    ([f"65535-{ID}.localhost"], "/", PortName(65535, ID)),
    # the target in absolute form
    ([NAME], f"http://{NAME}/", PORT),
    ([NAME], f"HTTPS://{NAME.upper()}:443/x", PORT),
    ([], f"http://{NAME}/", PORT),
    ([NAME], f"http://5173-{OTHER}.preview.example.org/", BadHost),
    ([NAME], f"http://5174-{ID}.preview.example.org/", BadHost),
    ([NAME], "http://tools.example.org/health", BadHost),
    (["tools.example.org"], f"http://{NAME}/", BadHost),
    (["127.0.0.1:8081"], f"http://{NAME}/", BadHost),
    (["tools.example.org"], "http://tools.example.org/health", None),
    (["tools.example.org"], "http://x.preview.example.org/", NoSuchPortName),
    ([NAME], f"http://me@{NAME}/", BadHost),
    ([NAME], f"http://tools.example.org@{NAME}/", BadHost),
    ([NAME], "http:///", BadHost),
    # targets that are no path
    ([NAME], "*", BadHost),
    ([NAME], f"{NAME}:443", BadHost),
    ([NAME], "", BadHost),
    # more than one Host
    ([NAME, NAME], "/", BadHost),
    ([NAME, "tools.example.org"], "/", BadHost),
    (["tools.example.org", NAME], "/", BadHost),
    (["tools.example.org", "tools.example.org"], "/", BadHost),
    ([f"{NAME}, tools.example.org"], "/", BadHost),
    ([f"tools.example.org,{NAME}"], "/", BadHost),
    ([f"tools.example.org {NAME}"], "/", BadHost),
    # a dot at the end, empty labels, more labels
    ([f"{NAME}."], "/", NoSuchPortName),
    ([f"{NAME}.:443"], "/", NoSuchPortName),
    ([f"{NAME}.."], "/", NoSuchPortName),
    ([f"5173-{ID}..preview.example.org"], "/", NoSuchPortName),
    ([f"a.{NAME}"], "/", NoSuchPortName),
    ([f".{NAME}"], "/", NoSuchPortName),
    ([f"5173-{ID}.localhost."], "/", NoSuchPortName),
    # names that are nearly one
    ([f"05173-{ID}.localhost"], "/", NoSuchPortName),
    ([f"0-{ID}.localhost"], "/", NoSuchPortName),
    ([f"65536-{ID}.localhost"], "/", NoSuchPortName),
    ([f"-1-{ID}.localhost"], "/", NoSuchPortName),
    ([f"5173-{ID[:-1]}.localhost"], "/", NoSuchPortName),
    ([f"5173-{ID}0.localhost"], "/", NoSuchPortName),
    ([f"5173-{'g' * 32}.localhost"], "/", NoSuchPortName),
    ([f"5173_{ID}.localhost"], "/", NoSuchPortName),
    ([f"{ID}.localhost"], "/", NoSuchPortName),
    ([f"5173-{ID}-public.localhost"], "/", NoSuchPortName),
    (["api.localhost"], "/", NoSuchPortName),
    (["preview.example.org"], "/", NoSuchPortName),
    (["preview.example.org."], "/", NoSuchPortName),
    (["PREVIEW.example.org:443"], "/", NoSuchPortName),
    (["www.preview.example.org"], "/", NoSuchPortName),
    # other scripts and their encodings
    (["xn--5173-abc.preview.example.org"], "/", NoSuchPortName),
    ([f"xn--{ID}.localhost"], "/", NoSuchPortName),
    ([f"\uff15173-{ID}.localhost"], "/", BadHost),
    ([f"5173-{ID}.localhost\u3002"], "/", BadHost),
    ([f"5173-{ID}\uff0elocalhost"], "/", BadHost),
    ([f"5173-{ID}.loc\u0430lhost"], "/", BadHost),
    # characters that no name has
    ([f"5173-{ID}.localhost/"], "/", BadHost),
    ([f"5173-{ID}.localhost#"], "/", BadHost),
    ([f"5173-{ID}.localhost%2e"], "/", BadHost),
    ([f"user@5173-{ID}.localhost"], "/", BadHost),
    ([f"5173-{ID}.localhost:"], "/", BadHost),
    ([f"5173-{ID}.localhost:8081:80"], "/", BadHost),
    ([f"5173-{ID}.localhost:http"], "/", BadHost),
    ([f"5173-{ID}.localhost\x00"], "/", BadHost),
    ([f"[5173-{ID}.localhost]"], "/", BadHost),
    # the service's own names
    ([], "/", None),
    ([""], "/", None),
    (["localhost"], "/", None),
    (["LOCALHOST:8081"], "/", None),
    (["localhost."], "/", None),
    (["127.0.0.1:8081"], "/", None),
    (["[::1]:8081"], "/", None),
    (["tools.example.org"], "/", None),
    (["cubicle.localhost:8081"], "/", None),
    (["Cubicle.Localhost"], "/", None),
    (["example.org"], "/", None),
    ([f"5173-{ID}.example.org"], "/", None),
    ([f"5173-{ID}.preview.example.org.evil.example"], "/", None),
    ([f"5173-{ID}preview.example.org"], "/", None),
    (["notlocalhost"], "/", None),
    (["my_service:8081"], "/", None),
    (["host.docker.internal:8081"], "*", None),
]


@pytest.mark.parametrize(("hosts", "target", "meaning"), TABLE)
def test_what_a_host_means(hosts: list[str], target: str, meaning: PortName | type[Exception] | None) -> None:
    lines = [host.encode() for host in hosts]
    if isinstance(meaning, type):
        with pytest.raises(meaning):
            port_of(lines, target.encode(), DOMAINS, OWN)
    else:
        assert port_of(lines, target.encode(), DOMAINS, OWN) == meaning


@given(st.lists(st.binary(max_size=80), max_size=3), st.binary(max_size=80))
def test_no_host_breaks_it(hosts: list[bytes], target: bytes) -> None:
    try:
        found = port_of(hosts, target, DOMAINS)
    except (BadHost, NoSuchPortName):
        return
    assert found is None or 0 < found.port < 65536


@given(st.from_regex(r"[a-zA-Z0-9.:,@%_-]{0,20}", fullmatch=True))
def test_what_ends_with_a_preview_domain_is_never_the_service(prefix: str) -> None:
    try:
        found = port_of([f"{prefix}.preview.example.org".encode()], b"/", DOMAINS)
    except (BadHost, NoSuchPortName):
        return
    assert found is not None


@pytest.mark.parametrize(
    ("target", "form"),
    [
        (b"/a/b?c=%2f", b"/a/b?c=%2f"),
        (b"//evil.example/", b"//evil.example/"),
        (b"http://host/a?b", b"/a?b"),
        (b"http://host", b"/"),
        (b"http://host?x=1", b"/?x=1"),
    ],
)
def test_the_target_is_kept_byte_for_byte(target: bytes, form: bytes) -> None:
    assert origin_form(target) == form


@pytest.mark.parametrize("name", ["preview.example.org", "localhost", "p.internal", "xn--bcher-kva.example"])
def test_domains(name: str) -> None:
    assert is_domain(name)


@pytest.mark.parametrize(
    "name", ["", ".", "a..b", "Preview.example.org", "example.org.", "-a.org", "a_b.org", "10.0.0.1", "a" * 230, "a:1"]
)
def test_what_is_no_domain(name: str) -> None:
    assert not is_domain(name)
