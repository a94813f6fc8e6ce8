"""The coding agents of a sandbox: which run, which left saved sessions, and what those say.

The sandbox reads its own files and processes and prints JSON lines; every field of them is checked and bounded here.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict

from cubicle.agents.scripts import program
from cubicle.core.untrusted_json import BadJson, parse_object
from cubicle.machine.errors import SandboxError
from cubicle.machine.machine import HOME, Machine

AGENTS = ("claude", "codex", "opencode", "gemini")
_SESSIONS_PROGRAM = program("agent_sessions")
_PROCESSES_PROGRAM = program("agent_processes")
_MAX_SESSIONS = 200
_MAX_ENTRIES = 100
_MAX_PROCESSES = 200
_MAX_OUTPUT = 8 * 1024**2
_MAX_LINES = 1000
_MAX_LINE = 1024**2
_MAX_LINE_VALUES = 2000
_LIMIT = 20.0
_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_KINDS = ("text", "thinking", "tool", "result")  # a tuple: what is looked for may be of a kind that no set takes


class NoSuchProcess(SandboxError):
    """No coding agent runs under this process id."""


class NoSuchSession(SandboxError):
    """There is no saved session of this id."""


class SessionRecord(TypedDict):
    session_id: str
    agent: str
    started_at: str
    updated_at: str
    model: str
    turns: int
    title: str


class ProcessRecord(TypedDict):
    pid: int
    command: str
    started_at: str
    cpu_seconds: float
    memory_bytes: int


Role = Literal["user", "assistant", "system", "summary"]


class TranscriptPart(TypedDict):
    kind: Literal["text", "thinking", "tool", "result"]
    text: str
    cut: bool


class TranscriptEntry(TypedDict):
    role: Role
    at: str
    parts: list[TranscriptPart]


class TranscriptRecord(TypedDict):
    session_id: str
    entries: list[TranscriptEntry]
    next: int | None


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One saved session, in short."""

    session_id: str
    agent: str
    """Whose it is: only the same program can resume it."""
    started_at: str
    updated_at: str
    model: str
    turns: int
    title: str
    path: str

    def record(self) -> SessionRecord:
        return {
            "session_id": self.session_id,
            "agent": self.agent,
            "started_at": self.started_at,
            "updated_at": self.updated_at,
            "model": self.model,
            "turns": self.turns,
            "title": self.title,
        }


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """One coding agent that runs."""

    pid: int
    command: str
    started_at: str
    cpu_seconds: float
    memory_bytes: int

    def record(self) -> ProcessRecord:
        return {
            "pid": self.pid,
            "command": self.command,
            "started_at": self.started_at,
            "cpu_seconds": self.cpu_seconds,
            "memory_bytes": self.memory_bytes,
        }


@dataclass(frozen=True, slots=True)
class Transcript:
    """A page of a saved session."""

    session_id: str
    entries: list[TranscriptEntry]
    next: int | None

    def record(self) -> TranscriptRecord:
        return {"session_id": self.session_id, "entries": self.entries, "next": self.next}


async def sessions(machine: Machine) -> list[AgentSession]:
    """The saved sessions, newest first."""
    lines = await _lines(machine, _SESSIONS_PROGRAM, "list", HOME, str(_MAX_SESSIONS))
    found = [session for session in map(_session, lines) if session is not None]
    return sorted(found, key=lambda session: session.updated_at, reverse=True)[:_MAX_SESSIONS]


async def saved(machine: Machine, session_id: str) -> AgentSession:
    """One session. Raises NoSuchSession."""
    if _SESSION_ID.fullmatch(session_id):
        for found in await sessions(machine):
            if found.session_id == session_id:
                return found
    raise NoSuchSession("There is no saved session of this id.")


async def transcript(machine: Machine, session_id: str, after: int = 0) -> Transcript:
    """What was said in one session, from a position on. Raises NoSuchSession."""
    found = await saved(machine, session_id)
    entries: list[TranscriptEntry] = []
    following: int | None = None
    page = ("page", found.agent, found.path, session_id, str(after), str(_MAX_ENTRIES))
    for line in await _lines(machine, _SESSIONS_PROGRAM, *page):
        if "parts" in line and len(entries) < _MAX_ENTRIES:
            entries.append(_entry(line))
        elif isinstance(line.get("next"), int):
            following = min(max(0, line["next"]), 2**50)
    return Transcript(session_id, entries, following)


