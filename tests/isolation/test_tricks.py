"""Ways out that take more than one step: races, the runtime's own weak moments, floods."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import HOME, UPLOADS, WRITABLE_ROOTS, Machine
from cubicle.machine.process import Process
from cubicle.sandbox.driver import Driver
from cubicle.sandbox.warm_pool import connect, new_name
from tests.drivers.sight import guest_on_host, in_gvisor
from tests.isolation.conftest import WALLED

ALIKE = [
    pytest.param(*maker.values, id=maker.id, marks=[*maker.marks, pytest.mark.long])
    if maker.id in ("docker-runsc", "podman")
    else maker
    for maker in WALLED
]
"""In an engine, gVisor and Podman's runc are what they are without it, and these tricks take seconds each."""
pytestmark = pytest.mark.parametrize("driver", ALIKE, indirect=True, scope="module")

HAMMER = """
import ctypes, errno, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
through = set()
until = time.monotonic() + 4
def victims():
    yield 1
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and name != "1" and b"guest.pyz" in open(f"/proc/{name}/cmdline", "rb").read(): yield int(name)
        except OSError: pass
while time.monotonic() < until:
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        for pid in victims():
            try: os.kill(pid, number)
            except OSError: pass
    if libc.ptrace(16, 1, 0, 0) == 0 or libc.ptrace(0x4206, 1, 0, 0) == 0: through.add("ptrace")
    for name in ("mem", "maps", "environ", "root/run/cubicle/guest.pyz", "cwd/run/cubicle/guest.pyz"):
        try:
            with open("/proc/1/" + name, "rb") as file:
                if file.read(1): through.add(name)
        except OSError: pass
    try:
        with open("/proc/1/mem", "r+b", buffering=0) as file: through.add("mem, to write")
    except OSError: pass
print(" ".join(sorted(through)) or "nothing")
"""


async def heard(process: Process) -> bytes:
    return b"".join([chunk async for _, chunk in process.output])


def names(environment: bytes) -> set[bytes]:
    return {line.split(b"=")[0] for line in environment.split(b"\0") if b"=" in line}


async def test_the_guest_stands_while_it_changes_its_identity(driver: Driver, machine: Machine) -> None:
    """It is the user for some microseconds whenever it starts a command; nothing gets hold of it then.

    On gVisor, which does not shield a first process from its sandbox, it is a helper that takes the blows.
    """
    gvisor = await in_gvisor(machine)
    hammering = asyncio.ensure_future(_hammered(machine))
    rounds = 0
    while not hammering.done():
        exits = await asyncio.gather(*(machine.output("echo up", timeout=100) for _ in range(3)))
        assert [(exit.code, output) for exit, output in exits] == [(0, b"up\n")] * 3
        rounds += 1
    seen = set((await hammering).decode().split()) - {"nothing"}
    assert rounds
    # gVisor shows every process's map and environment to all.
    assert seen <= ({"maps", "environ"} if gvisor else set())
    _, guests = await machine.output("cat /proc/1/environ")
    _, own = await machine.output("cat /proc/self/environ")
    assert names(guests) <= names(own) | {b"HOSTNAME"}, "what a command has itself is no secret"


OPEN_ALL = """
import os
for name in os.listdir("/proc/1/fd") if os.access("/proc/1/fd", os.R_OK) else []:
    for how in (os.O_RDONLY, os.O_WRONLY):
        try: os.close(os.open("/proc/1/fd/" + name, how | os.O_NONBLOCK))
        except OSError: continue
        try: print(os.readlink("/proc/1/fd/" + name).split(":")[0], ("r", "w")[how])
        except OSError: pass
"""


async def test_the_guests_own_descriptors_cannot_be_opened(machine: Machine) -> None:
    """gVisor lets commands try. What they get are the null device, the log, and the streams of commands such as they."""
    _, output = await machine.output(["python3", "-c", OPEN_ALL], timeout=100)
    opened = set(output.decode().splitlines())
    if not await in_gvisor(machine):
        assert not opened
    assert not [what for what in opened if what.startswith(("socket", "anon_inode", "/run/cubicle"))], opened


async def _hammered(machine: Machine) -> bytes:
    async with machine.run(["python3", "-c", HAMMER], timeout=200) as hammer:
        return await heard(hammer)


