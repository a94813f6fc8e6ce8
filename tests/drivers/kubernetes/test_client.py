"""The client against an API server that is busy, forgets or talks nonsense."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from cubicle.drivers.common.guest_tcp import GuestKeys
from cubicle.drivers.kubernetes.client import ApiError, Follower, KubernetesClient
from cubicle.drivers.kubernetes.cluster import Cluster
from cubicle.drivers.kubernetes.pods import Pods
from cubicle.tasks import start_task

Answer = Callable[[web.Request], web.StreamResponse]


@asynccontextmanager
async def server(*answers: Answer) -> AsyncIterator[KubernetesClient]:
    """Gives each answer once, in turn, and the last again and again."""
    left = list(answers)

    async def handle(request: web.Request) -> web.StreamResponse:
        return (left.pop(0) if len(left) > 1 else left[0])(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = KubernetesClient(Cluster(str(site.name), None, "test", "secret"))
    try:
        yield client
    finally:
        await client.close()
        await runner.cleanup()


def status(code: int, message: str = "no") -> Answer:
    return lambda request: web.json_response({"message": message}, status=code)


def text(said: str) -> Answer:
    return lambda request: web.Response(text=said)


def body(**fields: object) -> Answer:
    return lambda request: web.json_response(fields)


def pod(name: str, version: int) -> dict[str, object]:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


def listed(version: int, *names: str) -> Answer:
    return body(items=[pod(name, version) for name in names], metadata={"resourceVersion": str(version)})


def events(*told: tuple[str, dict[str, object]]) -> Answer:
    lines = [json.dumps({"type": kind, "object": found}) + "\n" for kind, found in told]
    return text("".join(lines))


async def test_a_busy_server_is_asked_again_and_a_change_is_not_sent_twice() -> None:
    async with server(status(503), status(429), body(**pod("a", 1))) as client:
        assert await client.get("pods", "a") == pod("a", 1)
    async with server(status(503), body(**pod("a", 1))) as client:
        with pytest.raises(ApiError) as refused:
            await client.create("pods", {"metadata": {"name": "a"}})
        assert refused.value.status == 503


async def test_a_change_that_the_server_did_not_look_at_is_sent_again_and_not_for_ever() -> None:
    async with server(status(429), status(429), body(**pod("a", 1))) as client:
        assert await client.create("pods", {"metadata": {"name": "a"}}) == pod("a", 1)
    asked = []

    def busy(request: web.Request) -> web.Response:
        asked.append(time.monotonic())
        return web.json_response({"message": "later"}, status=429, headers={"Retry-After": "1"})

    async with server(busy) as client:
        with pytest.raises(ApiError, match="later"):
            await client.patch("leases", "a", {})
    assert len(asked) == 3
    assert asked[1] - asked[0] >= 1  # as long as it wants


async def test_an_object_that_others_kept_out_of_a_quota_is_made_all_the_same() -> None:
    """Of pods that are made at once under a ResourceQuota some are refused with 409, which is no name that is taken."""

    def contended(request: web.Request) -> web.Response:
        told = 'Operation cannot be fulfilled on resourcequotas "cubicle": the object has been modified'
        return web.json_response({"message": told, "reason": "Conflict"}, status=409)

    def taken(request: web.Request) -> web.Response:
        return web.json_response({"message": 'pods "a" already exists', "reason": "AlreadyExists"}, status=409)

    async with server(contended, contended, body(**pod("a", 1)), taken, contended) as client:
        assert await client.create("pods", {"metadata": {"name": "a"}}) == pod("a", 1)
        assert await client.create("pods", {"metadata": {"name": "a"}}) is None
        with pytest.raises(ApiError, match="resourcequotas"):
            await client.create("pods", {"metadata": {"name": "a"}})
        assert await client.patch("pods", "a", {}) is None


async def test_what_is_not_there_or_there_already_is_told_apart_from_errors() -> None:
    async with server(status(404), status(409), status(409), status(403)) as client:
        assert await client.get("pods", "a") is None
        assert await client.create("pods", {"metadata": {"name": "a"}}) is None
        assert await client.patch("pods", "a", {}) is None
        with pytest.raises(ApiError, match="refused: no"):
            await client.patch("pods", "a", {})


_ODD = ['{"kind": "Pod"}', '{"metadata": []}', '{"metadata": {"name": "a"}}', "[" * 100_000]


@pytest.mark.parametrize("said", ["", "[]", "null", "{", "\xff\0", "<html>", *_ODD])
async def test_nonsense_is_an_error_of_the_server(said: str) -> None:
    async with server(text(said)) as client:
        with pytest.raises(ApiError):
            await client.get("pods", "a")
        with pytest.raises(ApiError):
            await client.patch("pods", "a", {})


@pytest.mark.parametrize(
    "page", [{"items": [1]}, {"items": 5, "metadata": {}}, {"items": [{}], "metadata": {}}, {"metadata": "x"}, {}]
)
async def test_a_list_that_makes_no_sense_is_an_error(page: dict[str, object]) -> None:
    async with server(body(**page)) as client:
        with pytest.raises(ApiError):
            await client.list("pods", "x=y")


@pytest.mark.parametrize("odd", [{"status": [1]}, {"spec": 5}, {"status": {"containerStatuses": [5]}}, {"labels": 1}])
async def test_a_pod_that_makes_no_sense_is_an_error(odd: dict[str, object]) -> None:
    told = pod("a", 1)
    assert isinstance(told["metadata"], dict)
    told["metadata"] |= {"labels": odd.pop("labels", {})}
    async with server(body(**{**told, **odd})) as client:
        with pytest.raises(ApiError, match="makes no sense"):
            await Pods(client, GuestKeys(())).get("a")


def endless(code: int = 200) -> Answer:
    class Endless(web.StreamResponse):
        async def prepare(self, request: web.BaseRequest) -> Any:
            writer = await super().prepare(request)
            with suppress(ConnectionError):
                while True:
                    await self.write(b" " * 1_000_000)
            return writer

    return lambda request: Endless(status=code)


@pytest.mark.parametrize("code", [200, 500, 403])
async def test_an_answer_without_an_end_is_cut(code: int) -> None:
    async with server(endless(code)) as client:
        with pytest.raises(ApiError, match="too long"):
            await client.create("pods", {"metadata": {"name": "a"}})
        with pytest.raises(ApiError, match="too l"):
            async for _ in client.watch("pods", {}, 60):
                pass


async def test_a_list_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cubicle.drivers.kubernetes.client._MAX_PAGES", 5)
    async with server(body(items=[pod("a", 1)], metadata={"resourceVersion": "7", "continue": "more"})) as client:
        with pytest.raises(ApiError, match="never comes to an end"):
            await client.list("pods", "x=y")


async def test_a_server_that_never_answers_is_waited_for_so_long_and_no_longer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "http://127.0.0.1:{1}".format(*silent.getsockname())
        client = KubernetesClient(Cluster(address, None, "test"), seconds=0.2)
        try:
            async with asyncio.timeout(30):
                with pytest.raises(ApiError, match="does not answer"):
                    await client.get("pods", "a")
        finally:
            await client.close()


@pytest.mark.skipif(sys.version_info >= (3, 12, 7), reason="aiohttp leaves it to Python")
async def test_the_connection_of_a_request_that_is_given_up_is_closed_with_the_client(tmp_path: Path) -> None:
    """Over TLS, by a server that never says that it closes its side."""
    files = (str(tmp_path / "certificate.pem"), str(tmp_path / "key.pem"))
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-out", files[0], "-keyout", files[1]]
    make += ["-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1"]
    await asyncio.to_thread(subprocess.run, make, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"https://127.0.0.1:{listening.getsockname()[1]}"
        client = KubernetesClient(Cluster(address, ssl.create_default_context(cafile=files[0]), "test"))
        request = asyncio.ensure_future(client.get("pods", "one"))
        connection = await asyncio.to_thread(asked, listening, context)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
        await client.close()
        with connection, suppress(ConnectionResetError):
            while await asyncio.to_thread(socket.socket.recv, connection, 4096):
                pass  # what is said at the end of TLS


def asked(listening: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection on which a request has come."""
    listening.settimeout(20)
    connection = context.wrap_socket(listening.accept()[0], server_side=True)
    connection.settimeout(20)
    assert connection.recv(4096)
    return connection


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_all_the_time() -> None:
    asked = 0

    def count(answer: Answer) -> Answer:
        def handle(request: web.Request) -> web.StreamResponse:
            nonlocal asked
            asked += 1
            return answer(request)

        return handle

    for last in (events(), status(410), events(("ERROR", {"code": 410, "metadata": {}}))):
        asked = 0
        async with server(listed(1, "a"), count(last)) as client:
            task = start_task(Follower(client, "pods", "x=y", lambda found: found).run(), name="follower")
            await asyncio.sleep(2)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert 1 <= asked <= 12


