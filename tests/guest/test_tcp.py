"""A guest on TCP serves who signs its challenge, one owner at a time, and ends when it is told."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from cubicle.drivers.common.guest_tcp import GuestAddress, GuestKeys, NotThisGuest, connect
from cubicle.guest import bundle, handshake, operations
from cubicle.guest.guest_config import GuestConfig
from cubicle.machine.connection import GuestLink
from cubicle.machine.errors import Gone, SandboxError, Unusable
from cubicle.machine.machine import Machine
from tests.drivers.sight import gone_from_host, seen_on_host

KEYS = GuestKeys.generate()
OTHER_KEYS = GuestKeys.generate()


class TcpGuest:
    """The true guest in a pid namespace of its own, on a port of this host."""

    def __init__(self, process: asyncio.subprocess.Process, address: GuestAddress) -> None:
        self.process = process
        self.address = address

    def pids(self) -> list[int]:
        """The guest itself: `unshare` only waits for it."""
        with suppress(OSError):
            children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
            return [int(pid) for pid in children.split()]
        return []

    async def socket(self, epoch: int = 1, keys: GuestKeys = KEYS) -> socket.socket:
        return await connect(self.address, epoch, keys, 20)

    async def machine(self, epoch: int = 1) -> Machine:
        link = await GuestLink.over(await self.socket(epoch))
        return Machine("tcp", link, None, self.socket, None, fd_passing=False)

    async def stranger(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.address.host, self.address.port)


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[TcpGuest]:
    program = tmp_path / "guest.pyz"
    program.write_bytes(await asyncio.to_thread(bundle.build))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = GuestConfig(
        tcp=port,
        identity="sandbox-1",
        keys=KEYS.moduli,
        home="/tmp",
        env={"PATH": "/usr/bin:/bin"},
        records=str(tmp_path / "calls"),
    )
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--mount-proc", "--pid", "--fork", "--kill-child"),
        *("/usr/bin/python3", "-I", "-S", str(program), config.encode().decode()),
    )
    found = TcpGuest(process, GuestAddress("127.0.0.1", port, "sandbox-1"))
    async with asyncio.timeout(60):
        while True:
            with suppress(OSError):
                (await found.socket(0)).close()
                break
            await asyncio.sleep(0.02)
    yield found
    for pid in found.pids():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await process.wait()


async def say(machine: Machine, command: str) -> str:
    exit, output = await machine.output(command, timeout=60)
    assert exit.code == 0, output
    return output.decode()


async def test_who_signs_the_challenge_is_served_and_gets_no_descriptors(guest: TcpGuest) -> None:
    machine = await guest.machine()
    assert await say(machine, "echo hello") == "hello\n"
    assert not (await machine.hello()).hands
    await machine.write("/tmp/tcp-file", b"x" * 3_000_000)
    assert len(await machine.read_bytes("/tmp/tcp-file", limit=4_000_000)) == 3_000_000
    machine.close()


async def test_the_port_by_which_it_is_reached_is_none_that_a_program_opened(guest: TcpGuest) -> None:
    machine = await guest.machine()
    try:
        assert guest.address.port not in {one.port for one in await machine.ports()}
    finally:
        machine.close()


async def test_another_key_is_refused(guest: TcpGuest) -> None:
    with pytest.raises((NotThisGuest, ConnectionError)):
        await guest.socket(keys=OTHER_KEYS)


async def test_the_service_does_not_sign_for_another_sandbox_at_the_address(guest: TcpGuest) -> None:
    with pytest.raises(NotThisGuest, match="another sandbox"):
        await connect(GuestAddress(guest.address.host, guest.address.port, "sandbox-2"), 1, KEYS, 20)


async def test_an_answer_that_was_heard_is_good_for_nothing_else(guest: TcpGuest) -> None:
    reader, writer = await guest.stranger()
    nonce = (await reader.readexactly(42 + len("sandbox-1")))[8:40]
    answer = KEYS.sign(handshake.signed_text(nonce, b"sandbox-1", 1))
    again_reader, again = await guest.stranger()
    await again_reader.readexactly(42 + len("sandbox-1"))
    again.write(struct.pack(">QH", 1, len(answer)) + answer)
    assert await again_reader.read() == b""
    writer.write(struct.pack(">QH", 1, len(answer)) + answer)
    assert await reader.readexactly(1) == b"+"
    for one in (writer, again):
        one.close()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\0",
        struct.pack(">QH", 1, 0),
        struct.pack(">QH", 1, 256) + b"\0" * 256,
        struct.pack(">QH", 1, 256) + b"\xff" * 256,
        struct.pack(">QH", 2**64 - 1, 65535) + b"x" * 700,
        b"GET / HTTP/1.1\r\nHost: guest\r\n\r\n" * 40,
    ],
)
async def test_garbage_is_hung_up_on_and_moves_no_epoch(guest: TcpGuest, said: bytes) -> None:
    reader, writer = await guest.stranger()
    with suppress(OSError):  # it may have hung up before the last byte
        writer.write(said)
        writer.write_eof()
        assert not (await reader.read())[42 + len("sandbox-1") :]
    writer.close()
    machine = await guest.machine(1)
    assert await say(machine, "echo served") == "served\n"
    machine.close()


async def test_many_strangers_do_not_keep_the_service_out(guest: TcpGuest) -> None:
    strangers = [await guest.stranger() for _ in range(100)]
    machine = await guest.machine()
    assert await say(machine, "echo hello") == "hello\n"
    gone = 0
    for reader, _ in strangers[:50]:
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 10)
        gone += 1
    assert gone == 50
    machine.close()
    for _, writer in strangers:
        writer.close()


async def test_a_stranger_that_says_nothing_is_dropped(guest: TcpGuest) -> None:
    reader, writer = await guest.stranger()
    await asyncio.wait_for(reader.read(), 60)
    writer.close()


async def test_a_new_owner_cuts_the_one_before_and_finds_its_commands(guest: TcpGuest) -> None:
    first = await guest.machine(1)
    also = await guest.machine(1)
    async with first.run("echo begun; sleep 300", id="job") as process:
        async for _ in process.output:
            break
        second = await guest.machine(2)
        async with asyncio.timeout(20):
            await first.gone()
            await also.gone()
    assert "job" in (await second.hello()).commands
    with pytest.raises((NotThisGuest, ConnectionError)):
        await guest.socket(1)
    assert await say(second, "echo mine") == "mine\n"
    for machine in (first, also, second):
        machine.close()


async def test_halt_ends_every_process_before_it_answers_and_leaves_nothing_to_ask(guest: TcpGuest) -> None:
    machine = await guest.machine()
    span = str(secrets.randbelow(10**9) + 10**6)
    await say(machine, f"for i in 1 2 3; do setsid sleep {span} >/dev/null 2>&1 & done")
    assert await seen_on_host(span)
    link = await GuestLink.over(await guest.socket())
    await link.ask(operations.Halt(), limit=30)
    assert await gone_from_host(span, 0)
    with pytest.raises(Gone):
        await machine.ping()
    with pytest.raises(SandboxError):
        await link.ask(operations.Run(argv=["true"]), limit=30)
    await link.ask(operations.Halt(), limit=30)
    link.close()
    machine.close()
    assert guest.process.returncode is None


async def test_sigterm_ends_the_guest_at_once(guest: TcpGuest) -> None:
    machine = await guest.machine()
    span = str(secrets.randbelow(10**9) + 10**6)
    await say(machine, f"setsid sleep {span} >/dev/null 2>&1 &")
    os.kill(guest.pids()[0], signal.SIGTERM)
    async with asyncio.timeout(20):
        await machine.gone()
        await guest.process.wait()
    assert await gone_from_host(span, 10)
    machine.close()


def test_keys_are_made_once_and_can_be_rotated(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "guest.pem"
    made = GuestKeys.load(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert GuestKeys.load(file).moduli == made.moduli
    file.write_bytes(KEYS.to_pem() + made.to_pem())
    assert GuestKeys.load(file).moduli == [*KEYS.moduli, *made.moduli]
    text = b"text"
    assert handshake.is_signed(text, GuestKeys.load(file).sign(text), int(KEYS.moduli[0], 16))
    for bad in (b"", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"\xff" * 100):
        file.write_bytes(bad)
        with pytest.raises(Unusable):
            GuestKeys.load(file)


@pytest.mark.parametrize("said", [b"x" * 65536, b"cubicle1" + b"\0" * 32 + b"\xff\xff" + b"x" * 65536, b""])
async def test_who_talks_without_an_end_or_says_nothing_is_no_guest(said: bytes) -> None:
    heard = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        with suppress(OSError):
            while said:
                writer.write(said)
                await writer.drain()
                heard += len(said)
            await reader.read()
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match="speak as a guest" if said else None):
            await connect(GuestAddress("127.0.0.1", port, "sandbox-1"), 1, KEYS, 0.5)
    assert heard < 64 * 1024**2  # what the kernel took, nothing of it was read
