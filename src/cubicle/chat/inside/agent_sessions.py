"""Lists the coding agents' saved sessions, or prints a page of one, as JSON lines.

Arguments: list FOLDER MOST, or page FILE AFTER MOST. A session is a JSONL file that an agent wrote; it can be large,
and it can hold anything, so lines are read one by one up to a limit and what is no JSON object is passed over.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

LONGEST_LINE = 4 * 1024 * 1024
LONGEST_TEXT = 16 * 1024
LONGEST_FILE = 64 * 1024 * 1024


def records(path: str, after: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """(offset behind the line, record) of every line that holds a JSON object."""
    with open(path, "rb") as file:
        file.seek(after)
        while file.tell() < after + LONGEST_FILE:
            line = file.readline(LONGEST_LINE)
            if not line:
                return
            if not line.endswith(b"\n") and len(line) == LONGEST_LINE:
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                yield file.tell(), record


def say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")


def field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None


def parts(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(kind, text) of what a message holds."""
    content = field(record.get("message"), "content")
    if isinstance(content, str):
        yield "text", content
    for block in content if isinstance(content, list) else ():
        kind = field(block, "type")
        if kind == "text":
            yield "text", block.get("text")
        elif kind == "thinking":
            yield "thinking", block.get("thinking")
        elif kind == "tool_use":
            yield "tool", f"{block.get('name')} {json.dumps(block.get('input'), ensure_ascii=False)}"
        elif kind == "tool_result":
            inner = block.get("content")
            if isinstance(inner, list):
                inner = "\n".join(str(field(piece, "text") or f"[{field(piece, 'type')}]") for piece in inner)
            yield "result", inner


def summary(path: str) -> dict[str, Any] | None:
    """One session in short; None if the file holds no conversation."""
    found: dict[str, Any] = {"session_id": os.path.basename(path)[: -len(".jsonl")], "turns": 0}
    for _, record in records(path):
        kind, stamp = record.get("type"), record.get("timestamp")
        if isinstance(stamp, str):
            found.setdefault("started_at", stamp[:40])
            found["updated_at"] = stamp[:40]
        if kind == "summary" and isinstance(record.get("summary"), str):
            found["title"] = record["summary"][:200]
        if isinstance(record.get("cwd"), str):
            found.setdefault("cwd", record["cwd"][:500])
        if kind == "assistant":
            model = field(record.get("message"), "model")
            if isinstance(model, str) and model != "<synthetic>":
                found["model"] = model[:100]
        if kind == "user" and not record.get("isMeta"):
            said = next((text for part, text in parts(record) if part == "text" and isinstance(text, str)), None)
            if said is not None:
                found["turns"] += 1
                found.setdefault("first", said[:200])
    found.setdefault("title", found.pop("first", ""))
    found.pop("first", None)
    return found if "started_at" in found or found["turns"] else None


def listing(folder: str, most: int) -> None:
    files: list[tuple[float, str]] = []
    try:
        projects = [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for project in projects[:10000]:
        try:
            for entry in os.scandir(project):
                if entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False):
                    files.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
        except OSError:
            continue
    files.sort(reverse=True)
    for modified, path in files[:most]:
        try:
            found = summary(path)
        except OSError:
            continue
        if found is not None:
            found["modified"] = modified
            found["path"] = path
            say(found)


def page(path: str, after: int, most: int) -> None:
    count, position = 0, after
    for position, record in records(path, after):
        role = record.get("type")
        if role not in ("user", "assistant", "summary", "system") or record.get("isMeta"):
            continue
        shown = [
            {"kind": kind, "text": text[:LONGEST_TEXT], "cut": len(text) > LONGEST_TEXT}
            for kind, text in parts(record)
            if isinstance(text, str)
        ]
        if isinstance(record.get("summary"), str):
            shown = [{"kind": "text", "text": record["summary"][:LONGEST_TEXT], "cut": False}]
        if shown:
            say({"role": role, "at": str(record.get("timestamp") or "")[:40], "parts": shown[:50]})
            count += 1
        if count >= most:
            say({"next": position})
            return
    say({"next": None})


if sys.argv[1] == "list":
    listing(sys.argv[2], int(sys.argv[3]))
else:
    page(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
