import pytest
from hypothesis import given
from hypothesis import strategies as st

from cubicle.core import signing
from cubicle.core.chat import Chat
from cubicle.core.identity import LinkAccess, Role

SECRET = signing.effective_secret(b"s" * 32, "api-key")
CHAT = Chat("room-1", "acme")
GRANT = signing.LinkGrant(CHAT)
NOW = 1_800_000_000


def of_all(_tenant):
    return SECRET


def test_a_key_opens_its_own_chat_until_it_expires():
    expires = signing.expiry(NOW, 30)
    key = signing.sign(SECRET, GRANT, expires)
    assert signing.opened(of_all, "room-1", key, NOW) == GRANT
    assert signing.opened(of_all, "room-1", key, expires - 1) == GRANT
    assert signing.opened(of_all, "room-1", key, expires) is None


def test_a_key_opens_no_other_chat_tenant_or_service():
    key = signing.sign(SECRET, GRANT, NOW + 60)
    other_tenant = signing.sign(SECRET, signing.LinkGrant(Chat("room-1", "other")), NOW + 60)
    assert signing.opened(of_all, "room-2", key, NOW) is None
    assert signing.opened(of_all, "Room-1", key, NOW) is None
    assert signing.opened(of_all, "room-1", other_tenant, NOW) == signing.LinkGrant(Chat("room-1", "other"))
    forged = ".".join((key.split(".")[0], other_tenant.split(".")[1], *key.split(".")[2:]))
    assert signing.opened(of_all, "room-1", forged, NOW) is None
    assert signing.opened(lambda _tenant: signing.effective_secret(b"s" * 32, "new-key"), "room-1", key, NOW) is None
    assert signing.opened(lambda _tenant: signing.effective_secret(b"t" * 32, "api-key"), "room-1", key, NOW) is None
    assert signing.opened(lambda _tenant: None, "room-1", key, NOW) is None


def test_a_later_expiry_written_into_a_key_does_not_hold():
    expires, rest = signing.sign(SECRET, GRANT, NOW + 60).split(".", 1)
    assert signing.opened(of_all, "room-1", f"{int(expires) + 1}.{rest}", NOW) is None


@pytest.mark.parametrize("access", LinkAccess)
@pytest.mark.parametrize(
    "mark", [signing.Mark(), signing.Mark(NOW), signing.Mark(0, "0" * 16), signing.Mark(7, "a" * 16)]
)
def test_a_key_says_what_it_allows_and_by_what_it_is_revoked_and_nobody_changes_either(access, mark):
    grant = signing.LinkGrant(CHAT, access, mark)
    key = signing.sign(SECRET, grant, NOW + 60)
    assert signing.opened(of_all, "room-1", key, NOW) == grant
    assert signing.mark_of(key) == mark
    expires, tenant, kind, mac = key.split(".")
    for other in ("v", "c", "ve7", "ce7", f"v_{'0' * 16}", "v0", "x", ""):
        forged = signing.opened(of_all, "room-1", f"{expires}.{tenant}.{other}.{mac}", NOW)
        assert forged is None or other == kind


SIGN_INS = [signing.SignIn("acme", key_id="abcd"), signing.SignIn("main", Role.OPERATOR, "ef01", "a@b.example")]


@pytest.mark.parametrize("who", SIGN_INS)
def test_a_sign_in_says_who_it_is_until_it_ends(who):
    cookie = signing.sign_in(SECRET, who, NOW + 60)
    assert signing.signed_in(of_all, cookie, NOW) == who
    assert signing.signed_in(of_all, cookie, NOW + 60) is None
    assert signing.opened_one_time(of_all, cookie, NOW) is None
    swapped = cookie.replace(".u.", ".o.") if ".u." in cookie else cookie.replace(".o.", ".u.")
    assert signing.signed_in(of_all, swapped, NOW) is None


@pytest.mark.parametrize("who", SIGN_INS)
def test_a_one_time_token_has_an_id_that_nobody_changes(who):
    token = signing.one_time(SECRET, who, "a" * 32, NOW + 60)
    assert signing.opened_one_time(of_all, token, NOW) == (who, "a" * 32)
    assert signing.opened_one_time(of_all, token, NOW + 60) is None
    assert signing.opened_one_time(of_all, token[:-1] + "b", NOW) is None
    assert signing.signed_in(of_all, token.partition("~")[0], NOW) is None


def test_a_capability_holds_its_chat_and_is_no_key():
    grant = signing.Grant(CHAT, signing.Reach.PAGE)
    text = signing.capability(SECRET, grant, NOW + 60)
    assert signing.opened_capability(of_all, text, "a/b", NOW) == grant
    assert signing.opened_capability(of_all, text, "a/b", NOW + 61) is None
    assert signing.opened(of_all, "room-1", text, NOW) is None
    expires, tenant, _, _, mac = text.split(".")
    assert signing.opened(of_all, "room-1", f"{expires}.{tenant}.v.{mac}", NOW) is None
    assert "/" not in text