async def test_a_swapped_folder_does_not_lead_a_write_astray(machine: Machine) -> None:
    """A link that comes and goes where the service writes: it never lands behind the link, nor reads from there."""
    swap = (
        "mkdir -p ~/real; echo mine > ~/real/passwd; cd ~; until [ -e enough ]; do "
        "ln -sfn /etc spot; rm -f spot; ln -sfn real spot; rm -f spot; mkdir spot; rm -rf spot; done"
    )
    async with machine.run(swap, timeout=200) as racing:
        tried, end, swapping = 0, time.monotonic() + 5, asyncio.ensure_future(heard(racing))
        while tried < 30 or time.monotonic() < end:
            assert not swapping.done()
            tried += 1
            with contextlib.suppress(MachineError):
                await machine.write(f"{HOME}/spot/planted", b"x", roots=WRITABLE_ROOTS)
            with contextlib.suppress(MachineError):
                content = await machine.read_bytes(f"{HOME}/spot/passwd", limit=10**6, roots=WRITABLE_ROOTS)
                assert b"root:" not in content
        await machine.write(f"{HOME}/enough", b"")
        await swapping
    exit, _ = await machine.output("test ! -e /etc/planted")
    assert exit.code == 0


async def test_uploads_cannot_be_linked_or_swapped(machine: Machine) -> None:
    await machine.write(f"{UPLOADS}/file", b"original", as_root=True)
    for attempt in (
        f"ln {UPLOADS}/file ~/hard && echo changed > ~/hard",
        f"ln -sfn /tmp {UPLOADS}",
        f"mv {UPLOADS} {UPLOADS}.old",
        f"rm -rf {UPLOADS}",
        f"cp /dev/null {UPLOADS}/file",
        "chmod 777 /mnt/user-data",
    ):
        exit, _ = await machine.output(attempt)
        assert exit.code != 0, attempt
    assert await machine.read_bytes(f"{UPLOADS}/file", limit=100) == b"original"


async def test_links_into_the_guests_folder_lead_nowhere(machine: Machine) -> None:
    await machine.output("ln -s /run/cubicle/guest.pyz ~/guest; ln -s /run/cubicle ~/folder; ln -s /proc/1/root ~/root")
    for path in (f"{HOME}/guest", f"{HOME}/folder/guest.pyz", f"{HOME}/root/etc/shadow"):
        with pytest.raises(MachineError) as no:
            await machine.read_bytes(path, limit=10**7)
        assert no.value.code in ("permission", "not-found"), path
        with pytest.raises(MachineError):
            await machine.write(path, b"x")


RUNTIMES = ("runc", "crun", "runsc", "docker", "dockerd", "containerd", "containerd-shim-runc-v2")


def digests() -> dict[str, str]:
    found = {}
    for name in RUNTIMES:
        path = shutil.which(name, path="/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/bin")
        if path:
            found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return found


OVERWRITE = f"""
import os, time
until = time.monotonic() + {6 if os.environ.get("CUBICLE_LONG") else 2}
"""
OVERWRITE += """
written = []
held = set()
while time.monotonic() < until:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid(): continue
        try: fd = os.open(f"/proc/{pid}/exe", os.O_RDONLY)
        except OSError: continue
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
            os.close(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY))
            written.append(target)
        except OSError: pass
        os.close(fd)
print(written or "nothing")
"""


async def test_the_runtime_cannot_be_overwritten_from_inside(driver: Driver, machine: Machine) -> None:
    """CVE-2019-5736: a sandbox waits for the runtime to come in, and writes through its /proc/<pid>/exe."""
    before = await asyncio.to_thread(digests)
    await machine.output("printf '#!/proc/self/exe\\n' > ~/sh; chmod +x ~/sh")
    async with machine.run(["python3", "-c", OVERWRITE], timeout=200) as waiting:
        watching = asyncio.ensure_future(heard(waiting))
        while not watching.done():
            (await connect(driver, machine.name)).close()
            await driver.list()
            await driver.start(machine.name, None)
            await asyncio.sleep(0.1)
    assert watching.result() == b"nothing\n"
    assert await asyncio.to_thread(digests) == before


