"""Lists the coding agents' saved sessions, or prints a page of one, as JSON lines.

Arguments: list HOME COUNT, or page AGENT PATH SESSION AFTER COUNT. What an agent saved can be large, and it can hold
anything, so it is read piece by piece up to a limit, and what is not as it should be is passed over. Three agents
write JSONL files, one a database; `AGENTS` says where, and how each line is understood.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from typing import Any

MAX_LINE = 4 * 1024 * 1024
MAX_TEXT = 16 * 1024
MAX_FILE = 64 * 1024 * 1024
MAX_FILES = 20_000
MAX_PARTS = 50
IDENTIFIER = re.compile(r"(?:^|-)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})$")


def field(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def items(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def texts(value: Any) -> str:
    """The words of a content that is a text or a list of blocks."""
    if isinstance(value, str):
        return value
    return "\n".join(str(field(block, "text") or f"[{field(block, 'type')}]") for block in items(value))


def used(tool: Any, given: Any) -> tuple[str, str]:
    with contextlib.suppress(RecursionError):
        return "tool", f"{tool} {given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)}"
    return "tool", str(tool)


class SessionEntry:
    """One message: who said what, as (kind, text); and what it tells about its session."""

    def __init__(self, role: str = "", parts: Any = (), *, title: Any = None, model: Any = None) -> None:
        self.role, self.parts = role, list(parts)
        self.facts = {"title": title, "model": model}


def claude(record: dict[str, Any]) -> SessionEntry:
    message, role = record.get("message"), record.get("type")
    if role == "summary":
        return SessionEntry("summary", [("text", record.get("summary"))], title=record.get("summary"))
    if role not in ("user", "assistant", "system") or record.get("isMeta"):
        return SessionEntry()
    content, model = field(message, "content"), field(message, "model")
    found: list[tuple[str, Any]] = [("text", content)] if isinstance(content, str) else []
    for block in items(content):
        kind = block.get("type")
        if kind in ("text", "thinking"):
            found.append((kind, block.get(kind)))
        elif kind == "tool_use":
            found.append(used(block.get("name"), block.get("input")))
        elif kind == "tool_result":
            found.append(("result", texts(block.get("content"))))
    return SessionEntry(role, found, model=model if role == "assistant" and model != "<synthetic>" else None)


def codex(record: dict[str, Any]) -> SessionEntry:
    payload = record.get("payload")
    kind, inner = record.get("type"), field(payload, "type")
    if kind == "turn_context":
        return SessionEntry(model=field(payload, "model"))
    # What the model is given as the user's words holds much that the program wrote; here are the user's own.
    if kind == "event_msg" and field(payload, "item", "type") == "UserMessage":
        return SessionEntry("user", [("text", texts(field(payload, "item", "content")))])
    if kind == "response_item" and inner == "message" and field(payload, "role") == "assistant":
        return SessionEntry("assistant", [("text", texts(field(payload, "content")))])
    if kind == "response_item" and inner == "reasoning":
        return SessionEntry("assistant", [("thinking", texts(field(payload, "summary")) or None)])
    if kind == "response_item" and inner in ("function_call", "custom_tool_call"):
        return SessionEntry(
            "assistant", [used(field(payload, "name"), field(payload, "arguments") or field(payload, "input"))]
        )
    if kind == "response_item" and inner in ("function_call_output", "custom_tool_call_output"):
        return SessionEntry("user", [("result", texts(field(payload, "output")))])
    return SessionEntry()


def gemini(record: dict[str, Any]) -> SessionEntry:
    role = record.get("type")
    if role == "user":
        return SessionEntry("user", [("text", block.get("text")) for block in items(record.get("content"))])
    if role != "gemini":
        return SessionEntry()
    content = texts(record.get("content"))
    found = [("thinking", field(thought, "description")) for thought in items(record.get("thoughts"))]
    found += [("text", content)] if content else []
    for call in items(record.get("toolCalls")):
        found += [used(call.get("name"), call.get("args")), ("result", texts(call.get("resultDisplay")))]
    return SessionEntry("assistant", found, model=record.get("model"))


class SessionLines:
    """An agent that writes each session as a JSONL file."""

    def __init__(self, understand: Any, *folders: str) -> None:
        self.understand, self.folders = understand, folders

    def sessions(self, home: str, most: int) -> Iterator[dict[str, Any]]:
        files = sorted((found for folder in self.folders for found in below(home, folder.split("/"))), reverse=True)
        for modified, path in files[:most]:
            with contextlib.suppress(OSError):
                if (found := self.summary(path)) is not None:
                    yield {**found, "modified": modified, "path": path}

    def summary(self, path: str) -> dict[str, Any] | None:
        name = os.path.basename(path)[: -len(".jsonl")]
        known = IDENTIFIER.search(name)
        found: dict[str, Any] = {"session_id": known.group(1) if known else name, "turns": 0}
        for _, record, entry in self.entries(path):
            if isinstance(record.get("sessionId"), str):
                found["session_id"] = record["sessionId"]  # Gemini's files bear a part of it only
            if isinstance(stamp := record.get("timestamp"), str):
                found.setdefault("started_at", stamp[:40])
                found["updated_at"] = stamp[:40]
            found.update({name: value[:200] for name, value in entry.facts.items() if isinstance(value, str)})
            said = next((text for kind, text in entry.parts if kind == "text" and isinstance(text, str)), None)
            if entry.role == "user" and said is not None:
                found["turns"] += 1
                found.setdefault("first", said[:200])
        found.setdefault("title", found.get("first", ""))
        return found if "started_at" in found or found["turns"] else None

    def page(self, path: str, session: str, after: int, most: int) -> Iterator[tuple[int, str, SessionEntry]]:
        for position, record, entry in self.entries(path, after):
            yield position, str(record.get("timestamp") or ""), entry

    def entries(self, path: str, after: int = 0) -> Iterator[tuple[int, dict[str, Any], SessionEntry]]:
        """(offset behind it, record, entry). A record that grew is written again under its id: the last counts."""
        waiting: tuple[int, dict[str, Any], SessionEntry] | None = None
        for position, record in records(path, after):
            if waiting and (not record.get("id") or record.get("id") != waiting[1].get("id")):
                yield waiting
            waiting = (position, record, self.understand(record))
        if waiting:
            yield waiting


class Database:
    """OpenCode: sessions, messages and their parts are rows."""

    path = ".local/share/opencode/opencode.db"
    sessions_query = """SELECT id, substr(title, 1, 200), substr(model, 1, 1000), time_created, time_updated
        FROM session ORDER BY time_updated DESC LIMIT ?"""
    turns_query = """SELECT count(*) FROM message WHERE session_id = ?
        AND CASE WHEN json_valid(data) THEN json_extract(data, '$.role') = 'user' END"""
    messages_query = """SELECT id, time_created, substr(data, 1, 100000) FROM message
        WHERE session_id = ? ORDER BY time_created, id LIMIT ? OFFSET ?"""
    parts_query = "SELECT substr(data, 1, ?) FROM part WHERE message_id = ? ORDER BY id LIMIT ?"

    def sessions(self, home: str, most: int) -> Iterator[dict[str, Any]]:
        path = os.path.join(home, self.path)
        with self.opened(path) as rows:
            for id, title, model, start, end in rows(self.sessions_query, most):
                if isinstance(id, str) and isinstance(title, str):
                    found = {"session_id": id[:200], "title": title, "model": field(parsed(model), "id")}
                    found |= {"started_at": stamp(start), "updated_at": stamp(end)}
                    yield {**found, "turns": next(rows(self.turns_query, id), (0,))[0], "path": path}

    def page(self, path: str, session: str, after: int, most: int) -> Iterator[tuple[int, str, SessionEntry]]:
        with self.opened(path) as rows:
            chosen = rows(self.messages_query, session, most + 1, after)
            for position, (id, at, data) in enumerate(chosen, after + 1):
                pieces = rows(self.parts_query, MAX_LINE, id, MAX_PARTS)
                found = [part for (row,) in pieces for part in self.parts(parsed(row))]
                role = "user" if field(parsed(data), "role") == "user" else "assistant"
                yield position, stamp(at), SessionEntry(role, found)

    def parts(self, part: Any) -> Iterator[tuple[str, Any]]:
        kind, state = field(part, "type"), field(part, "state")
        if kind in ("text", "reasoning"):
            yield "text" if kind == "text" else "thinking", field(part, "text")
        elif kind == "tool":
            yield used(field(part, "tool"), field(state, "input"))
            yield "result", field(state, "output") or field(state, "error")

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[Any]:
        def rows(query: str, *values: Any) -> Iterator[Any]:
            # A database of another version, or none at all, has nothing to tell.
            with contextlib.suppress(sqlite3.Error, OverflowError):
                yield from connection.execute(query, values)

        plain = os.path.isfile(path) and not os.path.islink(path)
        connection = sqlite3.connect(f"file:{path}?mode=ro" if plain else ":memory:", uri=plain, timeout=2)
        try:
            yield rows
        finally:
            connection.close()


AGENTS: dict[str, Any] = {
    "claude": SessionLines(claude, ".claude/projects/*/*.jsonl"),
    "codex": SessionLines(codex, ".codex/sessions/*/*/*/rollout-*.jsonl"),
    "opencode": Database(),
    "gemini": SessionLines(gemini, ".gemini/tmp/*/chats/*.jsonl", ".cache/cubicle/gemini/.gemini/tmp/*/chats/*.jsonl"),
}


def below(folder: str, pattern: list[str], left: int = MAX_FILES) -> Iterator[tuple[float, str]]:
    """(when it changed, path) of the files under a pattern. Symlinks lead nowhere."""
    head, tail = pattern[0].partition("*")[::2]
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            left -= 1
            named = entry.name == head if "*" not in pattern[0] else entry.name.startswith(head)
            if left < 0 or not named or not entry.name.endswith(tail):
                continue
            if pattern[1:] and entry.is_dir(follow_symlinks=False):
                yield from below(entry.path, pattern[1:], left)
            elif not pattern[1:] and entry.is_file(follow_symlinks=False):
                seen = entry.stat(follow_symlinks=False)
                if seen.st_size < MAX_LINE or seen.st_blocks * 512 > seen.st_size // 2:  # not a terabyte of holes
                    yield seen.st_mtime, entry.path


def records(path: str, after: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset behind the line, record) of every line that holds a JSON object."""
    with open(path, "rb") as file:
        file.seek(after)
        while file.tell() < after + MAX_FILE:
            line = file.readline(MAX_LINE)
            if not line:
                return
            if not line.endswith(b"\n") and len(line) == MAX_LINE:
                while line and not line.endswith(b"\n") and file.tell() < after + MAX_FILE:
                    line = file.readline(MAX_LINE)
                continue
            if isinstance(record := parsed(line), dict):
                yield file.tell(), record


def parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return None


def stamp(milliseconds: Any) -> str:
    with contextlib.suppress(TypeError, ValueError, OverflowError, OSError):
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(milliseconds / 1000))
    return ""


def say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")


def listing(home: str, most: int) -> None:
    for name, agent in AGENTS.items():
        for found in agent.sessions(home, most):
            say({**found, "agent": name})


def page(agent: str, path: str, session: str, after: int, most: int) -> None:
    count = 0
    for position, at, entry in AGENTS[agent].page(path, session, after, most):
        shown = [
            {"kind": kind, "text": text[:MAX_TEXT], "cut": len(text) > MAX_TEXT}
            for kind, text in entry.parts[:MAX_PARTS]
            if isinstance(text, str)
        ]
        if shown:
            say({"role": entry.role, "at": at[:40], "parts": shown})
            count += 1
        if count >= most:
            say({"next": position})
            return
    say({"next": None})


if sys.argv[1] == "list":
    listing(sys.argv[2], int(sys.argv[3]))
else:
    page(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