async def test_a_server_that_is_not_there_is_an_error() -> None:
    client = KubernetesClient(Cluster("http://127.0.0.1:1", None, "test"))
    with pytest.raises(ApiError, match="does not answer"):
        await client.create("pods", {"metadata": {"name": "a"}})
    await client.close()


async def test_a_list_comes_in_pages() -> None:
    first = body(items=[pod("a", 1)], metadata={"resourceVersion": "7", "continue": "more"})
    async with server(first, listed(7, "b")) as client:
        found, version = await client.list("pods", "x=y")
        assert ([one["metadata"]["name"] for one in found], version) == (["a", "b"], "7")


async def test_a_list_keeps_what_is_asked_for() -> None:
    named = {"name": "a", "uid": "a", "resourceVersion": "1"}
    long = {"metadata": {**named, "managedFields": [{"manager": "x"}]}, "spec": {"long": "x" * 1000}}
    async with server(body(items=[long], metadata={"resourceVersion": "7"})) as client:
        assert (await client.list("leases", ""))[0] == [{**long, "metadata": named}]
        found, _ = await client.list("pods", "", lambda one: {"metadata": {"name": one["metadata"]["name"]}})
        assert found == [{"metadata": {"name": "a"}}]


async def test_a_list_is_followed_through_changes_and_lost_versions() -> None:
    gone = ("ERROR", {"code": 410, "message": "too old", "metadata": {}})
    async with server(
        listed(1, "a", "b"),
        events(("ADDED", pod("c", 2)), ("DELETED", pod("a", 3)), ("BOOKMARK", pod("", 4))),
        events(("MODIFIED", pod("b", 5)), gone),
        listed(9, "z"),
        status(410),
        listed(10, "z", "y"),
        text("nonsense\n"),
        listed(11, "last"),
        events(),
    ) as client:
        seen: list[set[str]] = []
        follower = Follower(client, "pods", "x=y", lambda found: found)
        task = start_task(follower.run(), name="follower")
        async with asyncio.timeout(30):
            while set(follower.objects) != {"last"}:
                async with follower.changed:
                    await follower.changed.wait()
                seen.append(set(follower.objects))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert {"b", "c"} in seen
        assert {"z"} in seen
        assert {"z", "y"} in seen


