"""`cubicle port`: a port of this machine's loopback that leads to a port of a chat's sandbox, over the service."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from urllib.parse import quote

import click
import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from cubicle.cli.errors import exits
from cubicle.core.chat import Chat
from cubicle.core.tcp_messages import EOF
from cubicle.settings import base_url, load

_CHUNK = 64 * 1024
_START_SECONDS = 90.0


class NoForward(click.ClickException):
    """The service does not let this port be forwarded; the message says why."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Where the connections go."""

    url: str
    key: str
    chat: Chat
    port: int

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def _at(self, tail: str) -> str:
        return f"{self.url}/api/chats/{quote(self.chat.id, safe='')}/{tail}"

    async def wake(self) -> None:
        """Have the chat's sandbox up. Raises NoForward."""
        async with httpx.AsyncClient(headers=self.headers, timeout=_START_SECONDS, trust_env=False) as client:
            try:
                answer = await client.post(self._at("start?wake=0"))
                if answer.status_code == 409:
                    answer = await client.post(self._at("start"))
            except httpx.HTTPError as error:
                raise NoForward(f"The service at {self.url} cannot be reached: {error}.") from None
        if not answer.is_success:
            try:
                detail = str(answer.json()["detail"])
            except (ValueError, KeyError, TypeError):
                detail = f"The service answered {answer.status_code}."
            raise NoForward(detail)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a local client, until both directions ended."""
        address = self._at(f"ports/{self.port}/tcp").replace("http", "ws", 1)
        try:
            async with (
                # Without pings: the answer to one lies behind what a local client does not read yet. The service pings.
                connect(
                    address,
                    additional_headers=self.headers,
                    proxy=None,
                    max_size=None,
                    compression=None,
                    ping_interval=None,
                ) as socket,
                asyncio.TaskGroup() as group,
            ):
                inward = group.create_task(_inward(reader, socket))
                await _outward(socket, writer)
                inward.cancel()
        except* ConnectionClosed as errors:
            closed = errors.exceptions[0]
            if isinstance(closed, ConnectionClosed) and closed.rcvd is not None and closed.rcvd.code != 1000:
                click.echo(f"The connection was closed: {closed.rcvd.reason or closed.rcvd.code}", err=True)
        except* (WebSocketException, OSError) as errors:
            click.echo(f"A connection could not be forwarded: {errors.exceptions[0]}", err=True)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def _inward(reader: asyncio.StreamReader, socket: ClientConnection) -> None:
    while chunk := await reader.read(_CHUNK):
        await socket.send(chunk)
    await socket.send(EOF)


async def _outward(socket: ClientConnection, writer: asyncio.StreamWriter) -> None:
    """Until the service ends the connection: it does when both directions have."""
    while True:
        try:
            message = await socket.recv()
        except ConnectionClosed as closed:
            if closed.rcvd is not None and closed.rcvd.code == 1000:
                return
            raise
        if isinstance(message, str):
            if writer.can_write_eof():
                writer.write_eof()
            continue
        writer.write(message)
        await writer.drain()


@click.command()
@click.argument("chat")
@click.argument("number", metavar="PORT", type=click.IntRange(1, 65535))
@click.option("--local", type=click.IntRange(0, 65535), help="Port of this machine; the same number if left out.")
@click.option("--url", help="Address of the service; that of the settings if left out.")
@click.option("--key", help="API key; MCP_API_KEY if left out.")
@exits
def port(chat: str, number: int, local: int | None, url: str | None, key: str | None) -> None:
    """Forward a port of this machine's loopback to PORT in the sandbox of CHAT.

    For clients that are no browsers: databases, debuggers. It lasts until it is interrupted.
    """
    settings = load()
    forward = Forward(
        (url or base_url(settings)).rstrip("/"), settings.mcp_api_key if key is None else key, Chat(chat), number
    )
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(forward, number if local is None else local))


async def _serve(forward: Forward, local: int) -> None:
    await forward.wake()
    try:
        server = await asyncio.start_server(forward.carry, "127.0.0.1", local)
    except OSError as error:
        raise NoForward(
            f"Port {local} of this machine cannot be used: {error.strerror}. Give another by --local."
        ) from None
    async with server:
        bound = server.sockets[0].getsockname()[1]
        click.echo(f"127.0.0.1:{bound} leads to port {forward.port} of chat {forward.chat.id}. Ctrl-C ends it.")
        await server.serve_forever()
