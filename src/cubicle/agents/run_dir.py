"""A run's own folder in the sandbox: what it was given, what it printed, how it ended. It outlives the service."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cubicle.agents.scripts import program
from cubicle.core.untrusted_json import BadJson, parse_object
from cubicle.machine.errors import MachineError, SandboxError
from cubicle.machine.machine import HOME, Machine

RUNS = f"{HOME}/.cache/cubicle/agents"
PROGRAMS = "/opt/agents/bin"
_RUN = re.compile(r"agent-[0-9a-f]{12}")
_MAX_EVENT = 8 * 1024**2
_LATEST = 4 * 1024**2
_LAST_WORDS = 2000
_MAX_PARTS = 4096
_MAX_EVENTS = 5000
_MAX_EVENT_VALUES = 20_000
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

# With a second window the session gets a line that names them, and a click on a name goes there. Whoever opens the
# terminal finds the agent in it; nobody who is there already is moved away from what they type.
_WINDOW = f"""
command -v tmux >/dev/null || exit 0
folder=$1 name=$2 && shift 2
tmux -u new-session -d -s main -c "$HOME" 2>/dev/null
tmux -u new-window -d -t main: -n "$name" -c "$HOME" "$@" || exit 1
tmux source-file - <<'OPTIONS'
set -t main status on
set -t main status-position top
set -t main status-style default
set -t main status-left ''
set -t main status-right ''
set -g window-status-format ' #W '
set -g window-status-current-format '#[bold,underscore] #W '
set-hook -t main window-unlinked "if -F '#{{==:#{{session_windows}},1}}' 'set -t main status off'"
OPTIONS
[ -n "$(tmux list-clients -t main)" ] || tmux select-window -t "main:$name"
cd "$folder/.." && ls -1t | tail -n +{_KEPT + 1} | xargs -r rm -rf --
"""

_FIND = """
cd "$1" 2>/dev/null || exit 0
grep -lxF -e "$2" -- */session 2>/dev/null | xargs -r ls -1t | head -n 1
"""


class NoTerminal(SandboxError):
    """A person's window could not be opened."""


@dataclass(frozen=True, slots=True)
class RunDir:
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
            await machine.write(path, text, mode=0o600)

    async def note_session(self, machine: Machine, session: str, argv: list[str], env: Mapping[str, str]) -> None:
        """From now on the run is found by its session, and a person can take it over."""
        await self.note_take_over(machine, argv, env)
        await machine.write(f"{self.path}/session", f"{session}\n".encode(), mode=0o600)

    async def note_take_over(self, machine: Machine, argv: list[str], env: Mapping[str, str]) -> None:
        variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
        script = f"#!/bin/bash\nPATH=$PATH:{PROGRAMS}\n{variables}exec {shlex.join(argv)}\n"
        await machine.write(f"{self.path}/take-over", script.encode(), mode=0o700)

    async def open_window(self, machine: Machine) -> None:
        """Show the run in a window of the terminal that people share; an image without tmux has none."""
        await self._open(machine, "python3", "-I", "-S", f"{self.path}/window.py", self.path)

    async def open_for_a_person(self, machine: Machine) -> None:
        """Take the session over in a window of its own, and have that window in front. Raises NoTerminal."""
        await self._open(machine, f"{self.path}/take-over")
        ended, _ = await machine.output(["tmux", "select-window", "-t", f"main:{self.run}"], timeout=15)
        if ended.status != 0:
            raise NoTerminal("The session could not be opened in the terminal: this sandbox has no tmux, or no room.")

    async def _open(self, machine: Machine, *command: str) -> None:
        script = ["/bin/bash", "-c", _WINDOW, "window", self.path, self.run, *command]
        await machine.output(script, timeout=15)

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
        kept: list[bytes] = []
        try:
            size = (await machine.stat(f"{self.path}/events")).size
            start = max(0, size - _LATEST)
            async with machine.read(f"{self.path}/events", offset=start, length=_LATEST) as reader:
                kept = [chunk async for chunk in reader]
        except MachineError:
            pass
        found: list[dict[str, Any]] = []
        for line in b"".join(kept).split(b"\n")[-_MAX_EVENTS:]:
            if (event := _event(line)) is not None:
                found.append(event)
            await asyncio.sleep(0)  # each is quick, but they are many
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
            async with machine.read(
                f"{self.path}/errors", offset=max(0, size - _LAST_WORDS), length=_LAST_WORDS
            ) as reader:
                text = b"".join([chunk async for chunk in reader])[:_LAST_WORDS]
        except MachineError:
            return ""
        return text.decode("utf-8", "replace").strip()


async def find(machine: Machine, session: str) -> RunDir | None:
    """The latest run of this session."""
    _, output = await machine.output(["/bin/bash", "-c", _FIND, "find", RUNS, session], timeout=15, merge=False)
    name = output.decode("utf-8", "replace").partition("/")[0]
    return RunDir(name) if _RUN.fullmatch(name) else None


class EventLines:
    """Cuts output into lines and keeps those that are JSON objects; memory is bounded whatever comes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._skipping = False

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """The events that this chunk completes, each made when it is asked for."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0] = b"" if self._skipping else b"".join([*self._parts, lines[0]])
            self._parts, self._size, self._skipping = [], 0, False
        self._size += len(rest)
        if self._size > _MAX_EVENT:
            self._parts, self._skipping = [], True
        elif not self._skipping:
            self._parts.append(rest)
            if len(self._parts) > _MAX_PARTS:  # crumbs: each takes more room than it holds
                self._parts = [b"".join(self._parts)]
        return filter(None, map(_event, lines))


def _event(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        return parse_object(line, max_size=2 * _MAX_EVENT, max_values=_MAX_EVENT_VALUES)
    except BadJson:
        return None
