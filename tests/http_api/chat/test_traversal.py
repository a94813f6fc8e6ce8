"""No spelling of a way out leads out, on any route."""

import pytest

from cubicle.core.chat import Chat
from cubicle.core.signing import Grant, Reach

WAYS = [
    b"../../../../etc/passwd",
    b"..%2f..%2f..%2f..%2fetc%2fpasswd",
    b"%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    b"%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    b"%252e%252e%252f%252e%252e%252fetc%252fpasswd",
    b"%25252e%25252e%25252fetc%25252fpasswd",
    b"..%5c..%5cetc%5cpasswd",
    b"..\\..\\etc\\passwd",
    b"%5c%5chost%5cshare",
    b"%2fetc%2fpasswd",
    b"//etc/passwd",
    b"./../x",
    b"a/../../x",
    b"a/..%2f..%2fx",
    b"x%00.txt",
    b"..%00/etc/passwd",
    b"%00",
    b"%c0%ae%c0%ae/%c0%ae%c0%ae/etc/passwd",
    b"%c0%af..%c0%afetc",
    b"%ef%bc%8e%ef%bc%8e/etc/passwd",
    b"%ef%bc%8e%ef%bc%8e%ef%bc%8fetc",
    b"%e2%80%a5/etc/passwd",
    b"%e2%80%a4%e2%80%a4/x",
    b"..%ef%bc%8fetc%ef%bc%8fpasswd",
    b"..%ef%bc%bcetc",
    b"..;/etc/passwd",
    b"..%0d%0aX-Evil:1/x",
    b"%2e",
    b"%2e%2e",
    b".",
    b"..",
    b"..%2f",
    b"a%2f",
    b"%2f",
    b"n" * 300,
    b"d/" * 3000 + b"x",
    b".cubicle-tmp-0011223344556677",
    b"%0a",
    b"%ff%fe",
]
CHATS = [b"..", b"%2e%2e", b".hidden", b"a%2fb", b"a%00b", b"%0a", b"a b", b"%ff", b"c" * 129, b"%e2%80%a5"]


@pytest.fixture(scope="module")
async def home(site):
    await site.client.post("/api/uploads/walk/inside.txt", content=b"inside")
    return site


def ask(method: bytes, path: bytes, body: bytes = b"") -> bytes:
    head = b"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    return head % (method, path, len(body)) + body


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", [b"POST", b"DELETE"])
async def test_uploads_refuse_it(home, method, way):
    status, answer = await home.raw(ask(method, b"/api/uploads/walk/" + way, b"evil" if method == b"POST" else b""))
    if b"..;" in way:  # an ordinary name to us
        assert status in (201, 204, 404), answer
        await home.raw(ask(b"DELETE", b"/api/uploads/walk/" + way))
    else:
        assert status == 400, answer
    assert b"root:" not in answer
    assert b"X-Evil" not in answer.split(b"\r\n\r\n")[0]


async def test_and_nothing_of_it_was_written(home):
    listed = await home.bash(Chat("walk"), "find /mnt/user-data/uploads /home/assistant -type f | sort")
    assert set(listed.split("\n")) <= {
        "",
        "/mnt/user-data/uploads/inside.txt",
        "/mnt/user-data/uploads/..;/etc/passwd",
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "door", [b"/files/walk/", b"/files/walk/uploads/", b"/files/walk/workspace/", b"raw", b"raw uploads"]
)
async def test_files_lead_nowhere(home, door, way):
    if door.startswith(b"raw"):
        folder = door.decode().partition(" ")[2]
        capability = home.links.capability(Grant(Chat("walk"), Reach.SCRIPTS, folder)).encode()
        door = b"/raw/%s/%s" % (capability, f"{folder}/".encode() if folder else b"")
    status, answer = await home.raw(ask(b"GET", door + way))
    assert status in (400, 404), answer
    assert b"root:" not in answer
    assert b"application/problem+json" in answer or b"Invalid HTTP request" in answer
    assert b"X-Evil" not in answer.split(b"\r\n\r\n")[0]


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        (b"GET", b"/files/%s/x"),
        (b"GET", b"/files/%s/archive"),
        (b"GET", b"/files/%s/"),
        (b"POST", b"/api/uploads/%s/x"),
        (b"GET", b"/api/uploads/%s"),
        (b"DELETE", b"/api/uploads/%s/x"),
        (b"GET", b"/system-prompt?chat_id=%s"),
    ],
)
async def test_no_chat_is_called_that(home, method, path, chat):
    status, answer = await home.raw(ask(method, path % chat))
    if (method, path % chat) == (b"GET", b"/api/uploads/a%2fb"):
        assert status == 405, answer  # to routes it is an upload's address, which has no GET
    elif chat != b"%0a" or b"?" not in path:  # a query that is blank names no chat
        assert status in (400, 404), answer
    assert b"root:" not in answer
    assert b"Traceback" not in answer


@pytest.mark.parametrize("chat", ["X-Chat-Id", "X-OpenWebUI-Chat-Id"])
async def test_no_header_names_such_a_chat_either(home, chat):
    for text in ("../x", ".x", "a/b", "a" * 129, "a b"):
        assert (await home.client.get("/system-prompt", headers={chat: text})).status_code == 400
