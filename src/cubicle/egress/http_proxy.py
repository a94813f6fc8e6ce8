"""The HTTP side of the proxy: CONNECT, requests in absolute form, and what goes through TLS that the proxy ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

import h11
from websockets.utils import accept_key

from cubicle.egress import messages
from cubicle.egress.policy import BadTarget, Policy, Request, Scheme, Target
from cubicle.egress.streams import CHUNK, Inside, Pipe
from cubicle.egress.tunnel import heard, relay
from cubicle.egress.upstream import ConnectRefused, Denied
from cubicle.egress.upstream_connections import UpstreamConnection, UpstreamConnections
from cubicle.tasks import start_task

Tunnel = Callable[[Inside, Target, str, Callable[[], Awaitable[None]]], Awaitable[None]]
"""Carries bytes to the target of a CONNECT; Refused before the last argument was called, if at all."""

_MAX_HEAD = 64 * 1024
_HEAD_PIECE = 16 * 1024
_PORTS = {Scheme.HTTP: 80, Scheme.HTTPS: 443}
_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate", b"upgrade"}
    | {b"http2-settings"}
)


class BadProxyRequest(Exception):
    """The request cannot be passed on; the message says what it should have been."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class HttpProxy:
    """One caller that speaks HTTP: to the proxy, or, with a target, to that target as far as it knows."""

    def __init__(
        self,
        upstreams: UpstreamConnections,
        tunnel: Tunnel,
        caller: Pipe,
        inner: Target | None = None,
        scheme: Scheme = Scheme.HTTP,
        protocol: str = "http",
    ) -> None:
        self._upstreams = upstreams
        self._tunnel = tunnel
        self._caller = caller
        self._inner = inner
        self._scheme = scheme
        self._protocol = protocol
        self._head_only = False
        self._conn = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)

    async def serve(self) -> None:
        """Answer requests until one of the sides wants no more."""
        while True:
            try:
                async with asyncio.timeout(self._upstreams.limits.idle):
                    request = await _next(self._conn, self._caller, _HEAD_PIECE)
                if not isinstance(request, h11.Request):
                    return
                self._head_only = request.method == b"HEAD"
                if not request.http_version.startswith(b"1."):
                    raise BadProxyRequest("The proxy speaks HTTP/1.1 here, and not HTTP/2.", 505)
                await self._upstreams.paced()
                if request.method == b"CONNECT":
                    await self._connect(request)
                    return
                await self._answer(request)
            except h11.RemoteProtocolError as error:
                await self._say(error.error_status_hint or 400, f"That is not a request of HTTP/1.1: {error}.\n")
                return
            except BadProxyRequest as error:
                await self._say(error.status, f"{error}\n")
                return
            if self._conn.our_state is not h11.DONE or self._conn.their_state is not h11.DONE:
                return
            self._conn.start_next_cycle()

    async def _connect(self, head: h11.Request) -> None:
        if self._inner is not None or not isinstance(self._caller, Inside):
            raise BadProxyRequest("CONNECT cannot be used inside a connection.", 405)
        target = _authority(head.target.decode("ascii", "replace"), None)
        caller = self._caller

        async def connected() -> None:
            if not isinstance(await _next(self._conn, caller), h11.EndOfMessage):
                raise BadProxyRequest("CONNECT has no body.")
            await self._send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            caller.put_back(self._conn.trailing_data[0])

        try:
            await self._tunnel(caller, target, "connect", connected)
        except ConnectRefused as no:
            await self._refuse(await self._upstreams.policy(), Request(target), no)

    async def _answer(self, head: h11.Request) -> None:
        policy = await self._upstreams.policy()
        target, path = self._where(head)
        if target is None:
            await self._say(200, messages.overview(policy))
            return
        request = Request(target, self._scheme, head.method.decode("ascii"), path)
        try:
            async with self._upstreams.connect(policy, request, self._protocol) as upstream:
                try:
                    await self._pass_on(head, request, upstream)
                except (OSError, h11.RemoteProtocolError, EOFError) as error:
                    if self._conn.our_state is not h11.SEND_RESPONSE:
                        raise OSError("the answer broke off") from error
                    raise ConnectRefused(f"{target} did not answer as an HTTP server does.") from None
        except ConnectRefused as no:
            await self._refuse(policy, request, no)

    def _where(self, head: h11.Request) -> tuple[Target | None, str]:
        """Target and path of a request; no target if the proxy itself is meant."""
        text = head.target.decode("ascii", "replace")
        if text.startswith("/") or text == "*":
            self._check_host(head)
            return self._inner, text
        parts = urlsplit(text)
        if parts.scheme.lower() != "http" or not parts.netloc:
            raise BadProxyRequest("Ask for http:// here, and use CONNECT for https:// and everything else.")
        if self._inner is not None:
            raise BadProxyRequest("Inside a connection, a request names a path only.")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return _authority(parts.netloc.rpartition("@")[2], 80), path

    def _check_host(self, head: h11.Request) -> None:
        """A server of many names is asked for the one that the rules judge; one that is reached by address, for any."""
        if self._inner is None or self._inner.literal is not None:
            return
        for host in _values(head.headers, b"host"):
            if _authority(host.decode("ascii", "replace"), _PORTS[self._scheme]) != self._inner:
                raise BadProxyRequest(f"This connection is to {self._inner}, and the Host header names another.", 421)

    async def _pass_on(self, head: h11.Request, request: Request, upstream: UpstreamConnection) -> None:
        outside: Pipe = upstream.pipe
        if request.scheme is Scheme.HTTPS:
            assert self._upstreams.interception is not None
            outside = await self._upstreams.interception.connect(
                upstream.pipe, request.target, self._upstreams.limits.connect
            )
        conn = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD)
        by_address = self._inner is not None and self._inner.literal is not None
        accept = _websocket_answer(head)
        outgoing = _outgoing(head, request, upstream.verdict.inject, keep_host=by_address, websocket=accept is not None)
        await outside.write(conn.send(outgoing) or b"")
        body = start_task(self._send_body(conn, outside, upstream.hurry), name="egress request body")
        try:
            upgraded = await _either(self._receive_answer(conn, outside, accept), body)
        finally:
            body.cancel()
            await asyncio.wait([body])
        if upgraded:
            await outside.write(self._conn.trailing_data[0])
            await self._caller.write(conn.trailing_data[0])
            await relay(self._caller, outside, upstream.hurry)

    async def _send_body(self, conn: h11.Connection, outside: Pipe, on_silence: Callable[[], None]) -> None:
        hears = True
        while True:
            event = await _next(self._conn, self._caller)
            if not isinstance(event, h11.Data | h11.EndOfMessage):
                return
            if hears and not (hears := await heard(outside, conn.send(event) or b"")):
                on_silence()
            if isinstance(event, h11.EndOfMessage):
                break
        data = await self._caller.read(_HEAD_PIECE)
        self._conn.receive_data(data)
        if not data:
            on_silence()

    async def _receive_answer(self, conn: h11.Connection, outside: Pipe, accept: bytes | None) -> bool:
        """True when the server and the caller go on as a WebSocket."""
        while True:
            event = await _next(conn, outside)
            match event:
                case h11.InformationalResponse(status_code=101):
                    if _values(event.headers, b"sec-websocket-accept") != [accept]:
                        raise EOFError  # whatever it is that follows, it is no WebSocket
                    await self._send(event)
                    return True
                case h11.InformationalResponse() | h11.Data():
                    await self._send(event)
                case h11.Response():
                    headers, reason = _end_to_end(event.headers), bytes(event.reason)
                    await self._send(h11.Response(status_code=event.status_code, headers=headers, reason=reason))
                case h11.EndOfMessage():
                    await self._send(event)
                    return False
                case _:
                    raise EOFError

    async def _refuse(self, policy: Policy, request: Request, no: ConnectRefused) -> None:
        if isinstance(no, Denied):
            text = messages.denial(policy, request, no.verdict.rule, no.verdict.reason)
            await self._say(no.status, text, messages.short_denial(policy, no.verdict.rule), no.verdict.rule)
        else:
            await self._say(no.status, f"{no}\n")

    async def _say(self, status: int, text: str, reason: str = "", rule: str = "") -> None:
        """Answer in the proxy's own words, if it is still the proxy's turn."""
        if self._conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        while self._conn.their_state is h11.SEND_BODY and self._conn.next_event() is not h11.NEED_DATA:
            pass  # what is there of the request, so that the connection can be used again
        content = text.encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(content)))]
        if rule:
            headers.append(("X-Egress-Rule", rule))
        if self._conn.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        phrase = reason or messages.STATUS_REASONS.get(status, "OK")
        parts = [self._conn.send(h11.Response(status_code=status, headers=headers, reason=phrase.encode("ascii")))]
        if not self._head_only:
            parts.append(self._conn.send(h11.Data(data=content)))
        parts.append(self._conn.send(h11.EndOfMessage()))
        await self._caller.write(b"".join(part for part in parts if part))

    async def _send(self, event: Any) -> None:
        if data := self._conn.send(event):
            await self._caller.write(data)


