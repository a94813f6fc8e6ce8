"""TLS over a pipe, and the pair of it by which the proxy looks into a connection."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

from cubicle.egress.policy import Target
from cubicle.egress.streams import CHUNK, Pipe
from cubicle.egress.tls_authority import Authority
from cubicle.egress.upstream import Unreachable


class Secured:
    """One side of a TLS connection whose records travel through another pipe."""

    def __init__(self, pipe: Pipe, context: ssl.SSLContext, *, server_side: bool, host: str | None = None) -> None:
        self._pipe = pipe
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side, server_hostname=host)
        self._writing = asyncio.Lock()

    async def handshake(self) -> None:
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    return
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._fill()
        finally:
            await self._flush()

    async def read(self, most: int = CHUNK) -> bytes:
        while True:
            try:
                return self._tls.read(most)
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""

    async def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view[:CHUNK]) :]
            await self._flush()

    async def write_eof(self) -> None:
        with suppress(ssl.SSLError):  # the other side's own farewell may still be on its way
            self._tls.unwrap()
        await self._flush()

    async def _fill(self) -> None:
        data = await self._pipe.read(CHUNK)
        if data:
            self._in.write(data)
        else:
            self._in.write_eof()

    async def _flush(self) -> None:
        async with self._writing:
            while data := self._out.read(CHUNK):
                await self._pipe.write(data)


class Interception:
    """Ends the caller's TLS with a certificate of the service, and begins a verified one to the server."""

    def __init__(self, authority: Authority, trust: ssl.SSLContext) -> None:
        self.authority = authority
        self._trust = trust

    async def accept(self, caller: Pipe, target: Target) -> Secured:
        context = await asyncio.to_thread(self.authority.context, target.host)
        secured = Secured(caller, context, server_side=True)
        await secured.handshake()
        return secured

    async def connect(self, outside: Pipe, target: Target, limit: float) -> Secured:
        """TLS to the server; Unreachable if it cannot prove that it is the one."""
        secured = Secured(outside, self._trust, server_side=False, host=target.host)
        try:
            async with asyncio.timeout(limit):
                await secured.handshake()
        except ssl.SSLCertVerificationError as error:
            raise Unreachable(f"The certificate of {target} is not valid: {error.verify_message}.") from None
        except TimeoutError:
            raise Unreachable(f"{target} did not finish its TLS handshake in time.") from None
        except OSError:
            raise Unreachable(f"{target} did not speak TLS.") from None
        return secured
