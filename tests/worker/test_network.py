"""The network worker: it serves sandboxes, and its death breaks none of them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cubicle.core.network import NetworkMode
from cubicle.egress.policy import Policy, Rule, Scheme
from cubicle.egress.quota import FOLDER
from cubicle.machine.machine import Machine
from cubicle.sandbox.warm_pool import connect
from cubicle.worker import network, spawner
from cubicle.worker.channel import channel_pair
from tests.egress.servers import Server, http_server
from tests.worker.conftest import CHAT, OTHER, Ground, ground_of, shell, until

pytestmark = pytest.mark.anyio

AGAIN = "--retry 200 --retry-delay 0 --retry-max-time 60 --retry-all-errors"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "www").mkdir()
    with http_server(tmp_path / "www") as running:
        yield running


async def fetch(machine: Machine, server: Server, options: str = "") -> str:
    """What the server says, by the proxy; the test's servers are on the loopback, which programs go to directly."""
    return await shell(machine, f"curl -sS --max-time 60 --noproxy '' {options} http://127.0.0.1:{server.port}/echo")


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def kill(ground: Ground) -> float:
    """Kill the worker; seconds until another one is up."""
    killed = ground.network.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    began = time.monotonic()
    await until(lambda: ground.network.pid not in (None, killed))
    return time.monotonic() - began


async def test_a_request_goes_out_through_the_worker(ground: Ground, server: Server) -> None:
    machine = await ground.machine()
    assert ground.network.pid not in (None, os.getpid())
    assert '"GET"' in await fetch(machine, server)


async def test_a_killed_worker_is_replaced_at_once_and_no_command_ends(ground: Ground, server: Server) -> None:
    machine = await ground.machine()
    async with machine.run("cat", stdin=True) as running:
        for _ in range(2):
            seconds = await kill(ground)
            print(f"back after {seconds:.3f} s")
            assert seconds < 5, "on a quiet machine it is a tenth of a second"
            assert '"GET"' in await fetch(machine, server, AGAIN)
        await running.write(b"still here\n")
        _, said = await anext(aiter(running.output))
        assert said == b"still here\n"
        await running.kill()
    assert machine.alive


async def test_a_start_that_is_given_up_keeps_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    began, made = asyncio.Event(), channel_pair()

    async def never(channel: int) -> spawner.Running:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(spawner, "start_program", never)
    monkeypatch.setattr(spawner, "channel_pair", lambda: made)
    starting = asyncio.create_task(spawner.Spawner().start())
    await began.wait()
    starting.cancel()
    await asyncio.wait([starting])
    assert [sock.fileno() for sock in made] == [-1, -1]


async def test_a_killed_spawner_is_replaced_beside_the_worker_that_goes_on(ground: Ground, server: Server) -> None:
    machine = await ground.machine()
    worker, spawner = ground.network.pid, ground.network._spawner.pid
    assert spawner is not None
    os.kill(spawner, signal.SIGKILL)
    await until(lambda: not is_there(spawner))
    assert '"GET"' in await fetch(machine, server)
    await until(lambda: ground.network._spawner.pid not in (None, spawner))
    assert ground.network.pid == worker
    await kill(ground)
    assert '"GET"' in await fetch(machine, server, AGAIN)


async def test_both_killed_at_once_are_replaced(ground: Ground, server: Server) -> None:
    machine = await ground.machine()
    worker, spawner = ground.network.pid, ground.network._spawner.pid
    assert worker is not None
    assert spawner is not None
    for pid in (spawner, worker):
        os.kill(pid, signal.SIGKILL)
    await until(lambda: ground.network.pid not in (None, worker))
    assert '"GET"' in await fetch(machine, server, AGAIN)


