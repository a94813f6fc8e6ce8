"""Escape probes: a throw-away sandbox tries to get out, and a report says what held."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from cubicle.isolation import network_probes
from cubicle.isolation.exhaustion import RESOURCES, exhausted
from cubicle.isolation.probe import PRELUDE, EscapeProbe, batch
from cubicle.isolation.probes import ATTEMPTS
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import Machine
from cubicle.sandbox.driver import Driver, SandboxLimits
from cubicle.sandbox.warm_pool import connect, new_name

# What was not tried counts as open, so a busy machine is given its time.
_ATTEMPT_SECONDS = 120.0
_BATCH_SECONDS = 600.0
_NOT_THERE = frozenset({"ENOENT", "ECONNREFUSED", "EACCES"})


_HOST_ATTEMPTS = (
    ("host files", "a file of the host"),
    ("network", "a port of the host's loopback"),
    ("network", "an abstract socket of the host"),
)


_ALONE = frozenset({"an interface besides loopback"})
"""What holds only where a sandbox has no network at all."""


class Strength(StrEnum):
    """What stands between a sandbox and the host's kernel."""

    NONE = "none"
    NAMESPACES = "namespaces"
    GVISOR = "gVisor"
    MACHINE = "virtual machine"


class ProbeVerdict(StrEnum):
    HOLDS = "holds"
    WEAK = "weak"
    """It stands, but not as strong as it could."""
    UNCHECKED = "not checked"
    """It could not be tried from here."""
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One layer, tried."""

    layer: str
    attempt: str
    verdict: ProbeVerdict
    said: str = ""
    """What the sandbox answered, where the layer does not hold."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was found, for operators."""

    strength: Strength
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def missing(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is ProbeVerdict.MISSING]

    @property
    def weak(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is ProbeVerdict.WEAK]

    @property
    def unchecked(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict is ProbeVerdict.UNCHECKED]

    def told(self) -> dict[str, Any]:
        """As JSON tells it. `holds` means that each was tried and none is open."""
        return {
            "strength": self.strength.value,
            "holds": not self.missing and not self.unchecked,
            "not_checked": len(self.unchecked),
            "attempts": len(self.findings),
            "findings": [asdict(finding) for finding in self.findings],
        }

    @classmethod
    def heard(cls, told: dict[str, Any]) -> Report:
        """From what `told` says. Raises ValueError, KeyError or TypeError."""
        findings = (Finding(f["layer"], f["attempt"], ProbeVerdict(f["verdict"]), f["said"]) for f in told["findings"])
        return cls(Strength(told["strength"]), tuple(findings))


_ELSEWHERE = [
    Finding(
        layer,
        name,
        ProbeVerdict.UNCHECKED,
        "the engine is not on this service's host, where nothing could be put to find",
    )
    for layer, name in _HOST_ATTEMPTS
]


async def prove(
    driver: Driver, limits: SandboxLimits, *, kernel: str, here: bool = True, exhaust: bool = True
) -> Report:
    """Start sandboxes, try every layer from inside, and remove them. `kernel` is the release of the kernel that the
    sandboxes' host runs, and `here` says that this process is on that host; `exhaust` also uses up processes, memory
    and what the kernel shares out, which takes seconds.

    Raises SandboxError when no sandbox can be had.
    """
    async with _sandbox(driver) as machine, _sandbox(driver) as other:
        strength = await _strength(machine, kernel, here)
        networked = await driver.address(machine.name) is not None
        findings = await _try_all(machine, strength, _ALONE if networked else frozenset())
        if not driver.capabilities.hides_kernel_files:
            findings = [_shown(finding) for finding in findings]
        if networked:
            findings += await _reach_network(driver, machine, other)
        else:
            findings += await _reach_host(machine, strength) if here else _ELSEWHERE
        findings += await _reach_sandbox(machine, other, strength)
        findings.append(await _user_namespace(machine, strength))
        findings.append(await _disk(machine, limits))
    if exhaust:
        findings += await _limits(driver, limits, strength)
        findings += await _shared(driver, here)
    return Report(strength, tuple(findings))


@asynccontextmanager
async def _sandbox(driver: Driver) -> AsyncIterator[Machine]:
    name = new_name()
    try:
        await driver.start(name, None)
        machine = await connect(driver, name)
        try:
            yield machine
        finally:
            machine.close()
    finally:
        await driver.delete(name)


async def said(machine: Machine, argv: list[str] | str, seconds: float = _ATTEMPT_SECONDS) -> str:
    """The last line that a program prints."""
    try:
        exit, output = await machine.output(argv, timeout=seconds)
    except SandboxError as error:
        return f"UNTRIED {error}"
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else f"SILENT {exit.status}"


