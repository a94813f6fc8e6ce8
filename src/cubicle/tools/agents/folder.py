"""A run's own folder in the sandbox: what it was given, what it printed, how it ended. It outlives the service."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cubicle.sandbox.machine import HOME, Machine, MachineError
from cubicle.tools.inside import program

RUNS = f"{HOME}/.cache/cubicle/agents"
PROGRAMS = "/opt/agents/bin"
_RUN = re.compile(r"agent-[0-9a-f]{12}")
_LONGEST_EVENT = 8 * 1024**2
_LATEST = 4 * 1024**2
_LAST_WORDS = 2000
_KEPT = 50

# The events go to the service and, for the window and for a service that comes later, to a file.
_SCRIPT = f"""
cd "$1" && folder=$1 && shift || exit 1
echo $$ > pid
cd "$HOME"
PATH=$PATH:{PROGRAMS}
"$@" < "$folder/prompt" 2> "$folder/errors" | tee "$folder/events"
code=${{PIPESTATUS[0]}}
echo "$code" > "$folder/exit"
exit "$code"
"""

_WINDOW = f"""
command -v tmux >/dev/null || exit 0
tmux -u new-session -d -s main -c "$HOME" 2>/dev/null
tmux -u new-window -d -t main: -n "$2" -c "$HOME" python3 -I -S "$1/window.py" "$1"
cd "$1/.." && ls -1t | tail -n +{_KEPT + 1} | xargs -r rm -rf --
"""

_FIND = """
cd "$1" 2>/dev/null || exit 0
grep -lxF -e "$2" -- */session 2>/dev/null | xargs -r ls -1t | head -n 1
"""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run, by its name."""

    run: str

    @property
    def path(self) -> str:
        return f"{RUNS}/{self.run}"

    def command(self, argv: list[str]) -> list[str]:
        """The agent, with its input, its output and its end in this folder."""
        return ["/bin/bash", "-c", _SCRIPT, "agent", self.path, *argv]

    async def fill(self, machine: Machine, prompt: str, files: Mapping[str, str]) -> None:
        window = await asyncio.to_thread(program, "agent_window")
        for name, text in {"prompt": prompt, "window.py": window, **files}.items():
            path = name if name.startswith("/") else f"{self.path}/{name}"
            await machine.write(path, text.encode("utf-8", "replace"), mode=0o600)

    async def note_session(self, machine: Machine, session: str, argv: list[str], env: Mapping[str, str]) -> None:
        """From now on the run is found by its session, and a person can take it over."""
        variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
        script = f"#!/bin/bash\nPATH=$PATH:{PROGRAMS}\n{variables}exec {shlex.join(argv)}\n"
        await machine.write(f"{self.path}/take-over", script.encode(), mode=0o700)
        await machine.write(f"{self.path}/session", f"{session}\n".encode(), mode=0o600)

    async def open_window(self, machine: Machine) -> None:
        """Show the run in a window of the terminal that people share; an image without tmux has none."""
        await machine.output(["/bin/bash", "-c", _WINDOW, "window", self.path, self.run], timeout=15)

    async def is_delivered(self, machine: Machine) -> bool:
        try:
            await machine.stat(f"{self.path}/delivered")
        except MachineError:
            return False
        return True

    async def note_delivered(self, machine: Machine) -> None:
        await machine.write(f"{self.path}/delivered", b"", mode=0o600)

    async def events(self, machine: Machine) -> list[dict[str, Any]]:
        """The latest events that the run has printed."""
        lines = EventLines()
        found: list[dict[str, Any]] = []
        try:
            size = (await machine.stat(f"{self.path}/events")).size
            async with machine.read(f"{self.path}/events", offset=max(0, size - _LATEST)) as reader:
                async for chunk in reader:
                    found += lines.feed(chunk)
        except MachineError:
            pass
        return found

    async def exit_code(self, machine: Machine) -> int | None:
        try:
            text = await machine.read_bytes(f"{self.path}/exit", limit=16)
        except MachineError:
            return None
        return int(text) if text.strip().isdigit() else None

    async def last_words(self, machine: Machine) -> str:
        """The end of what the agent complained about."""
        try:
            size = (await machine.stat(f"{self.path}/errors")).size
            async with machine.read(f"{self.path}/errors", offset=max(0, size - _LAST_WORDS)) as reader:
                text = b"".join([chunk async for chunk in reader])[:_LAST_WORDS]
        except MachineError:
            return ""
        return text.decode("utf-8", "replace").strip()


async def find(machine: Machine, session: str) -> RunFolder | None:
    """The latest run of this session."""
    _, output = await machine.output(["/bin/bash", "-c", _FIND, "find", RUNS, session], timeout=15, merge=False)
    name = output.decode("utf-8", "replace").partition("/")[0]
    return RunFolder(name) if _RUN.fullmatch(name) else None


class EventLines:
    """Cuts output into lines and keeps those that are JSON objects; memory is bounded whatever comes."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        *lines, rest = (self._rest + chunk).split(b"\n")
        if len(rest) > _LONGEST_EVENT:
            rest, self._skipping, lines = b"", True, [] if self._skipping else lines
        elif lines and self._skipping:
            self._skipping = False
            lines = lines[1:]
        self._rest = rest
        return filter(None, map(_event, lines))


def _event(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
