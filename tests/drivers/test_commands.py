"""Commands in a sandbox: streams, time limits, ends, on every driver."""

from __future__ import annotations

import asyncio
import resource
import time

import pytest

from cubicle.guest.operations import Exit
from cubicle.machine.errors import MachineError
from cubicle.machine.machine import Machine
from cubicle.sandbox.warm_pool import connect
from tests.drivers.conftest import House
from tests.drivers.sight import in_gvisor

MB = 1_000_000


async def alive(machine: Machine, word: str) -> bool:
    """Whether a process of this name runs in the sandbox; one that only waits to be fetched does not."""
    exit, _ = await machine.output(f"ps -C {word} -o stat= | grep -qv ^Z", timeout=60)
    return exit.code == 0


async def until(machine: Machine, command: str) -> None:
    """Wait until a command succeeds."""
    async with asyncio.timeout(60):
        while (await machine.output(command, timeout=60))[0].code != 0:
            await asyncio.sleep(0.05)


async def out_of_time(machine: Machine, command: str, limit: float) -> tuple[Exit, float]:
    """The end of a command that its time limit ended after it had said `on`, with all its sleeps; and the limit.

    What a busy machine does not even get to do in a short limit, it does in a longer one.
    """
    for seconds in (limit, 10 * limit, 60.0):
        exit, output = await machine.output(command, timeout=seconds)
        assert exit.timed_out
        assert seconds <= exit.seconds < seconds + 30
        if output:
            break
    assert output == b"on\n"
    async with asyncio.timeout(60):  # who was killed may take its time to die
        while await alive(machine, "sleep"):
            await asyncio.sleep(0.05)
    return exit, seconds


async def test_commands_run_as_the_assistant_without_capabilities(machine: Machine) -> None:
    _, output = await machine.output("id -u; id -G; pwd; echo $HOME")
    assert output.decode().splitlines() == ["1000", "1000", "/home/assistant", "/home/assistant"]
    _, output = await machine.output("grep -E '^Cap(Inh|Prm|Eff|Amb)' /proc/self/status")
    held = dict(line.split() for line in output.decode().splitlines())  # gVisor does not show CapAmb
    assert {"CapInh:", "CapPrm:", "CapEff:"} <= set(held)
    assert set(held.values()) == {"0" * 16}


async def test_exit_codes_and_signals_are_told(machine: Machine) -> None:
    assert (await machine.output("exit 7"))[0].code == 7
    exit, _ = await machine.output("kill -KILL $$")
    assert (exit.code, exit.signal, exit.status) == (None, 9, 137)
    assert not exit.out_of_memory


async def test_output_and_errors_come_in_the_order_written(machine: Machine) -> None:
    _, output = await machine.output("for i in 1 2 3; do echo out$i; echo err$i >&2; done")
    assert output == b"out1\nerr1\nout2\nerr2\nout3\nerr3\n"


async def test_streams_can_be_kept_apart(machine: Machine) -> None:
    async with machine.run("echo out; echo err >&2", merge=False) as process:
        heard = {stream: chunk async for stream, chunk in process.output}
    assert heard == {1: b"out\n", 2: b"err\n"}


async def test_output_comes_while_the_command_runs(machine: Machine) -> None:
    async with machine.run("echo first; sleep 60") as process:
        async with asyncio.timeout(50):
            assert (await anext(process.output))[1] == b"first\n"


async def test_the_environment_and_folder_are_as_asked(machine: Machine) -> None:
    _, output = await machine.output("echo $WORD; pwd", cwd="/tmp", env={"WORD": "a b"})
    assert output == b"a b\n/tmp\n"


async def test_a_missing_folder_is_said(machine: Machine) -> None:
    with pytest.raises(MachineError) as no:
        await machine.output("true", cwd="/nowhere")
    assert no.value.code == "bad-cwd"
    assert "/nowhere" in str(no.value)


async def test_a_missing_program_is_said(machine: Machine) -> None:
    with pytest.raises(MachineError) as no:
        await machine.output(["/no/such/program"])
    assert no.value.code == "bad-command"