FOLDERS = ["", "outputs", "outputs/site", "outputs/site/a b;,", "workspace/\udcff", "uploads/" + "x" * 3000]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("reach", signing.Reach)
def test_a_capability_opens_what_lies_below_its_folder_and_nothing_else(folder, reach):
    grant = signing.Grant(CHAT, reach, folder)
    text = signing.capability(SECRET, grant, NOW + 60)
    below = f"{folder}/" if folder else ""
    for path in (f"{below}x", f"{below}x/y/z"):
        assert signing.opened_capability(of_all, text, path, NOW) == grant
    if not folder:
        return
    for path in (
        folder,
        f"{folder}2/x",
        f"{folder}%2fx",
        f"x/{folder}/x",
        f"{folder.upper()}/x",
        "x",
        "outputs/sit/e/x" if "/" in folder else "output/s/x",
    ):
        assert signing.opened_capability(of_all, text, path, NOW) is None


def test_neither_the_reach_nor_the_depth_of_a_capability_can_be_changed():
    text = signing.capability(SECRET, signing.Grant(CHAT, signing.Reach.PAGE, "outputs/site"), NOW + 60)
    expires, tenant, chat, kind, mac = text.split(".")
    assert kind == "h2"
    for other in ("s2", "p2", "h1", "h0", "h3", "h02", "h", "h-1", "h99999", "h\u0662", ""):
        changed = ".".join((expires, tenant, chat, other, mac))
        found = signing.opened_capability(of_all, changed, "outputs/site/x/y", NOW)
        assert found is None or (other, found.folder) == ("h02", "outputs/site")


def test_links_made_on_one_day_are_alike_and_live_at_least_the_days_promised():
    morning = NOW // signing.DAY * signing.DAY
    assert signing.expiry(morning, 30) == signing.expiry(morning + signing.DAY - 1, 30)
    assert signing.expiry(morning + signing.DAY - 1, 30) >= morning + signing.DAY - 1 + 30 * signing.DAY


@given(st.text(max_size=300))
def test_no_text_opens_anything_by_chance_and_none_breaks_the_check(text):
    assert signing.opened(of_all, "room-1", text, NOW) is None
    assert signing.opened_capability(of_all, text, "a/b", NOW) is None


@given(st.integers(0, 3), st.integers(0, 200), st.characters())
def test_a_changed_key_does_not_open(part, index, character):
    parts = signing.sign(SECRET, GRANT, NOW + 60).split(".")
    at = index % len(parts[part])
    changed = parts[part][:at] + character + parts[part][at + 1 :]
    if changed != parts[part]:
        parts[part] = changed
        assert signing.opened(of_all, "room-1", ".".join(parts), NOW) is None


PORTS = [
    signing.PortGrant(CHAT, 5173, signing.PortRole.LINK),
    signing.PortGrant(CHAT, 0, signing.PortRole.LINK),
    signing.PortGrant(CHAT, 5173, signing.PortRole.VISIT),
    signing.PortGrant(CHAT, 8000, signing.PortRole.SHARE, "0123456789abcdef"),
    signing.PortGrant(CHAT, 8000, signing.PortRole.GUEST, "0123456789abcdef"),
]


@pytest.mark.parametrize("grant", PORTS)
def test_a_token_for_ports_opens_what_it_says_until_it_expires(grant):
    token = signing.port_token(SECRET, grant, NOW + 60)
    assert signing.opened_port(of_all, token, NOW + 59) == grant
    assert signing.opened_port(of_all, token, NOW + 60) is None
    assert signing.opened_port(lambda _tenant: None, token, NOW) is None


@pytest.mark.parametrize("grant", PORTS)
def test_no_part_of_a_token_for_ports_can_be_changed(grant):
    parts = signing.port_token(SECRET, grant, NOW + 60).split(".")
    other = signing.port_token(SECRET, signing.PortGrant(Chat("room-2", "rival"), 1, signing.PortRole.LINK), NOW + 99)
    for place, value in enumerate(other.split(".")):
        forged = [*parts[:place], value, *parts[place + 1 :]]
        assert signing.opened_port(of_all, ".".join(forged), NOW) is None
    for kind in ("l0", "l5174", "v5173x", "l05173", "l65536", "g8000", "s8000-0123456789abcdee", "l-1", ""):
        assert kind == parts[3] or signing.opened_port(of_all, ".".join([*parts[:3], kind, parts[4]]), NOW) is None


def test_a_token_for_ports_is_no_key_and_no_capability_and_no_other_passes_for_it():
    token = signing.port_token(SECRET, PORTS[1], NOW + 60)
    assert signing.opened(of_all, "room-1", token, NOW) is None
    assert signing.opened_capability(of_all, token, "a", NOW) is None
    assert signing.signed_in(of_all, token, NOW) is None
    grant = signing.Grant(CHAT, signing.Reach.SCRIPTS)
    assert signing.opened_port(of_all, signing.capability(SECRET, grant, NOW + 60), NOW) is None
    assert signing.opened_port(of_all, signing.sign(SECRET, GRANT, NOW + 60), NOW) is None


@given(st.text(max_size=60))
def test_no_token_for_ports_breaks_the_reader(text):
    assert signing.opened_port(of_all, text, NOW) is None


def test_the_id_of_a_chat_in_names_is_its_own_and_needs_the_secret():
    ids = {signing.port_id(secret, chat) for secret in (b"a" * 32, b"b" * 32) for chat in (CHAT, Chat("room-1"))}
    assert len(ids) == 4
    assert all(len(found) == 32 and CHAT.digest != found for found in ids)