async def _next(conn: h11.Connection, pipe: Pipe, most: int = CHUNK) -> Any:
    while True:
        event = conn.next_event()
        if event is not h11.NEED_DATA:
            return event
        conn.receive_data(await pipe.read(most))


async def _either(answer: Coroutine[Any, Any, bool], body: asyncio.Future[None]) -> bool:
    """The answer; a body that breaks off ends it, one that is complete does not."""
    task = start_task(answer, name="egress answer")
    try:
        either: list[asyncio.Future[Any]] = [task, body]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if body.done() and not task.done():
            body.result()
        return await task
    finally:
        task.cancel()
        await asyncio.wait([task])


def _authority(text: str, default: int | None) -> Target:
    host, port = text, ""
    if not text.endswith("]") and ":" in text:
        host, _, port = text.rpartition(":")
    try:
        if port and not (port.isascii() and port.isdecimal() and len(port) < 6):
            raise BadTarget("A port is a number from 1 to 65535.")
        if not port and default is None:
            raise BadTarget("CONNECT needs a host and a port, as in example.com:443.")
        return Target.parse(host, int(port or default or 0))
    except BadTarget as error:
        raise BadProxyRequest(str(error)) from None


def _values(headers: Any, wanted: bytes) -> list[bytes]:
    return [value for name, value in headers if name == wanted]


