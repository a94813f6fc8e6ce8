import base64
import json
import logging
from urllib.parse import unquote

import anyio
import httpx
import pytest

from cubicle.prompt.settings_service import NOTHING, BadAnswer, SettingsService, read_answer

MANIFEST = "---\nname: mine\ndescription: My own.\n---\n"
ANSWER = {
    "skills": [{"name": "mine", "files": {"SKILL.md": MANIFEST, "a/b.bin": {"base64": "AAE=", "executable": True}}}],
    "tokens": [{"name": "forge", "host": "Forge.example", "value": "Bearer s3cret"}],
}


class Fake:
    """A settings service on the other side of a real httpx client."""

    def __init__(self):
        self.now = 1000.0
        self.requests = []
        self.answer = lambda request: httpx.Response(200, json=ANSWER, headers={"ETag": '"1"'})
        client = httpx.AsyncClient(transport=httpx.MockTransport(self._handle))
        self.service = SettingsService(client, "https://set.example/api/", "key", clock=lambda: self.now)

    async def _handle(self, request):
        self.requests.append(request)
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def fake():
    return Fake()


@pytest.mark.anyio
async def test_a_user_is_asked_for_once_and_then_remembered(fake):
    first = await fake.service.of("Ann+x@a.org", "main")
    assert await fake.service.of("ann+x@a.org", "main") is first
    (request,) = fake.requests
    assert request.url.raw_path == b"/api/users/Ann%2Bx%40a.org"
    assert request.headers["Authorization"] == "Bearer key"
    assert request.headers["X-Tenant"] == "main"
    (skill,) = first.skills
    assert [(f.path, f.executable, f.read()) for f in skill.files] == [
        ("SKILL.md", False, MANIFEST.encode()),
        ("a/b.bin", True, b"\0\1"),
    ]
    (token,) = first.tokens
    assert (token.name, token.host, token.header, token.value) == (
        "forge",
        "forge.example",
        "Authorization",
        "Bearer s3cret",
    )
    assert "s3cret" not in repr(first)


@pytest.mark.anyio
async def test_after_a_minute_it_is_asked_whether_something_changed(fake):
    first = await fake.service.of("a@b", "main")
    fake.now += 61
    fake.answer = lambda request: httpx.Response(304)
    assert await fake.service.of("a@b", "main") is first
    assert fake.requests[1].headers["If-None-Match"] == '"1"'
    fake.now += 61
    fake.answer = lambda request: httpx.Response(404)
    assert await fake.service.of("a@b", "main") == NOTHING


@pytest.mark.parametrize("tag", [b'"v\xe91"', '"ключ"'.encode(), b'"a\tb"'])
@pytest.mark.anyio
async def test_a_tag_that_cannot_be_sent_back_is_passed_over(fake, tag):
    fake.answer = lambda request: httpx.Response(200, json=ANSWER, headers={b"ETag": tag})
    first = await fake.service.of("a@b", "main")
    fake.now += 61
    assert await fake.service.of("a@b", "main") == first
    assert len(fake.requests) == 2
    assert "If-None-Match" not in fake.requests[1].headers


@pytest.mark.anyio
async def test_a_request_that_cannot_be_made_is_a_failure_like_any_other(fake, caplog):
    service = SettingsService(httpx.AsyncClient(), "https://set.example", "ключ")
    with caplog.at_level(logging.WARNING):
        assert await service.of("a@b", "main") == NOTHING
    assert "settings service" in caplog.text
    assert "ключ" not in caplog.text


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.Response(500),
        httpx.Response(302, headers={"Location": "http://elsewhere"}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, json={"skills": 5}),
    ],
)
@pytest.mark.anyio
async def test_when_it_is_down_the_last_good_answer_serves_for_a_day(fake, failure, caplog):
    first = await fake.service.of("a@b", "main")
    fake.answer = lambda request: failure
    fake.now += 61
    with caplog.at_level(logging.WARNING):
        assert await fake.service.of("a@b", "main") is first
        assert await fake.service.of("a@b", "main") is first
    assert len(fake.requests) == 2, "a failure is not asked again at once"
    assert "settings service" in caplog.text
    assert "s3cret" not in caplog.text
    fake.now += 24 * 3600
    assert await fake.service.of("a@b", "main") == NOTHING


