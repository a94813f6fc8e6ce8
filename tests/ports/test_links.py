from __future__ import annotations

import pytest

from cubicle.chat.links import Links
from cubicle.core.chat import Chat
from cubicle.core.keys import KeyRing
from cubicle.core.port_names import PortName
from cubicle.core.signing import PortRole
from cubicle.ports.links import PARAMETER, PortLinks
from cubicle.settings import Settings

SECRET = b"s" * 32
CHAT = Chat("room-1", "acme")
RING = KeyRing({"a-key-of-acme": "acme"})
NOW = 1_800_000_000.0


def links(base: str = "http://127.0.0.1:8081", ring: KeyRing = RING, **options: object) -> PortLinks:
    inner = Links(SECRET, base, ring, clock=lambda: NOW)
    return PortLinks(SECRET, inner, clock=lambda: NOW, **options)  # type: ignore[arg-type]


def test_without_a_domain_addresses_are_of_this_machine() -> None:
    ports = links()
    assert ports.origin(CHAT, 5173) == f"http://5173-{ports.id(CHAT)}.localhost:8081"
    assert ports.frame_source == "http://*.localhost:8081"
    assert ports.note == ""


def test_with_a_domain_they_have_its_scheme_and_port() -> None:
    ports = links("https://tools.example.org/cubicle", domain="preview.example.org")
    assert ports.origin(CHAT, 80) == f"https://80-{ports.id(CHAT)}.preview.example.org"
    other = links("https://tools.example.org:8443", domain="preview.example.org")
    assert other.origin(CHAT, 80).endswith(".preview.example.org:8443")
    assert ports.note == other.note == ""


def test_a_service_for_others_without_a_domain_says_what_is_missing() -> None:
    assert "PREVIEW_DOMAIN" in links("https://tools.example.org").note


def test_a_link_opens_its_port_and_the_template_every_port() -> None:
    ports = links()
    grant = ports.opened(ports.link(CHAT, 5173).partition(f"?{PARAMETER}=")[2])
    assert grant is not None
    assert (grant.chat, grant.port, grant.role) == (CHAT, 5173, PortRole.LINK)
    address, _, token = ports.template(CHAT).partition(f"?{PARAMETER}=")
    assert address == f"http://PORT-{ports.id(CHAT)}.localhost:8081/"
    every = ports.opened(token)
    assert every is not None
    assert every.port == 0


@pytest.mark.parametrize("hours", [0.01, 0.5, 1, 8, 24, 168, 720])
def test_a_link_lives_at_most_as_long_as_it_is_set(hours: float) -> None:
    ports = links(hours=hours)
    left = ports.seconds_left(ports.link(CHAT, 5173).partition(f"?{PARAMETER}=")[2])
    assert hours * 3600 * 6 / 7 - 1 <= left <= hours * 3600


def test_without_a_key_links_carry_none() -> None:
    assert links(ring=KeyRing({})).link(CHAT, 5173).endswith(".localhost:8081/")


def test_the_names_of_a_chat_are_found_among_those_that_there_are() -> None:
    ports, there = links(), [Chat("a"), CHAT]
    name = PortName(1, ports.id(CHAT))
    assert ports.find(name, lambda: [Chat("a")]) is None
    assert ports.find(name, lambda: there) == CHAT
    assert ports.find(PortName(1, "0" * 32), lambda: there) is None


def test_names_of_nothing_are_not_searched_for_all_the_time() -> None:
    ports, searches = links(), 0

    def chats() -> list[Chat]:
        nonlocal searches
        searches += 1
        return [Chat(f"room-{number}") for number in range(10_000)]

    for number in range(1000):
        assert ports.find(PortName(1, f"{number:032x}"), chats) is None
    assert searches < 10
    assert ports.find(PortName(1, ports.id(Chat("room-7"))), chats) == Chat("room-7")


@pytest.mark.parametrize(
    ("domain", "public"),
    [
        ("tools.example.org", "https://tools.example.org"),
        ("example.org", "https://tools.example.org"),
        ("https://preview.example.org", ""),
        ("preview.example.org:443", ""),
        ("preview_example.org", ""),
        ("*.example.org", ""),
        ("10.0.0.1", ""),
    ],
)
def test_a_domain_that_would_not_be_safe_stops_the_start(domain: str, public: str) -> None:
    with pytest.raises(ValueError, match="must"):
        Settings(_env_file=None, preview_domain=domain, public_base_url=public)  # type: ignore[call-arg]


def test_nobody_may_share_until_the_operator_says_who() -> None:
    assert Settings(_env_file=None).preview_public == ()  # type: ignore[call-arg]
    assert Settings(_env_file=None, preview_public="main, acme").preview_public == ("main", "acme")  # type: ignore[call-arg, arg-type]


def test_the_domains_of_ports() -> None:
    settings = Settings(_env_file=None, preview_domain="Preview.Example.Org")  # type: ignore[call-arg]
    assert settings.preview_domains == ("preview.example.org", "localhost")
    assert Settings(_env_file=None).preview_domains == ("localhost",)  # type: ignore[call-arg]
