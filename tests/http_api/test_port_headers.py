"""What of a visitor's request goes on to the program in the sandbox, and what of its answer comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cubicle.core.port_names import PortName
from cubicle.http_api.port_headers import (
    Lines,
    OwnRedirect,
    PortView,
    Surroundings,
    cookie,
    location,
    to_program,
    to_visitor,
    without_key,
)

NAME = PortName(5173, "0" * 32)
VIEW = PortView(NAME, f"{NAME.label}.localhost:8081", "http", "127.0.0.1")


def sent(*lines: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    found: Lines = to_program([(b"host", VIEW.host.encode()), *lines], VIEW)
    names = [name.lower() for name, _ in found]
    assert len(names) == len(set(names))
    return {name.lower(): value for name, value in found}


@pytest.mark.parametrize(
    "line",
    [
        (b"authorization", b"Bearer a-key-of-the-service"),
        (b"authorization", b"Bearer a.token.of-the-page"),
        (b"authorization", b"Basic YTpi"),
        (b"authorization", b"nothing that anybody knows"),
        (b"proxy-authorization", b"Basic YTpi"),
        (b"x-cubicle-key", b"a-token"),
        (b"cookie", b"cubicle-port=1"),
        (b"cookie", b"cubicle-port-frame=1"),
        (b"cookie", b"__Host-cubicle-port=1"),
        (b"cookie", b"__Host-cubicle-port-frame=1"),
        (b"cookie", b"cubicle-login=1"),
        (b"cookie", b"  cubicle-0123abcd = 1 ;;"),
        (b"cookie", b"cubicle-port"),
    ],
)
def test_no_credential_of_the_service_goes_on(line: tuple[bytes, bytes]) -> None:
    assert sent(line) == sent()


@pytest.mark.parametrize("name", [b"x_forwarded_for", b"x-forwarded_host", b"x_real_ip", b"proxy_authorization"])
def test_a_header_that_a_program_would_read_as_the_service_s_is_left_out(name: bytes) -> None:
    assert sent((name, b"192.0.2.1")) == sent()


def test_cookies_of_the_program_stay_in_their_order() -> None:
    lines = ((b"cookie", b"a=1; cubicle-login=2; b=3"), (b"cookie", b"mycubicle-port=4; cubicle-port=5"))
    assert sent(*lines)[b"cookie"] == b"a=1; b=3; mycubicle-port=4"


def test_the_key_of_a_link_is_in_no_header() -> None:
    own, foreign = VIEW.origin.encode(), b"http://elsewhere.example"
    for site, seen in ((own, b"http://localhost:5173"), (foreign, foreign)):
        assert sent((b"referer", site + b"/a?b=1&cubicle-key=2"))[b"referer"] == seen + b"/a?b=1"
        assert sent((b"referer", site + b"/a?cubicle-key=2"))[b"referer"] == seen + b"/a"


@pytest.mark.parametrize("target", [b"/", b"/?", b"/a?b", b"/a?b=1&&c", b"/a?x=cubicle-key=1", b"/a?cubicle-keys=1"])
def test_a_target_without_a_key_stays_as_it_is(target: bytes) -> None:
    assert without_key(target) == target


def test_every_key_is_taken_from_a_target() -> None:
    assert without_key(b"/a?cubicle-key=1&b=2&cubicle-key&cubicle-key=") == b"/a?b=2"


NAMES = [b"cubicle-port", b"__Host-cubicle-port", b"cubicle-login", b" cubicle-a ", b"=cubicle-port"]


@pytest.mark.parametrize("name", NAMES)
def test_a_program_sets_no_cookie_that_is_named_like_one_of_the_service(name: bytes) -> None:
    assert cookie(name + b"=1; Path=/", VIEW) is None


@pytest.mark.parametrize(
    "name",
    [
        *(b"X-Accel-Redirect", b"X-Accel-Buffering", b"x-accel-expires", b"X-Sendfile", b"X-Sendfile-Temporary"),
        *(b"X-LIGHTTPD-send-file", b"X-LIGHTTPD-send-tempfile", b"X-LiteSpeed-Location"),
        *(b"Clear-Site-Data", b"Alt-Svc", b"Strict-Transport-Security", b"X-Cubicle-Port", b"Connection", b"X-Hop"),
    ],
)
def test_a_program_gives_no_orders_to_proxies_and_other_names(name: bytes) -> None:
    lines = [(b"Connection", b"x-hop"), (name, b"/etc/passwd"), (b"X-Accelerated", b"1"), (b"Content-Type", b"a/b")]
    framed = (b"content-security-policy", b"frame-ancestors 'self'")
    assert to_visitor(lines, VIEW, 200) == [(b"x-accelerated", b"1"), (b"content-type", b"a/b"), framed]


OWN = replace(VIEW, around=Surroundings(frozenset({"tools.example.org"})))


@pytest.mark.parametrize(
    "host",
    [
        *(
            "tools.example.org",
            "TOOLS.example.org.",
            "tools%2eexample.org",
            "%74ools.example.org",
            "tools。example．org",
        ),
        *("ｔools.example｡org:443", "to\u00adols.example.org", "tooℓs.example.org", "tools%E3%80%82example.org"),
        *("\ue000.example.org", "a..ü"),
    ],
)
def test_no_spelling_of_the_service_s_own_name_is_led_to(host: str) -> None:
    for written in (f"https://{host}/x", f"//user@{host}"):
        with pytest.raises(OwnRedirect):
            location(written.encode(), OWN)


@pytest.mark.parametrize(
    "host", ["bücher.example", "elsewhere.example", "tools.example.org.evil.example", "%41.example"]
)
def test_redirects_to_others_stay_as_they_are(host: str) -> None:
    written = f"https://{host}/a%20b?c".encode()
    assert location(written, OWN) == written


@pytest.mark.parametrize("host", ["%6cocalhost", "ｌocalhost", "127。0。0。1", "%31%32%37.0.0.1"])
def test_every_spelling_of_this_machine_stays_in_the_chat(host: str) -> None:
    assert location(f"http://{host}:3000/x".encode(), OWN) == OWN.origin_of(3000).encode() + b"/x"


def test_an_address_that_no_browser_has_is_of_no_port_of_the_chat() -> None:
    odd = replace(VIEW, host=f"{NAME.label}.localhost:99999")
    assert odd.sibling_of("ftp://3000-evil.example") is None
    assert odd.sibling_of(f"http://3000-{NAME.id}.localhost:99999") is None
    assert VIEW.sibling_of(f"http://3000-{NAME.id}.localhost:8081") == 3000
