"""From a request to a connected socket: look up, judge every address, dial what was judged.

ConnectRefused
├── Denied         the policy says no
├── NotFound       the name has no address
└── Unreachable    nobody answers there
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

from cubicle.egress.blocked_networks import Address, plain
from cubicle.egress.policy import Policy, PolicyVerdict, Request, Target, foresee, judge

Resolve = Callable[[str], Awaitable[Sequence[Address]]]

_MAX_ADDRESSES = 16
_LOOKUP_LIMIT = 10.0
_SMALL_BUFFER = 128 * 1024
"""What the kernel keeps for a caller that does not read, where a chat has many connections; 6 MB otherwise."""


class ConnectRefused(Exception):
    """The request does not get through; the message is for the one who asked."""

    status = 502


class Denied(ConnectRefused):
    """The policy says no."""

    status = 403

    def __init__(self, verdict: PolicyVerdict, address: Address | None = None) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict
        self.address = address


class NotFound(ConnectRefused):
    """The name has no address."""


class Unreachable(ConnectRefused):
    """Nobody answers there."""


class SlowToAnswer(Unreachable):
    """Nobody answered in time."""

    status = 504


class UpstreamDialler:
    """Dials for the sandboxes; the only place that opens a socket to the outside."""

    def __init__(self, resolve: Resolve, connect_limit: float) -> None:
        self._resolve = resolve
        self._limit = connect_limit

    async def choose(self, policy: Policy, request: Request) -> list[tuple[Address, PolicyVerdict]]:
        """The addresses that the request may go to, each with its verdict; Denied if there is none."""
        if (verdict := foresee(policy, request)) is not None:
            raise Denied(verdict)
        judged = [
            (address, judge(policy, request, address, own=_own(address)))
            for address in map(plain, await self._addresses(request.target))
        ]
        allowed = [(address, verdict) for address, verdict in judged if verdict.allowed]
        if not allowed:
            raise Denied(judged[0][1], judged[0][0])
        return allowed

    async def dial(
        self, target: Target, choices: Sequence[tuple[Address, PolicyVerdict]], *, small: bool = False
    ) -> tuple[socket.socket, Address]:
        """A connected socket to the first of the addresses that answers; `small`: with a small receive buffer."""
        problem: ConnectRefused = Unreachable(f"{target} could not be reached.")
        for number, (address, _) in enumerate(choices):
            try:
                limit = self._limit / (len(choices) - number)
                return await self._connect(address, target.port, limit, small), address
            except TimeoutError:
                problem = SlowToAnswer(f"{target} did not answer within {self._limit:g} s.")
            except OSError as error:
                problem = Unreachable(f"{target} could not be reached: {_words(error)}.")
        raise problem

    async def _addresses(self, target: Target) -> Sequence[Address]:
        if target.literal is not None:
            return [target.literal]
        try:
            async with asyncio.timeout(_LOOKUP_LIMIT):
                found = await self._resolve(target.host)
        except TimeoutError:
            raise SlowToAnswer(f"Looking up {target.host} took too long.") from None
        except (OSError, UnicodeError):
            found = []
        if not found:
            raise NotFound(f"The name {target.host} has no address.")
        return found[:_MAX_ADDRESSES]

    async def _connect(self, address: Address, port: int, limit: float, small: bool) -> socket.socket:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if small:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
            async with asyncio.timeout(limit):
                await asyncio.get_running_loop().sock_connect(sock, (str(address), port))
        except BaseException:
            sock.close()
            raise
        return sock


def _own(address: Address) -> bool:
    """Whether the address is one of this host: the kernel then answers it from the same address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as probe:
        try:
            probe.connect((str(address), 9))
            return plain(ip_address(probe.getsockname()[0])) == address
        except OSError:
            return False  # no way there, so no way to dial it either


def _words(error: OSError) -> str:
    match error.errno:
        case errno.ECONNREFUSED:
            return "it refused the connection"
        case errno.ENETUNREACH | errno.EHOSTUNREACH | errno.EADDRNOTAVAIL:
            return "there is no way there"
        case errno.ECONNRESET:
            return "it dropped the connection"
        case _:
            return "the connection failed"