async def test_no_working_folder_leads_to_the_host(machine: Machine) -> None:
    """CVE-2024-21626: a descriptor of the host that the runtime left open, taken as working folder."""
    for number in range(3, 24):
        for path in (f"/proc/self/fd/{number}", f"/proc/1/fd/{number}", f"/proc/self/fd/{number}/../../.."):
            with contextlib.suppress(MachineError):
                _, output = await machine.output("pwd -P; ls -a; ls /", cwd=path, timeout=60)
                inside = output.split(b"\n")[0]
                exit, _ = await machine.output(["test", "-d", inside.decode()])
                assert exit.code == 0, output
                assert b"vmlinuz" not in output


async def test_no_socket_inside_speaks_for_the_host(machine: Machine) -> None:
    """Nothing that a command can connect to answers as the guest does; so no command can give the guest orders."""
    knock = """
import socket, struct, json
names = {line.split()[7] for line in open("/proc/net/unix").readlines()[1:] if len(line.split()) > 7}
names |= {"/run/cubicle/host/guest.sock", "/run/cubicle/guest.sock", "\\0guest"}
answered = []
for name in names:
    s = socket.socket(socket.AF_UNIX); s.settimeout(1)
    try:
        s.connect("\\0" + name[1:] if name.startswith("@") else name)
        s.sendall(b"hello" * 20)
        if s.recv(10): answered.append(name)
    except OSError: pass
print(answered or "nothing")
"""
    _, output = await machine.output(["python3", "-c", knock], timeout=100)
    assert output == b"nothing\n"


async def test_sandboxes_share_no_abstract_socket_and_no_memory(driver: Driver, machine: Machine) -> None:
    name = new_name()
    await driver.start(name, None)
    other = await connect(driver, name)
    serve = (
        "import socket,time; s=socket.socket(socket.AF_UNIX); s.bind('\\0meet'); s.listen();"
        "open('/dev/shm/meet','w').write('x'); print('up', flush=True); time.sleep(200)"
    )
    async with other.run(["python3", "-c", serve]) as server:
        assert (await anext(server.output))[1].startswith(b"up")
        meet = (
            "import socket,os; print(os.path.exists('/dev/shm/meet')); socket.socket(socket.AF_UNIX).connect('\\0meet')"
        )
        exit, output = await machine.output(["python3", "-c", meet])
        assert exit.code != 0
        assert b"False" in output
        assert b"ConnectionRefused" in output
    other.close()
    await driver.delete(name)


async def test_a_core_dump_reaches_no_handler_of_the_host(machine: Machine) -> None:
    _, output = await machine.output(
        "ulimit -Hc; ulimit -c unlimited 2>&1; sh -c 'kill -SEGV $$'; ls core* 2>/dev/null | wc -l"
    )
    lines = output.decode().split("\n")
    assert lines[0] == "0"
    assert "0" in output.decode().split()[-1]


def state_of(pid: int) -> str:
    """One letter, or that there is no such process; a dead one may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


@pytest.mark.timeout(900)
async def test_a_flood_of_processes_ends_with_its_sandbox(driver: Driver) -> None:
    """The host and the next sandbox go on while one is bombed, and what is left of the bomb goes with its stop."""
    bombed, calm = new_name(), new_name()
    await driver.start(bombed, None)
    await driver.start(calm, None)
    victim, neighbour = await connect(driver, bombed), await connect(driver, calm)
    pid, gvisor = await guest_on_host(driver, victim), await in_gvisor(victim)
    with contextlib.suppress(TimeoutError, SandboxError):
        async with asyncio.timeout(4):
            await victim.output("bomb() { bomb | bomb & }; bomb; sleep 30", timeout=30)
    exit, output = await neighbour.output("echo calm", timeout=100)
    assert (exit.code, output) == (0, b"calm\n")
    victim.close()
    while True:
        try:
            await driver.delete(bombed)
            break
        except SandboxError:  # Docker has been seen to take minutes to notice that gVisor is gone
            assert gvisor
            await asyncio.sleep(1)
    async with asyncio.timeout(60):  # what plays gVisor's kernel may take its time to die
        while state_of(pid) not in ("gone", "Z"):
            assert gvisor
            await asyncio.sleep(0.02)
    neighbour.close()
    await driver.delete(calm)