@pytest.mark.parametrize("content", [None, b"\xff\xfe"], ids=["no file", "no text"])
async def test_a_token_that_cannot_be_read_is_an_error_that_names_no_file(
    tmp_path: Path, content: bytes | None
) -> None:
    """It is told to whoever called: the chat's sandbox could not be started, because of it."""
    token = tmp_path / "token"
    if content is not None:
        token.write_bytes(content)
    async with server(body(**pod("a", 1))) as client:
        client.cluster.token_file, client.cluster.token = token, ""
        with pytest.raises(ApiError, match="token for the API server cannot be read") as refused:
            await client.create("pods", {"metadata": {"name": "a"}})
        assert str(tmp_path) not in str(refused.value)


async def test_a_list_is_followed_again_when_the_token_can_be_read_again(tmp_path: Path) -> None:
    """The kubelet replaces it: in one moment there may be none."""
    token = tmp_path / "token"
    async with server(listed(1, "a"), events()) as client:
        client.cluster.token_file, client.cluster.token = token, ""
        follower = Follower(client, "pods", "x=y", lambda found: found)
        task = start_task(follower.run(), name="follower")
        try:
            await asyncio.wait([task], timeout=0.05)
            await asyncio.to_thread(token.write_text, "secret\n")
            async with asyncio.timeout(30):
                await asyncio.wait(
                    [task, waiting := start_task(follower.ready.wait(), name="ready")], return_when="FIRST_COMPLETED"
                )
            waiting.cancel()
            assert set(follower.objects) == {"a"}
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