async def processes(machine: Machine) -> list[AgentProcess]:
    """The coding agents that run now, oldest first."""
    lines = await _lines(machine, _PROCESSES_PROGRAM, "list")
    found = [process for process in map(_process, lines) if process is not None]
    return sorted(found[:_MAX_PROCESSES], key=lambda process: process.started_at)


async def kill(machine: Machine, pid: int) -> None:
    """End a coding agent and all it started: TERM, two seconds, KILL. NoSuchProcess for anything else."""
    command = ["python3", "-I", "-S", "-c", _PROCESSES_PROGRAM, "kill", str(pid)]
    ended, _ = await machine.output(command, timeout=_LIMIT)
    if ended.status != 0:
        raise NoSuchProcess(f"No coding agent runs as process {pid}.")


async def _lines(machine: Machine, source: str, *arguments: str) -> list[dict[str, Any]]:
    command = ["python3", "-I", "-S", "-c", source, *arguments]
    _, output = await machine.output(command, timeout=_LIMIT, limit=_MAX_OUTPUT, merge=False)
    found: list[dict[str, Any]] = []
    for line in output.split(b"\n")[:_MAX_LINES]:
        with suppress(BadJson):
            found.append(parse_object(line, max_size=_MAX_LINE, max_values=_MAX_LINE_VALUES))
        await asyncio.sleep(0)  # each takes milliseconds at worst, and there are hundreds
    return found


def _session(line: dict[str, Any]) -> AgentSession | None:
    name, agent, path = line.get("session_id"), line.get("agent"), line.get("path")
    if not isinstance(name, str) or not _SESSION_ID.fullmatch(name) or agent not in AGENTS or not isinstance(path, str):
        return None
    modified = _instant(line.get("modified"))
    started, updated = _stamp(line.get("started_at")) or modified, _stamp(line.get("updated_at")) or modified
    turns = line.get("turns")
    title = " ".join(_text(line.get("title"), 200).split())
    turns = turns if isinstance(turns, int) else 0
    return AgentSession(name, agent, started, updated, _text(line.get("model"), 100), turns, title, path)


def _process(line: dict[str, Any]) -> AgentProcess | None:
    pid = line.get("pid")
    if not isinstance(pid, int) or not 1 < pid < 2**31:
        return None
    seconds, memory = _number(line.get("cpu_seconds")), _number(line.get("memory_bytes"))
    started = _instant(line.get("started_at"))
    return AgentProcess(pid, _text(line.get("command"), 500), started, round(seconds, 2), int(memory))


def _entry(line: dict[str, Any]) -> TranscriptEntry:
    parts = line["parts"] if isinstance(line["parts"], list) else []
    shown: list[TranscriptPart] = [
        {
            "kind": part["kind"] if part.get("kind") in _KINDS else "text",
            "text": _text(part.get("text"), 16 * 1024),
            "cut": part.get("cut") is True,
        }
        for part in parts[:50]
        if isinstance(part, dict)
    ]
    role = line.get("role")
    known: Role = role if role in ("user", "assistant", "system", "summary") else "system"
    return {"role": known, "at": _stamp(line.get("at")), "parts": shown}


def _text(value: Any, most: int) -> str:
    return value[:most].encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _stamp(value: Any) -> str:
    text = _text(value, 40)
    return text if re.fullmatch(r"\d{4}-\d\d-\d\dT[0-9:.]{5,20}(Z|[+-]\d\d:\d\d)?", text) else ""


def _number(value: Any) -> float:
    number = float(value) if isinstance(value, int | float) and abs(value) < 2**63 else 0.0
    return number if math.isfinite(number) and number > 0 else 0.0


def _instant(value: Any) -> str:
    seconds = min(_number(value), 32503680000.0)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + "Z"