async def _strength(machine: Machine, kernel: str, here: bool) -> Strength:
    _, told = await machine.output("dmesg 2>/dev/null; uname -r", timeout=_ATTEMPT_SECONDS)
    text = told.decode(errors="replace")
    if "gVisor" in text:
        return Strength.GVISOR
    if kernel and text.strip().splitlines()[-1:] != [kernel]:
        return Strength.MACHINE
    if not here:
        return Strength.NAMESPACES
    _, pid = await machine.output("readlink /proc/self/ns/pid", timeout=_ATTEMPT_SECONDS)
    own = await asyncio.to_thread(lambda: Path("/proc/self/ns/pid").readlink())
    return Strength.NONE if pid.decode().strip() == str(own) else Strength.NAMESPACES


async def _try_all(machine: Machine, strength: Strength, without: frozenset[str]) -> list[Finding]:
    attempts = [attempt for attempt in ATTEMPTS if attempt.name not in without]
    answers = await answers_to(machine, [attempt.source for attempt in attempts])
    return [_judged(attempt, heard, strength) for attempt, heard in zip(attempts, answers, strict=True)]


async def _reach_network(driver: Driver, machine: Machine, other: Machine) -> list[Finding]:
    """A sandbox on a network has an interface, and nothing may go through it."""
    own, neighbour = await driver.address(machine.name), await driver.address(other.name)
    if own is None or neighbour is None:
        raise SandboxError("A sandbox on a network has no address any more.")
    targets = {what: (host, port) for what, host, port in (await driver.host()).network_targets}
    verdicts = {True: ProbeVerdict.HOLDS, False: ProbeVerdict.MISSING, None: ProbeVerdict.UNCHECKED}
    return [
        Finding(one.layer, one.attempt, verdicts[one.held], "" if one.held else one.said)
        for one in await network_probes.try_network(machine, other, own, neighbour, targets)
    ]


async def answers_to(machine: Machine, sources: list[str]) -> list[str]:
    """What each program prints last; one that could not be tried says so."""
    _, output = await machine.output(batch(sources), timeout=_BATCH_SECONDS)
    heard: list[str] = []
    for line in output.decode(errors="replace").splitlines():
        try:
            heard.append(str(json.loads(line))[:200])
        except ValueError:
            continue
    return [*heard, *["UNTRIED"] * len(sources)][: len(sources)]


def _shown(finding: Finding) -> Finding:
    """Where nobody can hide them, names and sizes of the host's disks are seen; nothing that is on them."""
    if (finding.layer, finding.verdict, finding.said) != ("host files", ProbeVerdict.MISSING, "SHOWN"):
        return finding
    advice = "pods see it: a runtime class with a kernel of its own (gVisor, Kata) hides it"
    return Finding(finding.layer, finding.attempt, ProbeVerdict.WEAK, advice)


def _judged(attempt: EscapeProbe, heard: str, strength: Strength) -> Finding:
    if attempt.holds(heard, strength in (Strength.GVISOR, Strength.MACHINE)):
        return Finding(attempt.layer, attempt.name, ProbeVerdict.HOLDS)
    return Finding(attempt.layer, attempt.name, ProbeVerdict.MISSING, heard)


async def _reach_host(machine: Machine, strength: Strength) -> list[Finding]:
    """What lies on its host: a file, a port, an abstract socket, put there for it by this process."""
    secret = secrets.token_hex(16)
    with tempfile.NamedTemporaryFile("w", prefix="cubicle-wall-") as canary, socket.socket() as port:
        await asyncio.to_thread(_write, canary, secret)
        port.bind(("127.0.0.1", 0))
        port.listen()
        with socket.socket(socket.AF_UNIX) as hidden:
            hidden.bind(f"\0{secret}")
            hidden.listen()
            file, loopback, abstract = _HOST_ATTEMPTS
            return await _tried(
                machine,
                strength,
                {
                    file: f"reading({canary.name!r})",
                    loopback: f"attempt(lambda: socket.create_connection({port.getsockname()!r}, 20) and None)",
                    abstract: f"attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0{secret}'))",
                },
            )


async def _reach_sandbox(machine: Machine, other: Machine, strength: Strength) -> list[Finding]:
    """What lies in another sandbox of the same host."""
    secret = secrets.token_hex(16)
    await other.output(
        f"echo {secret} > ~/{secret}; exec -a {secret} sleep 600 >/dev/null 2>&1 &", timeout=_ATTEMPT_SECONDS
    )
    tries = {
        ("processes", "one of another sandbox"): _LOOK % secret,
        ("other sandboxes", "a file of another"): f"reading('/home/assistant/{secret}')",
    }
    return await _tried(machine, strength, tries)


async def _tried(machine: Machine, strength: Strength, tries: dict[tuple[str, str], str]) -> list[Finding]:
    attempts = [EscapeProbe(layer, name, program, _NOT_THERE) for (layer, name), program in tries.items()]
    answers = await answers_to(machine, [attempt.source for attempt in attempts])
    return [_judged(attempt, heard, strength) for attempt, heard in zip(attempts, answers, strict=True)]


