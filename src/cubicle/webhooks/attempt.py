"""One attempt to deliver a message: signed, sent, and judged by the status of the answer alone."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from standardwebhooks.webhooks import Webhook

from cubicle import __version__
from cubicle.webhooks.pace import MAX_RETRY_AFTER, TIMEOUT
from cubicle.webhooks.receivers import Receiver

MAX_CONNECTIONS = 4
"""To one receiver at once."""
_READ_SIZE = 16 * 1024
"""Bytes of an answer that are read, and dropped, so that the connection can be used again."""
_GONE = 410


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt."""

    error: str = ""
    """Why it failed, in our own words: nothing that a receiver sent. Empty: it was delivered."""
    final: bool = False
    """The receiver wants no further attempt."""
    retry_after: int = 0
    """Seconds that the receiver asks to be left alone."""


def signature_headers(receiver: Receiver, id: str, body: bytes, now: float) -> dict[str, str]:
    """The three headers of the scheme. The time is that of the attempt: a receiver refuses what is old."""
    at = datetime.fromtimestamp(int(now), UTC)
    signatures = [Webhook(secret).sign(id, at, body.decode()) for secret in receiver.secrets]
    return {
        "webhook-id": id,
        "webhook-timestamp": str(int(now)),
        "webhook-signature": " ".join(signatures),
    }


class Sender:
    """The connections to one receiver. Redirects are not followed, and the proxies of the environment not used."""

    def __init__(self, receiver: Receiver, timeout: float = TIMEOUT) -> None:
        self._receiver = receiver
        self._timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def attempt(self, id: str, body: bytes, now: float) -> Outcome:
        """Send the message once. Never raises for what a receiver does."""
        headers = {"Content-Type": "application/json", "User-Agent": f"Cubicle-Webhooks/{__version__}"}
        headers |= signature_headers(self._receiver, id, body, now)
        if self._session is None:
            self._session = self._opened()
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._session.post(self._receiver.url, data=body, headers=headers, allow_redirects=False) as answer,
            ):
                outcome = _judged(answer)
                await _read_some(answer)
                return outcome
        except TimeoutError:
            return Outcome(f"It did not answer within {self._timeout:g} seconds.")
        except (aiohttp.ClientConnectorCertificateError, ssl.SSLCertVerificationError):
            return Outcome("Its certificate could not be verified.")
        except (aiohttp.ClientSSLError, ssl.SSLError):
            return Outcome("TLS failed.")
        except aiohttp.ClientConnectorDNSError:
            return Outcome("Its name could not be looked up.")
        except aiohttp.ClientConnectorError as error:
            return Outcome(f"It could not be connected to: {os.strerror(error.os_error.errno or errno.EIO)}.")
        except (aiohttp.ClientError, OSError, ValueError):
            return Outcome("It hung up, or its answer is not HTTP.")

    def _opened(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=MAX_CONNECTIONS, ssl=self._receiver.tls or True, resolver=_Resolver(), use_dns_cache=False
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, connect=None),
            trust_env=False,
        )


def _judged(answer: aiohttp.ClientResponse) -> Outcome:
    status = answer.status
    if 200 <= status < 300:
        return Outcome()
    if 300 <= status < 400:
        return Outcome(f"It answered {status}, a redirect, which is not followed.")
    asked = answer.headers.get("Retry-After", "")
    seconds = min(int(asked), MAX_RETRY_AFTER) if asked.isascii() and asked.isdigit() and len(asked) < 10 else 0
    return Outcome(f"It answered {status}.", final=status == _GONE, retry_after=seconds)


async def _read_some(answer: aiohttp.ClientResponse) -> None:
    """What is longer closes the connection. The status has been judged: what goes wrong here changes nothing."""
    try:
        async with asyncio.timeout(1):
            left = _READ_SIZE
            while left > 0 and (chunk := await answer.content.read(left)):
                left -= len(chunk)
    except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
        answer.close()


class _Resolver(AbstractResolver):
    """Looks names up in threads of its own, one for a name at once: a name server that does not answer holds neither
    the threads of the service nor its end."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, int], asyncio.Future[list[ResolveResult]]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        key = (host, port)
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.get_running_loop().create_future()
            running.add_done_callback(lambda done: self._done(key, done))
            threading.Thread(target=_look_up, args=(host, port, running), name="webhook-lookup", daemon=True).start()
        return await asyncio.shield(running)

    def _done(self, key: tuple[str, int], done: asyncio.Future[list[ResolveResult]]) -> None:
        self._running.pop(key, None)
        if not done.cancelled():
            done.exception()  # whoever asked may have gone

    async def close(self) -> None:
        pass


def _look_up(host: str, port: int, answer: asyncio.Future[list[ResolveResult]]) -> None:
    """In a thread."""
    found: list[ResolveResult] = []
    failed: Exception | None = None
    try:
        for family, _, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            one = ResolveResult(
                hostname=host, host=str(address[0]), port=port, family=family, proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )  # fmt: skip
            found.append(one)
    except (OSError, UnicodeError) as error:
        failed = error if isinstance(error, OSError) else OSError("not a host name")

    def tell() -> None:
        if answer.done():
            return
        if failed is not None:
            answer.set_exception(failed)
        else:
            answer.set_result(found)

    loop = answer.get_loop()
    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        return  # the service has ended
