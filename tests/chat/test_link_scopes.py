"""Links that open a part of a chat, and the keys of cards in other sites' pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from cubicle.chat.authentication import LOGIN_COOKIE, Authentication, Refused, Shown, Who
from cubicle.chat.key_attempts import KeyAttempts
from cubicle.chat.link_store import LinkStore
from cubicle.chat.links import CARD_SECONDS, Links
from cubicle.core.caller import Headers
from cubicle.core.chat import Chat
from cubicle.core.identity import Identity, LinkAccess
from cubicle.core.keys import KeyRing
from cubicle.core.link_scope import NOTHING, BadScope, LinkScope, Opens
from cubicle.core.signing import LinkGrant, Mark, SignIn

CHAT, NOW = Chat("c"), 1_800_000_000
RING = KeyRing({"a key": "main", "acme-key": "acme"})
REPLAY, FILE = LinkScope(Opens.REPLAY), LinkScope(Opens.FILE, "outputs/ü a.txt")


def links_in(folder: Path, now: float = NOW) -> Links:
    store = LinkStore(folder / "links", clock=lambda: now)
    store.open()
    return Links(b"s" * 32, "https://box.example/p", RING, store=store, clock=lambda: now)


def admitted(links: Links, key: str = "", cookies: str = "", **headers: str) -> Identity:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    sent += [(b"cookie", cookies.encode())] if cookies else []
    shown = Shown(Headers(sent), "127.0.0.1", f"key={key}".encode() if key else b"", "c")
    return Authentication(KeyAttempts(RING, 10), links).authenticate(shown, Who.CHAT)


def signed_in(links: Links) -> str:
    key = RING.opens("a key")
    assert key is not None
    return f"{LOGIN_COOKIE}={links.sign_in(SignIn(key.tenant, key.role, key.id))}"


@pytest.mark.parametrize(
    ("opens", "path"),
    [("port", ""), ("file", ""), ("chat", "a"), ("replay", "a"), ("file", "../x"), ("file", "/etc"), ("file", "a/"),
     ("file", "a\0"), ("file", "x" * 5000)],
)  # fmt: skip
def test_what_no_link_can_open_is_refused(opens: str, path: str) -> None:
    with pytest.raises(BadScope):
        LinkScope.of(opens, path)


def test_a_link_to_a_part_says_so_after_a_restart_and_leads_to_its_page(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    _, replay = links.made(CHAT, LinkAccess.VIEW, 1, "for Ann", REPLAY)
    _, file = links.made(CHAT, LinkAccess.VIEW, 1, "", FILE)
    again = links_in(tmp_path)
    assert admitted(again, replay).scope == REPLAY
    assert admitted(again, file).scope == FILE
    assert links.page(CHAT, replay, REPLAY) == f"https://box.example/p/replay/c/?key={replay}"
    assert links.page(CHAT, file, FILE) == f"https://box.example/p/preview/c/outputs/%C3%BC%20a.txt?key={file}"


def test_a_link_of_before_opens_the_whole_chat(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    made, key = links.made(CHAT, LinkAccess.VIEW, 1)
    path = tmp_path / "links" / f"{CHAT.digest}.json"
    path.write_text(
        path.read_text().replace(',"opens":"chat","path":""', "").replace(', "opens": "chat", "path": ""', "")
    )
    again = links_in(tmp_path)
    assert again.store.of(CHAT).links == (made,)
    assert admitted(again, key).scope.is_whole


def test_a_link_to_a_part_is_kept_in_no_cookie(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    _, part = links.made(CHAT, LinkAccess.VIEW, 1, "", REPLAY)
    _, whole = links.made(CHAT, LinkAccess.VIEW, 1)
    seen = admitted(links, part)
    assert (seen.anew, seen.stays, seen.access) == (False, True, LinkAccess.VIEW)
    assert admitted(links, whole).anew
    name = f"cubicle-{CHAT.digest[:12]}"
    assert not admitted(links, part, f"{name}=x").scope.is_whole


def test_who_may_more_is_not_made_less_by_a_link_to_a_part(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    _, part = links.made(CHAT, LinkAccess.VIEW, 1, "", REPLAY)
    seen = admitted(links, part, signed_in(links))
    assert (seen.signed_in, seen.scope.is_whole, seen.access) == (True, True, LinkAccess.CONTROL)


def test_a_revoked_link_to_a_part_opens_nothing(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    made, key = links.made(CHAT, LinkAccess.VIEW, 1, "", FILE)
    grant = links.opened("c", key)
    assert grant is not None
    assert links.store.revoke(CHAT, made.id)
    assert links.scope(grant) == NOTHING  # revoked between two looks
    with pytest.raises(Refused):
        admitted(links, key)


def test_the_key_of_a_card_ends_soon_is_bound_to_its_chat_and_only_looks(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    key, expires = links.card_key(CHAT)
    assert NOW < expires <= NOW + CARD_SECONDS
    assert links.opened("c", key) == LinkGrant(CHAT, LinkAccess.VIEW, Mark(), card=True)
    assert links.opened("d", key) is None
    assert links_in(tmp_path, NOW + CARD_SECONDS).opened("c", key) is None
    assert links.opened("c", key.replace(".k", ".c")) is None
    links.store.revoke_all(CHAT)
    assert links.opened("c", key) is None
    assert links.opened("c", links.card_key(CHAT)[0]) is not None


def test_a_card_does_not_use_what_the_person_may(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    key, _ = links.card_key(CHAT)
    framed = admitted(links, key, signed_in(links), sec_fetch_dest="iframe")
    assert (framed.card, framed.access, framed.signed_in, framed.anew) == (True, LinkAccess.VIEW, False, False)
    asked = admitted(links, key, signed_in(links))
    assert (asked.card, asked.access) == (True, LinkAccess.VIEW)


def test_a_card_opened_in_a_tab_is_a_link_to_look(tmp_path: Path) -> None:
    links = links_in(tmp_path)
    key, _ = links.card_key(CHAT)
    assert admitted(links, key, signed_in(links), sec_fetch_dest="document").access is LinkAccess.CONTROL
    alone = admitted(links, key, sec_fetch_dest="document")
    assert (alone.access, alone.anew) == (LinkAccess.VIEW, True)


def test_without_an_api_key_a_card_needs_no_key() -> None:
    assert Links(b"s" * 32, "http://127.0.0.1:8081", KeyRing({})).card_key(CHAT)[0] == ""