def _write(file: IO[str], text: str) -> None:
    file.write(text)
    file.flush()


async def _user_namespace(machine: Machine, strength: Strength) -> Finding:
    """Root of the sandbox should be nobody on the host."""
    mapped = (await said(machine, "cat /proc/1/uid_map")).split()
    if strength in (Strength.GVISOR, Strength.MACHINE) or (len(mapped) == 3 and mapped[:2] != ["0", "0"]):
        return Finding("user namespace", "be root of the host's own kernel", ProbeVerdict.HOLDS)
    advice = "root of a sandbox is root of the host, without its capabilities: "
    advice += "switch on userns-remap in the engine, or hostUsers: false in the template of pods"
    return Finding("user namespace", "be root of the host's own kernel", ProbeVerdict.WEAK, advice)


async def _disk(machine: Machine, limits: SandboxLimits) -> Finding:
    """Where the disk itself is as small as the limit, nothing can be written past it."""
    total = (await machine.stats()).disk_total
    if isinstance(total, int) and total <= limits.disk_bytes * 1.01:
        return Finding("disk", "fill it", ProbeVerdict.HOLDS)
    return Finding(
        "disk", "fill it", ProbeVerdict.WEAK, "only a watchdog: a sandbox can pass its limit for some seconds"
    )


async def _shared(driver: Driver, here: bool) -> list[Finding]:
    """What the kernel counts by user or for the whole host. Who goes short loses time, not secrets: that is weak."""
    found = []
    async with _sandbox(driver) as hog, _sandbox(driver) as neighbour:
        for resource in RESOURCES:
            outcome = await exhausted(resource, hog, neighbour, here=here)
            verdict = ProbeVerdict.WEAK if outcome.problem else ProbeVerdict.HOLDS
            found.append(Finding("shared resources", f"take all {resource.name}", verdict, outcome.problem))
    return found


async def _limits(driver: Driver, limits: SandboxLimits, strength: Strength) -> list[Finding]:
    """The bomb and the hog: each meets its limit, in a sandbox of its own."""
    found = []
    for layer, name, program, expects in (
        ("processes", "a fork bomb", _BOMB % (limits.pids + 100), _BOMB_ANSWERS),
        ("memory", "more than its share", _HOG % (limits.memory_bytes * 2), _HOG_ANSWERS),
    ):
        async with _sandbox(driver) as machine:
            found.append(await _limit(machine, strength, layer, name, program, expects))
            if not driver.capabilities.limits_processes and found[-1].said == "UNLIMITED" and layer == "processes":
                advice = "the nodes limit none: set podPidsLimit in the configuration of their kubelets"
                found[-1] = Finding(layer, name, ProbeVerdict.WEAK, advice)
    return found


async def _limit(
    machine: Machine, strength: Strength, layer: str, name: str, program: str, expects: frozenset[str]
) -> Finding:
    heard = await said(machine, ["python3", "-I", "-c", f"{PRELUDE}\n{program}"], _BATCH_SECONDS)
    alive = await said(machine, "echo alive") == "alive"
    if alive and heard.split()[-1] in expects:
        return Finding(layer, name, ProbeVerdict.HOLDS)
    if strength is Strength.GVISOR and (not alive or layer == "processes"):
        # The limit meets the process that plays the sandbox's kernel: it is wider, and the sandbox ends as a whole.
        return Finding(layer, name, ProbeVerdict.WEAK, "the host is safe; at the limit the sandbox as a whole ends")
    return Finding(layer, name, ProbeVerdict.MISSING, heard if alive else "the sandbox did not answer any more")


# A process may end while it is looked at.
_LOOK = """
def named(path):
    try:
        with open(path) as file: return file.read().startswith(%r)
    except OSError: return False
'FOUND' if any(named(f'/proc/{n}/cmdline') for n in os.listdir('/proc') if n.isdigit()) else 'ENOENT'
"""
_BOMB = """
import signal
children = []
answer = "UNLIMITED"
for _ in range(%d):
    try: pid = os.fork()
    except OSError as error: answer = word(error.errno); break
    if not pid: signal.pause()
    children.append(pid)
for pid in children: os.kill(pid, 9)
for pid in children: os.waitpid(pid, 0)
print(answer)
"""
_HOG = """
import mmap
pid = os.fork()
if not pid:
    writing("/proc/self/oom_score_adj", "1000")
    held = []
    try:
        for _ in range(%d >> 24): held.append(b"x" * (1 << 24))
    except MemoryError: os._exit(3)
    os._exit(0)
status = os.waitpid(pid, 0)[1]
print("KILLED" if os.WIFSIGNALED(status) else "REFUSED" if os.WEXITSTATUS(status) == 3 else "UNLIMITED")
"""
_BOMB_ANSWERS = frozenset({"EAGAIN"})
_HOG_ANSWERS = frozenset({"KILLED", "REFUSED"})
