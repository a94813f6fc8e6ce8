"""Lists the coding agents that run in this sandbox as JSON lines, or ends one of them with all it started.

Arguments: list, or kill PID. Exit code 3: no coding agent runs as that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time

AGENTS = ("claude", "codex", "opencode", "gemini")
INTERPRETERS = ("node", "nodejs", "bun", "deno", "python3", "python", "sh", "bash")


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(65536)
    except OSError:
        return b""


def words(pid: int | str) -> list[str]:
    return [word.decode("utf-8", "replace") for word in read(f"/proc/{pid}/cmdline").split(b"\0") if word]


def agent(command: list[str]) -> bool:
    """Whether this command line is a coding agent: by its program, or by the script that an interpreter runs."""
    if not command:
        return False
    names = [os.path.basename(command[0])]
    if names[0].rstrip("0123456789.") in INTERPRETERS or names[0] in INTERPRETERS:
        scripts = [word for word in command[1:] if not word.startswith("-")][:1]
        for script in scripts:
            # An npm package is started as …/bin/claude or as …/@maker/claude-code/cli.js.
            names += script.split("/")[-4:] if "node_modules" in script else [os.path.basename(script)]
    stems = {name.lower().removesuffix(".js").removesuffix(".mjs") for name in names}
    return any(
        stem == name or stem in (name + "-code", name + "-cli", name + "-ai") for stem in stems for name in AGENTS
    )


def status(pid: int | str) -> list[bytes] | None:
    """The fields of /proc/PID/stat behind the name; None if it is gone or a zombie."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields if len(fields) > 21 and fields[0] not in (b"Z", b"X") else None


def booted() -> int:
    for line in read("/proc/stat").splitlines():
        if line.startswith(b"btime "):
            return int(line.split()[1])
    return 0


def listing() -> None:
    tick, page, boot = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE"), booted()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        command, fields = words(name), status(name)
        if fields is None or not agent(command):
            continue
        record = {
            "pid": int(name),
            "command": " ".join(command)[:500],
            "started_at": boot + int(fields[19]) / tick,
            "cpu_seconds": (int(fields[11]) + int(fields[12])) / tick,
            "memory_bytes": int(fields[21]) * page,
        }
        sys.stdout.write(json.dumps(record) + "\n")


def family(root: int) -> list[int]:
    """The process and everything below it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        fields = status(name) if name.isdigit() else None
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = [root]
    for pid in found:
        found.extend(child for child in children.get(pid, ()) if child not in found)
    return found


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill(pid: int) -> int:
    if pid <= 1 or status(pid) is None or not agent(words(pid)):
        return 3
    pids = family(pid)
    send(pids, signal.SIGTERM)
    send(pids, signal.SIGCONT)
    end = time.monotonic() + 2
    while time.monotonic() < end and any(status(one) for one in pids):
        time.sleep(0.02)
    send([one for one in pids if status(one)], signal.SIGKILL)
    while time.monotonic() < end + 3 and status(pid):
        time.sleep(0.02)
    return 0 if status(pid) is None else 4


if sys.argv[1] == "list":
    listing()
else:
    sys.exit(kill(int(sys.argv[2])))