async def test_a_time_limit_ends_the_command_and_keeps_what_it_printed(machine: Machine) -> None:
    await out_of_time(machine, "echo on; sleep 600; echo after", 0.3)


async def test_a_command_that_ignores_term_is_killed_after_two_seconds(machine: Machine) -> None:
    exit, limit = await out_of_time(machine, "trap '' TERM; echo on; while :; do sleep 0.1; done", 1.0)
    assert exit.seconds > limit + 1.7


async def test_the_time_limit_reaches_daemons_of_any_kind(machine: Machine) -> None:
    """A new session, a double fork, an empty environment and closed pipes do not save a process from the limit."""
    daemon = "(setsid env -i sleep 600 <&- >&- 2>&- &); (setsid nohup sleep 601 >/dev/null 2>&1 &)"
    started = "until (($(pgrep -cx sleep) == 2)); do :; done"
    await out_of_time(machine, f"{daemon}; {started}; echo on; sleep 600", 0.5)


async def test_leaving_early_kills_everything_within_a_second(machine: Machine) -> None:
    """The quickest of ten, when the last question is asked: a busy machine may delay one, never all."""
    stray = "(setsid sleep 600 &); trap '' TERM; until pgrep -x sleep >/dev/null; do :; done"
    quickest = 100.0
    for _ in range(10):
        async with machine.run(f"{stray}; echo on; while :; do sleep 0.1; done") as process:
            assert (await anext(process.output))[1] == b"on\n"
            assert await alive(machine, "sleep")
            assert process.exit is None
        left, asked, question = time.monotonic(), time.monotonic(), 0.0
        async with asyncio.timeout(60):
            while await alive(machine, "sleep"):
                question = max(question, time.monotonic() - asked)
                asked = time.monotonic()
        quickest = min(quickest, asked - left - question)  # not how long a question takes
        if quickest < 1:
            return
    raise AssertionError(f"gone only after {quickest:.1f} s")