def _connection_tokens(headers: Any) -> set[bytes]:
    return {token.strip().lower() for value in _values(headers, b"connection") for token in value.split(b",")}


def _websocket_answer(head: h11.Request) -> bytes | None:
    """What a server of WebSockets answers to this offer; None if it is no such offer, and nothing else.

    No other protocol is offered on: a connection that goes on in HTTP/2 (h2c) carries requests that no rule sees, and a
    body that a server does not read looks like a request to it.
    """
    headers = head.headers
    bodiless = not _values(headers, b"transfer-encoding") and _values(headers, b"content-length") in ([], [b"0"])
    if head.method != b"GET" or head.http_version != b"1.1" or not bodiless:
        return None
    if b"upgrade" not in _connection_tokens(headers):
        return None
    if [value.lower() for value in _values(headers, b"upgrade")] != [b"websocket"]:
        return None
    keys = _values(headers, b"sec-websocket-key")
    return accept_key(keys[0].decode("latin-1")).encode() if len(keys) == 1 else None


def _end_to_end(headers: Any) -> list[tuple[bytes, bytes]]:
    """Headers without those that are about one connection only."""
    named = _connection_tokens(headers)
    kept = named & {b"transfer-encoding", b"content-length", b"host"}  # these frame the message, whoever names them
    return [(n, v) for n, v in headers if n not in _HOP_BY_HOP and (n not in named or n in kept)]


def _outgoing(
    head: h11.Request, request: Request, inject: tuple[tuple[str, str], ...], *, keep_host: bool, websocket: bool
) -> h11.Request:
    """The request as the server gets it, with what the rule adds in place of whatever the sandbox sent."""
    target = request.target
    host = target.host if ":" not in target.host else f"[{target.host}]"
    if target.port != _PORTS[request.scheme or Scheme.HTTP]:
        host += f":{target.port}"
    if keep_host:
        host = next((value.decode("latin-1") for name, value in head.headers if name == b"host"), host)
    replaced = {b"host", *(name.lower().encode() for name, _ in inject)}
    if _values(head.headers, b"transfer-encoding"):
        replaced.add(b"content-length")  # with both, servers differ over where the body ends
    headers = [(n, v) for n, v in _end_to_end(head.headers) if n not in replaced]
    headers += [(name.encode(), value.encode()) for name, value in inject]
    headers += [(b"Connection", b"Upgrade"), (b"Upgrade", b"websocket")] if websocket else [(b"Connection", b"close")]
    return h11.Request(
        method=head.method, target=request.path.encode(), headers=[(b"Host", host.encode("latin-1")), *headers]
    )
