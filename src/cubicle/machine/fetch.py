"""One HTTP request to a port of a sandbox: bounded in size and time, over the guest's dial."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import h11

from cubicle.guest.wire import ErrorCode
from cubicle.machine.errors import Gone, MachineError
from cubicle.machine.machine import Machine


@dataclass(frozen=True, slots=True)
class Fetched:
    status: int
    content_type: str
    body: bytes


async def fetch(machine: Machine, port: int, method: str, target: str, *, most: int, limit: float = 15.0) -> Fetched:
    """The answer of an HTTP server in the sandbox. MachineError `refused` when there is none that makes sense."""
    stream = await machine.dial(port)
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=64 * 1024)
    try:
        async with asyncio.timeout(limit):
            headers = [("Host", f"127.0.0.1:{port}"), ("Connection", "close"), ("Content-Length", "0")]
            request = h11.Request(method=method, target=target, headers=headers)
            await stream.write((connection.send(request) or b"") + (connection.send(h11.EndOfMessage()) or b""))
            status, kind, body = 0, "", bytearray()
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await stream.read())
                elif isinstance(event, h11.Response):
                    status = event.status_code
                    kind = dict(event.headers).get(b"content-type", b"").decode("latin-1")
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) > most:
                        raise MachineError(ErrorCode.TOO_BIG, f"The answer from the sandbox is over {most} bytes.")
                elif isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    return Fetched(status, kind, bytes(body))
    except TimeoutError:
        raise MachineError(ErrorCode.REFUSED, f"Port {port} of the sandbox does not answer.") from None
    except (h11.RemoteProtocolError, h11.LocalProtocolError):
        raise MachineError(
            ErrorCode.REFUSED, f"What answers on port {port} of the sandbox is no HTTP server."
        ) from None
    except Gone:
        if not machine.alive:
            raise
        raise MachineError(ErrorCode.REFUSED, f"What was on port {port} of the sandbox hung up.") from None
    finally:
        stream.close()