async def test_one_that_ends_again_and_again_is_started_less_and_less_often(
    ground: Ground, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_PAUSES", (0.0, 0.0, 0.0, 0.3, 0.6))
    await ground.machine()
    times = [await kill(ground) for _ in range(4)]
    assert times[2] > 0.3
    assert times[3] > 0.6
    said = [record.getMessage() for record in caplog.records if record.name == "cubicle.worker.network"]
    assert said[:2] == ["the network worker ended (SIGKILL) and is started again"] * 2
    assert "ended 4 times in a row (SIGKILL); sandboxes have no network for 0.6 s" in said[-1]


async def test_one_that_hangs_is_killed(
    ground: Ground, server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "_PING_SECONDS", 1.0)
    monkeypatch.setattr(network, "_PING_EVERY", 0.1)
    machine = await ground.machine()
    hung = ground.network.pid
    assert hung is not None
    os.kill(hung, signal.SIGSTOP)
    await until(lambda: ground.network.pid not in (None, hung))
    assert '"GET"' in await fetch(machine, server, AGAIN)
    assert "does not answer and is killed" in caplog.text


SERVICE = """
import asyncio, sys
from pathlib import Path
from tests.worker.conftest import ground_of

async def main():
    async with ground_of(Path(sys.argv[1])) as ground:
        while ground.network.pid is None:
            await asyncio.sleep(0.01)
        print(ground.network.pid, ground.network._spawner.pid, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
async def test_nothing_outlives_the_service(tmp_path: Path, how: signal.Signals) -> None:
    root = Path(__file__).parents[2]
    service = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVICE, str(tmp_path)), cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert service.stdout is not None
    pids = [int(text) for text in (await service.stdout.readline()).split()]
    assert len(pids) == 2
    service.send_signal(how)
    await service.wait()
    await until(lambda: not any(map(is_there, pids)), 30)


async def test_the_last_rules_that_could_be_used_hold_for_the_next_worker(tmp_path: Path, server: Server) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('contact = "first"')
    async with ground_of(tmp_path, policy=Policy(NetworkMode.NONE), rules_file=rules) as ground:
        machine = await ground.machine()
        assert "ask first" in await fetch(machine, server)
        rules.write_text('contact = "second"')
        assert "ask second" in await fetch(machine, server)
        await until(lambda: b"second" in ground.network._rulebook.source.content)  # type: ignore[union-attr]
        rules.write_text("no [ rules")
        assert "ask second" in await fetch(machine, server)
        await kill(ground)
        assert "ask second" in await fetch(machine, server, AGAIN)
        rules.write_text('contact = "third"')
        assert "ask third" in await fetch(machine, server)


async def test_headers_of_a_chat_are_asked_for_each_time_and_are_in_no_log(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    values = ["hunter-one", "hunter-two"]

    async def additions(chat: object) -> tuple[Rule, ...]:
        value = values.pop(0)
        return (Rule("token", hosts=("localhost",), scheme=Scheme.HTTP, inject=(("X-Token", value),)),)

    async with ground_of(tmp_path, additions=additions) as ground:
        machine = await ground.machine()
        for wanted in ("hunter-one", "hunter-two"):
            said = await shell(machine, f"curl -sS --noproxy '' --max-time 60 http://localhost:{server.port}/echo")
            assert json.loads(said)["headers"]["x-token"] == wanted
        await until(lambda: sum("egress allowed" in line.getMessage() for line in caplog.records) == 2)
    assert "hunter" not in caplog.text
    assert not any("hunter" in str(vars(record)) for record in caplog.records)


async def test_a_refusal_is_noted_before_the_command_ends_and_in_the_audit(
    tmp_path: Path, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with ground_of(tmp_path, policy=Policy(NetworkMode.ALLOWLIST)) as ground:
        machine = await ground.machine()
        for number in range(20):
            with machine.refusals.heard() as heard:
                await shell(machine, f"curl -s http://n{number}.example/")
                assert [f"n{number}.example:80" in note for note in heard] == [True]
        assert machine.refusals.latest("n19.example:80") is not None
    (line,) = [record for record in caplog.records if getattr(record, "host", "") == "n7.example"]
    assert (line.name, line.levelname, line.getMessage()) == ("cubicle.egress", "WARNING", "egress denied")
    assert vars(line)["chat"] == CHAT.id


async def test_a_flood_of_lines_is_cut_and_summed_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    async with ground_of(tmp_path, policy=Policy(NetworkMode.NONE)) as ground:
        machine, other = await ground.machine(), await ground.machine(OTHER)
        many = "for i in $(seq 20); do curl -s $(for j in $(seq 50); do echo http://10.0.0.1/; done) & done; wait"
        await shell(machine, f"({many}) >/dev/null 2>&1")
        await shell(other, "curl -s http://other.example/")
        lines = [record for record in caplog.records if record.name == "cubicle.egress"]
    mine = [record for record in lines if vars(record)["chat"] == CHAT.id]
    assert 500 <= len(mine) < 900
    assert [vars(record)["host"] for record in lines if vars(record)["chat"] == OTHER.id] == ["other.example"]


async def test_what_a_chat_used_is_kept_and_removed_with_the_chat(tmp_path: Path, server: Server) -> None:
    record = tmp_path / "egress" / FOLDER / CHAT.digest
    async with ground_of(tmp_path) as ground:
        machine = await ground.machine()
        await fetch(machine, server)
    used = json.loads(record.read_text())["bytes"]
    assert used > 0
    async with ground_of(tmp_path) as ground:
        machine = await ground.machine()
        await fetch(machine, server)
        await until(lambda: json.loads(record.read_text())["bytes"] > used)
        await ground.network.forget(CHAT)
        assert not record.exists()
        await kill(ground)
        record.write_text("left over")
        await ground.network.forget(CHAT)
        assert not record.exists()


async def test_a_guest_that_breaks_a_rule_before_the_worker_is_cut_off_by_the_service(ground: Ground) -> None:
    await ground.machine(OTHER)
    await ground.driver.start(CHAT.digest, CHAT.digest)
    machine = await connect(ground.driver, CHAT.digest)
    theirs, ours = socket.socketpair()
    theirs.sendall(b"\xff" * 64)

    async def reach() -> socket.socket:
        return ours

    machine._reach = reach
    async with ground.network.attached(CHAT, machine), asyncio.timeout(60):
        await machine.gone()
    assert machine.offence
    theirs.close()
    await ground.driver.delete(CHAT.digest)


async def test_a_taken_port_is_gone_around_by_each_worker(ground: Ground, server: Server) -> None:
    machine = await ground.machine()
    squatter = """
import socket, time
while True:
    try:
        server = socket.create_server(("127.0.0.1", 3128))
        break
    except OSError:
        time.sleep(0.001)
print("taken", flush=True)
time.sleep(1000)
"""
    async with machine.run(["python3", "-c", squatter]) as taking:
        await kill(ground)
        async with asyncio.timeout(20):
            taken = asyncio.create_task(anext(aiter(taking.output)))  # type: ignore[arg-type]
            await until(lambda: taken.done() or ground.network.pid is not None)
        while not taken.done():  # the worker was quicker: once more
            await kill(ground)
            await asyncio.sleep(0.05)
        await until(lambda: machine.environment["http_proxy"] != "http://127.0.0.1:3128")
        assert '"GET"' in await fetch(machine, server, AGAIN)
        await taking.kill()
