"""Requests to the API server: JSON over aiohttp, with time limits, and lists that are followed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, overload

import aiohttp

from cubicle.drivers.kubernetes.cluster import Cluster
from cubicle.machine.errors import SandboxError, Unusable

log = logging.getLogger(__name__)

Object = dict[str, Any]
_Kept = TypeVar("_Kept")
_SECONDS = 30.0
_PAGE = 100
"""Of pods, that is a megabyte: reading it keeps the event loop for some ten milliseconds."""
_MAX_PAGES = 2000
_MAX_EVENT = 4 * 1024**2
_MAX_ANSWER = 32 * 1024**2
_MAX_REFUSAL = 64 * 1024
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"
_TRIES = 3
_BUSY = frozenset({429, 500, 503, 504})
_NOT_DONE = 429
"""The server did nothing of what it was asked, so that a change can be sent again."""
_CONTENDED = "Conflict"
"""Why it refused with 409: a name that is there already has another reason."""
_MAX_RETRY_AFTER = 5.0
_MIN_PAUSE, _MAX_PAUSE = 0.2, 10.0
_STEADY_SECONDS = 5.0
"""What was followed for so long has no trouble that is to be waited for."""
_ABORTS = sys.version_info < (3, 12, 7)
"""Whether connections of requests that were given up are aborted, and not left to a server that does not close them in
turn. With later Pythons aiohttp has no such option."""
_NONSENSE = "The API server answered in a way that makes no sense."


class ApiError(SandboxError):
    """The API server said no, or nothing (status 0)."""

    def __init__(self, status: int, message: str, wait: float = 0.0, *, contended: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.wait = wait
        """Seconds after which it wants to be asked again."""
        self.contended = contended
        """Others wrote at the same moment, and nothing was done. If it is about a new object, they wrote a quota that
        it counts for."""


class KubernetesClient:
    """One API server and one namespace."""

    def __init__(self, cluster: Cluster, seconds: float = _SECONDS) -> None:
        self.cluster = cluster
        connector = aiohttp.TCPConnector(
            ssl=cluster.tls if cluster.tls is not None else False, limit=64, enable_cleanup_closed=_ABORTS
        )
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=seconds))

    async def close(self) -> None:
        with contextlib.suppress(AttributeError):  # before Python 3.11.4: of a connection that was closed twice
            await self._session.close()
        await asyncio.sleep(0)  # connections that were aborted let go of their sockets

    def path(self, kind: str, name: str = "") -> str:
        """Of a kind of the namespace: pods, leases and so on."""
        group = {"leases": "apis/coordination.k8s.io/v1", "deployments": "apis/apps/v1"}.get(kind, "api/v1")
        return f"/{group}/namespaces/{self.cluster.namespace}/{kind}" + (f"/{name}" if name else "")

    async def get(self, kind: str, name: str) -> Object | None:
        """None if there is none."""
        try:
            return _whole(await self.request("GET", self.path(kind, name)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def create(self, kind: str, body: Object) -> Object | None:
        """None if there is one of this name."""
        try:
            return _whole(await self.request("POST", self.path(kind), body))
        except ApiError as error:
            if error.status == 409 and not error.contended:
                return None
            raise

    async def patch(self, kind: str, name: str, body: Object) -> Object | None:
        """A merge patch. None if there is none, or another version than the body says."""
        try:
            return _whole(await self.request("PATCH", self.path(kind, name), body, _MERGE))
        except ApiError as error:
            if error.status in (404, 409):
                return None
            raise

    async def apply(self, kind: str, name: str, body: Object, manager: str) -> Object:
        """Have it be as the body says (server-side apply), whatever else others have set in it."""
        params = {"fieldManager": manager, "force": "true"}
        return await self.request("PATCH", self.path(kind, name), body, _APPLY, params)

    async def delete(self, kind: str, found: Object, *, grace: int | None = None, version: bool = False) -> bool:
        """Delete just the one that was seen, with `version` only if it is unchanged; False if it is another by now."""
        meta = found["metadata"]
        preconditions = {"uid": meta["uid"]} | ({"resourceVersion": meta["resourceVersion"]} if version else {})
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self.request("DELETE", self.path(kind, meta["name"]), body)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    @overload
    async def list(self, kind: str, selector: str) -> tuple[list[Object], str]: ...

    @overload
    async def list(self, kind: str, selector: str, reduce: Callable[[Object], _Kept]) -> tuple[list[_Kept], str]: ...

    async def list(
        self, kind: str, selector: str, reduce: Callable[[Object], Any] | None = None
    ) -> tuple[list[Any], str]:
        """All of a kind by label, each reduced as soon as it is read, and the version of the list."""
        found: list[Any] = []
        kept = reduce or without_history
        params = {"labelSelector": selector, "limit": str(_PAGE)}
        for _ in range(_MAX_PAGES):
            page = await self.request("GET", self.path(kind), params=params)
            try:
                found += map(kept, map(_whole, page.get("items") or []))
                more, version = page["metadata"].get("continue"), str(page["metadata"].get("resourceVersion", ""))
            except (KeyError, TypeError, ValueError, AttributeError):
                raise ApiError(0, _NONSENSE) from None
            if not more:
                return found, version
            params["continue"] = str(more)
        raise ApiError(0, f"The API server has more than {_MAX_PAGES * _PAGE} {kind}, or never comes to an end.")

    async def watch(
        self, kind: str, params: Mapping[str, str], seconds: float
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Events (ADDED, MODIFIED, DELETED, BOOKMARK) as they come, for so long. Raises ApiError."""
        asked = {**params, "watch": "1", "timeoutSeconds": str(int(seconds)), "allowWatchBookmarks": "true"}
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=seconds + 20)
        url = self.cluster.server + self.path(kind)
        try:
            async with self._session.get(url, params=asked, headers=await self._headers(), timeout=limit) as response:
                if response.status != 200:
                    raise ApiError(response.status, _message(await _content(response, _MAX_REFUSAL)))
                try:
                    async with aclosing(_lines(response)) as lines:
                        async for line in lines:
                            yield _event(line)
                finally:
                    _abort(response)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(0, f"The API server does not answer: {_plain(error)}") from None

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> Object:
        """One request; what is safe to repeat is tried again while the server is busy. Raises ApiError."""
        for left in reversed(range(_TRIES)):
            try:
                return await self._once(method, path, body, content_type, params)
            except ApiError as error:
                again = error.status == _NOT_DONE or (method == "GET" and error.status in (0, *_BUSY))
                again = again or (method == "POST" and error.contended)
                if not left or not again:
                    raise
                wait = error.wait
            await asyncio.sleep(wait + random.uniform(0.1, 0.5))  # noqa: S311 - no secret
        raise AssertionError("unreachable")

    async def _once(
        self, method: str, path: str, body: Object | None, content_type: str, params: Mapping[str, str] | None
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        headers = {**await self._headers(), "Content-Type": content_type}
        url = self.cluster.server + path
        try:
            async with self._session.request(method, url, data=data, headers=headers, params=params) as response:
                content = await _content(response, _MAX_ANSWER)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(0, f"The API server does not answer: {_plain(error)}") from None
        if response.status >= 300:
            contended = response.status == 409 and _said(content).get("reason") == _CONTENDED
            raise ApiError(response.status, _message(content), _retry_after(response), contended=contended)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ApiError(0, _NONSENSE)
        return found

    async def _headers(self) -> dict[str, str]:
        try:
            token = await asyncio.to_thread(self.cluster.bearer) if self.cluster.token_file else self.cluster.token
        except (Unusable, ValueError) as error:  # clients may be told why something failed, and no path
            log.error("the token for the API server cannot be read: %s", error)
            raise ApiError(0, "The token for the API server cannot be read.") from None
        return {"Authorization": f"Bearer {token}"} if token else {}


class Follower:
    """Keeps what one list says, object by object: LIST, then WATCH from there, and again after any trouble."""

    def __init__(self, client: KubernetesClient, kind: str, selector: str, reduce: Callable[[Object], Object]) -> None:
        self._client = client
        self._kind = kind
        self._selector = selector
        self._reduce = reduce
        self.objects: dict[str, Object] = {}
        self.ready = asyncio.Event()
        """Whether the list was read once."""
        self.changed = asyncio.Condition()

    async def run(self) -> None:
        """Runs for as long as the driver does."""
        pause = _MIN_PAUSE
        while True:
            began = time.monotonic()
            try:
                found, version = await self._client.list(self._kind, self._selector, self._reduce)
                self.objects = {one["metadata"]["name"]: one for one in found}
                self.ready.set()
                await self._tell()
                await self._follow(version)
            except ApiError as error:
                if error.status != 410:
                    log.warning("the list of %s cannot be followed: %s", self._kind, error)
            except (KeyError, TypeError, ValueError, AttributeError):
                log.exception("an object of the cluster is not as it should be")
            pause = await _paused(pause, began)

    async def _follow(self, version: str) -> None:
        pause = _MIN_PAUSE
        while True:
            began = time.monotonic()
            params = {"labelSelector": self._selector, "resourceVersion": version}
            seconds = random.uniform(240, 300)  # noqa: S311 - no secret
            async with aclosing(self._client.watch(self._kind, params, seconds)) as events:
                async for event, found in events:
                    version = await self._apply(event, found)
            if time.monotonic() - began < _STEADY_SECONDS:  # one that hangs up at once is not asked at once
                pause = await _paused(pause, began)

    async def _apply(self, event: str, found: Object) -> str:
        """Keep one change; the version from which to go on."""
        if event == "ERROR":
            raise ApiError(int(found.get("code") or 0), str(found.get("message", "")))
        meta = found["metadata"]
        if event == "DELETED":
            self.objects.pop(meta["name"], None)
        elif event != "BOOKMARK":
            self.objects[meta["name"]] = self._reduce(found)
        await self._tell()
        return str(meta["resourceVersion"])

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()


async def _paused(pause: float, began: float) -> float:
    """Wait before the next try; how long to wait before the one after that."""
    if time.monotonic() - began > _STEADY_SECONDS:
        pause = _MIN_PAUSE
    await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - no secret
    return min(_MAX_PAUSE, pause * 2)


async def _content(response: aiohttp.ClientResponse, most: int) -> bytes:
    """What it answered, if that is no more. Raises ApiError."""
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > most:
            _abort(response)
            raise ApiError(0, "The API server's answer is too long.")
    return bytes(content)


def _retry_after(response: aiohttp.ClientResponse) -> float:
    told = response.headers.get("Retry-After", "")
    return min(float(told), _MAX_RETRY_AFTER) if told.isdecimal() else 0.0


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > _MAX_EVENT:
            raise ApiError(0, "an event of the API server is too large")
        for line in lines:
            if line.strip():
                yield line


def _abort(response: aiohttp.ClientResponse) -> None:
    """Nobody waits for the other end of a stream to say goodbye."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _whole(found: Object) -> Object:
    """An object as every one is: with a name, and what changes of it are tied to. Raises ApiError."""
    meta = found.get("metadata")
    if not isinstance(meta, dict) or not meta.keys() >= {"name", "uid", "resourceVersion"}:
        raise ApiError(0, _NONSENSE)
    return found


def without_history(found: Object) -> Object:
    """An object without who has set which of its fields: half of what a Lease takes."""
    found["metadata"].pop("managedFields", None)
    return found


def _event(line: bytes) -> tuple[str, Object]:
    try:
        event = json.loads(line)
        return str(event["type"]), dict(event["object"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ApiError(0, "The API server sent an event that makes no sense.") from None


def _said(content: bytes) -> Object:
    """A refusal, as the API server words one; empty if this is none."""
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return {}


def _message(content: bytes) -> str:
    """What the API server said, in a sentence; it is for the operator."""
    said = _said(content).get("message")
    text = content[:1200].decode(errors="replace") if said is None else str(said)
    return f"The API server refused: {text[:300]}"


def _plain(error: Exception) -> str:
    return str(error) or type(error).__name__