async def test_a_command_whose_start_nobody_heard_of_may_stay(machine: Machine) -> None:
    """Its caller is called off after the guest was asked, and before it says that it started it."""

    async def start() -> None:
        command = "until [ -e /tmp/go ]; do sleep 0.05; done; touch /tmp/stayed"
        async with machine.run(command, id="unheard", keep=True, unattended=600, stays=lambda: True):
            raise AssertionError("it was called off too late")

    starting = asyncio.create_task(start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await machine.output("touch /tmp/go", timeout=60)
    await until(machine, "[ -e /tmp/stayed ]")


async def test_a_background_process_does_not_hold_the_answer_and_lives_on(machine: Machine) -> None:
    """It may also go on writing to the output that nobody reads any more."""
    began = time.monotonic()
    exit, output = await machine.output("(while :; do echo noise; sleep 0.05; done) & echo done")
    assert exit.code == 0
    assert output.splitlines().count(b"done") == 1  # whichever of the two came first
    assert 0.4 < time.monotonic() - began < 60  # the noise has no end
    await asyncio.sleep(0.3)
    _, count = await machine.output("ps -eo args | grep -c '[w]hile :'")
    assert int(count) >= 1  # two while it forks


async def test_a_silent_background_process_costs_no_wait(machine: Machine) -> None:
    quickest = {"true": 100.0, "sleep 100 >/dev/null 2>&1 &": 100.0}
    for turn in range(30):
        for command in quickest:
            began = time.monotonic()
            await machine.output(command)
            quickest[command] = min(quickest[command], time.monotonic() - began)
        nothing, silent = quickest.values()
        if turn >= 4 and silent < nothing + 0.4:  # what keeps the pipe open costs 0.5
            return
    raise AssertionError(f"{silent - nothing:.2f} s more than nothing")


async def test_a_command_that_closes_its_pipes_and_goes_on_is_waited_for(machine: Machine) -> None:
    exit, output = await machine.output("echo said; exec >&- 2>&-; sleep 0.5; exit 3")
    assert (exit.code, output) == (3, b"said\n")
    assert exit.seconds >= 0.5


async def test_input_reaches_the_command(machine: Machine) -> None:
    async with machine.run("wc -c", stdin=True) as process:
        await process.write(b"x" * (3 * MB))
        process.close_input()
        assert [chunk async for _, chunk in process.output] == [b"3000000\n"]


async def test_a_command_that_never_reads_its_input_holds_nobody_up(machine: Machine) -> None:
    async with machine.run("sleep 600", stdin=True) as process:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await process.write(b"x" * (50 * MB))
        assert (await machine.output("echo free"))[1] == b"free\n"


async def test_input_that_is_still_to_be_read_when_the_command_ends_is_in_nobodys_way(machine: Machine) -> None:
    """What it leaves behind holds the other end of its input open, and does not read it either."""
    async with machine.run("sleep 600 <&0 >/dev/null 2>&1 & sleep 0.3", stdin=True) as process:
        writing = asyncio.create_task(process.write(b"x" * (5 * MB)))
        assert (await process.wait()).code == 0
        await writing
    async with asyncio.timeout(100), machine.run("sleep 0.1; wc -c", stdin=True) as process:
        await process.write(b"x" * (3 * MB))
        process.close_input()
        assert [chunk async for _, chunk in process.output] == [b"3000000\n"]


async def test_input_to_a_command_that_ended_is_dropped(machine: Machine) -> None:
    async with machine.run("exit 4", stdin=True) as process:
        assert (await process.wait()).code == 4
        await process.write(b"late")


async def test_a_terminal_has_a_size_and_follows_a_resize(machine: Machine) -> None:
    async with machine.run(["bash", "-c", "stty size; read x; stty size; tty"], pty=(80, 24), timeout=60) as process:
        heard = b""
        async for _, chunk in process.output:
            heard += chunk
            if heard.endswith(b"24 80\r\n"):
                await process.resize(100, 40)
                await process.write(b"go\r")
    assert b"40 100" in heard
    assert b"/dev/pts/" in heard


async def test_a_signal_reaches_the_group(machine: Machine) -> None:
    async with machine.run("trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done") as process:
        output = process.output
        assert (await anext(output))[1] == b"ready\n"
        await process.signal(2)
        assert (await anext(output))[1] == b"caught\n"
        assert (await process.wait()).code == 5


async def test_large_output_arrives_whole(machine: Machine) -> None:
    total = 0
    async with machine.run("head -c 30000000 /dev/zero") as process:
        async for _, chunk in process.output:
            total += len(chunk)
    assert total == 30 * MB


async def guest_kilobytes(machine: Machine) -> int:
    """The most memory that the guest ever had; gVisor shows only what it has now."""
    _, output = await machine.output("awk '/VmHWM|VmRSS/ {print $2}' /proc/1/status")
    return max(int(kilobytes) for kilobytes in output.split())


async def test_a_slow_reader_holds_back_the_command_not_the_memory(machine: Machine) -> None:
    """Nobody reads for a while: the command stands still, both sides stay small, others go on."""
    ours, its = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, await guest_kilobytes(machine)
    async with machine.run("head -c 100000000 /dev/zero; echo end > ~/end") as process:
        output = process.output
        await anext(output)
        await asyncio.sleep(0.5)
        assert (await machine.output("cat ~/end 2>/dev/null"))[1] == b""
        total = 0
        async for _, chunk in output:
            total += len(chunk)
    assert total > 90 * MB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - ours < 20_000
    assert await guest_kilobytes(machine) - its < 20_000


async def test_many_commands_run_side_by_side(machine: Machine) -> None:
    """Each waits for all the others, without a program of its own: one after the other, none would ever end."""
    await machine.output("mkfifo ~/pause")
    meet = ": > ~/here-$i; while all=(~/here-*); ((${#all[@]} < 40)); do read -rt 0.1 <>~/pause; done; echo $i"
    results = await asyncio.gather(*(machine.output(meet, env={"i": str(i)}, timeout=200) for i in range(40)))
    assert [output for _, output in results] == [f"{i}\n".encode() for i in range(40)]


async def test_zombies_are_reaped(machine: Machine) -> None:
    orphans = "for i in $(seq 20); do (setsid touch ~/was-$i &); done"
    await machine.output(f"{orphans}; until (($(ls ~ | grep -c was-) == 20)); do :; done", timeout=60)
    await until(machine, "! ps -eo stat | grep -q ^Z")


async def test_a_command_outlives_its_connection_and_is_heard_again(house: House, machine: Machine) -> None:
    second = await connect(house.driver, machine.name)
    gate = "until [ -e ~/go ]; do sleep 0.05; done"
    async with second.run(f"echo one; {gate}; echo two; exit 9", id="again") as process:
        assert (await anext(process.output))[1] == b"one\n"
        process.detach()
        second.close()
        await second.gone()
        async with machine.attach("again") as heard:
            await machine.output("touch ~/go")
            output = b"".join([chunk async for _, chunk in heard.output])
            assert output == b"one\ntwo\n"
            assert (await heard.wait()).code == 9
    async with machine.attach("again") as late:
        assert b"".join([chunk async for _, chunk in late.output]) == b"one\ntwo\n"
        assert (await late.wait()).code == 9


async def test_only_the_last_part_is_kept_for_a_late_listener(house: House, machine: Machine) -> None:
    second = await connect(house.driver, machine.name)
    async with second.run("sleep 0.3; seq 1000000; touch ~/told", id="long") as process:
        process.detach()
        second.close()
        await second.gone()
    await machine.output("while ! test -e ~/told; do sleep 0.05; done", timeout=60)
    async with machine.attach("long") as heard:
        output = b"".join([chunk async for _, chunk in heard.output])
    assert output.endswith(b"1000000\n")
    assert 60_000 < len(output) < 200_000
    assert heard.offset > 6 * MB


async def test_a_detached_command_goes_on_when_the_block_ends(machine: Machine) -> None:
    async with machine.run("sleep 0.4; echo x > ~/went-on", id="on") as process:
        process.detach()
    await until(machine, "grep -qx x ~/went-on")


async def test_an_unknown_command_cannot_be_attached_to(machine: Machine) -> None:
    with pytest.raises(MachineError) as no:
        async with machine.attach("nobody"):
            pass
    assert no.value.code == "not-found"


async def test_the_guest_is_out_of_the_commands_reach(machine: Machine) -> None:
    """Commands can neither kill, trace, read nor impersonate PID 1."""
    tries = [
        "kill -KILL 1",
        "kill -STOP 1",
        "cat /proc/1/environ",
        "cat /proc/1/mem",
        "ls /proc/1/fd",
        "ls /run/cubicle",
        "cat /run/cubicle/guest.pyz",
        "echo 0 > /proc/1/oom_score_adj",
        "touch /run/cubicle/x",
    ]
    if await in_gvisor(machine):
        # gVisor shows everybody the environment and the descriptors' names of every process; the guest's hold nothing.
        tries = [attempt for attempt in tries if attempt not in ("cat /proc/1/environ", "ls /proc/1/fd")]
    for attempt in tries:
        exit, output = await machine.output(attempt, timeout=60)
        assert exit.code != 0 or attempt.startswith("kill"), (attempt, output)
    await machine.ping()


async def test_a_very_long_command_is_refused_with_advice(machine: Machine) -> None:
    with pytest.raises(MachineError) as no:
        await machine.output("echo " + "x" * 400_000)
    assert no.value.code == "too-big"
    assert "file" in str(no.value)


async def test_a_command_is_heard_to_its_end_though_its_host_left_before_it_started(
    machine: Machine, house: House
) -> None:
    """The connection is cut when the guest was asked and has not answered. The host comes back after the limit."""
    command = "echo begun; sleep 0.5; echo ended"

    async def start(number: int) -> None:
        id = f"alone-{number}"
        async with machine.run(command, id=id, keep=True, unattended=600, timeout=4, stays=lambda: True):
            raise AssertionError("the connection was cut too late")

    starting = [asyncio.create_task(start(number)) for number in range(6)]
    await asyncio.sleep(0)
    machine.close()
    await asyncio.gather(*starting, return_exceptions=True)
    await asyncio.sleep(7)
    second = await connect(house.driver, machine.name)
    for number in range(6):
        exit, output = await second.output(command, id=f"alone-{number}", keep=True, timeout=60)
        assert (exit.timed_out, exit.code, output) == (False, 0, b"begun\nended\n")
    second.close()