@pytest.mark.anyio
async def test_a_service_that_never_answered_gives_nothing(fake):
    fake.answer = lambda request: httpx.ConnectError("refused")
    assert await fake.service.of("a@b", "main") == NOTHING


@pytest.mark.anyio
async def test_a_service_that_hangs_holds_a_caller_three_seconds_at_most(fake, monkeypatch):
    monkeypatch.setattr("cubicle.prompt.settings_service.WAIT_SECONDS", 0.05)

    async def hang(request):
        await anyio.sleep_forever()

    client = httpx.AsyncClient(transport=httpx.MockTransport(hang))
    with anyio.fail_after(60):
        assert await SettingsService(client, "http://s").of("a@b", "main") == NOTHING


@pytest.mark.anyio
async def test_callers_of_one_user_wait_for_one_request(fake):
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(fake.service.of, "a@b", "main")
    assert len(fake.requests) == 1


@pytest.mark.parametrize("name", [".", "..", " .. "])
@pytest.mark.anyio
async def test_a_user_whose_name_is_a_way_to_elsewhere_is_nobody(fake, name):
    assert await fake.service.of(name, "main") == NOTHING
    assert fake.requests == []


@pytest.mark.parametrize("name", ["../x", "...", "a/../../b", "%2e%2e", "?x", "#x", "a@b/.."])
@pytest.mark.anyio
async def test_any_other_name_is_one_segment_under_users(fake, name):
    await fake.service.of(name, "main")
    (request,) = fake.requests
    _, base, users, asked = request.url.raw_path.decode().split("/")
    assert (base, users, unquote(asked)) == ("api", "users", name)


@pytest.mark.anyio
async def test_users_of_two_tenants_are_two_users(fake):
    await fake.service.of("a@b", "main")
    await fake.service.of("a@b", "acme")
    assert [r.headers["X-Tenant"] for r in fake.requests] == ["main", "acme"]


@pytest.mark.parametrize(
    "files",
    [
        {"SKILL.md": MANIFEST, "../up": "x"},
        {"SKILL.md": MANIFEST, "/etc/passwd": "x"},
        {"SKILL.md": MANIFEST, "a//b": "x"},
        {"SKILL.md": MANIFEST, "a/./b": "x"},
        {"SKILL.md": MANIFEST, "a\nb": "x"},
        {"SKILL.md": MANIFEST, "a\0b": "x"},
        {"SKILL.md": MANIFEST, "n" * 256: "x"},
        {"SKILL.md": MANIFEST, "a": "x", "a/b": "y"},
        {"SKILL.md": MANIFEST, "a/b/c/d": "y", "a/b": "x"},
        {"SKILL.md": MANIFEST, "SKILL.md/a": "x"},
        {"SKILL.md": MANIFEST, "a": {"base64": "*"}},
        {"SKILL.md": MANIFEST, "a": 5},
        {"a": "x"},
        {},
        None,
        {"SKILL.md": MANIFEST, "big": {"base64": base64.b64encode(b"x" * (8 * 1024 * 1024 + 1)).decode()}},
    ],
)
def test_a_skill_with_a_bad_file_is_left_out_and_the_rest_stay(files):
    body = {
        "skills": [{"name": "mine", "files": files}, ANSWER["skills"][0], "text"],  # type: ignore[index]
        "tokens": [{"name": "x"}],
    }
    settings = read_answer(json.dumps(body).encode())
    assert [s.name for s in settings.skills] == ["mine"]
    assert [f.path for f in settings.skills[0].files] == ["SKILL.md", "a/b.bin"]
    assert settings.tokens == ()


def test_a_token_with_a_line_break_is_left_out():
    body = {"tokens": [{"name": "x", "host": "h", "value": "a\r\nX-Evil: 1"}]}
    assert read_answer(json.dumps(body).encode()) == NOTHING


def test_an_answer_nested_without_end_is_a_bad_answer():
    with pytest.raises(BadAnswer):
        read_answer(b"[" * 200_000)
