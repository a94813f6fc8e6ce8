"""Keeps what was counted lately on disk: one line of JSON for the whole service and one for each tenant.

A service that is killed loses what it counted since the last time that the file was written.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from cubicle import record
from cubicle.core.api_keys import is_tenant
from cubicle.core.chat import BadChatId, Chat
from cubicle.metrics.recent import (
    DAY,
    HOUR,
    MAX_NAMES,
    MAX_PROBLEMS,
    MAX_TENANTS,
    MINUTE,
    OTHER,
    Minutes,
    Problem,
    Recent,
    TenantRecord,
)  # fmt: skip
from cubicle.record import BadRecord
from cubicle.tasks import start_task

log = logging.getLogger(__name__)

FOLDER = "metrics"
_FILE = "recent.jsonl"
_MAX_SIZE = 16 * 1024**2
_MAX_TEXT = 300
_MAX_COUNT = 2**53
_SAVE_SECONDS = 15.0

Saved = list[dict[str, Any]]
"""What the lines of the file say."""


class RecentFile:
    """Reads it at the start, writes it now and then and at the end."""

    def __init__(self, recent: Recent, folder: Path, seconds: float = _SAVE_SECONDS) -> None:
        self._recent = recent
        self._path = folder / _FILE
        self._seconds = seconds
        self._written = 0
        self._failed = False

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Within the block."""
        for line in await asyncio.to_thread(_read, self._path):
            restore(self._recent, line)
        self._written = self._recent.version
        keeper = start_task(self._keep(), name="recent numbers")
        try:
            yield
        finally:
            keeper.cancel()
            await asyncio.wait([keeper])
            await self.save()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._seconds)
            try:
                await self.save()
            except Exception:
                log.exception("what was counted lately could not be written")

    async def save(self) -> None:
        """Write it, if it changed. A disk that takes nothing is tried again the next time."""
        version = self._recent.version
        if version == self._written:
            return
        lines = saved(self._recent)
        try:
            await asyncio.to_thread(_write, self._path, lines)
        except OSError as error:
            if not self._failed:
                log.error("what was counted lately cannot be written: %s", error.strerror)
            self._failed = True
            return
        self._written, self._failed = version, False


def saved(recent: Recent) -> Saved:
    """What is to be written: a copy, for a thread."""
    lines: Saved = [{"version": record.VERSION, "minutes": _copied(recent.totals)}]
    for tenant, known in recent.tenants.items():
        problems = [[p.chat, p.kind, p.detail, p.since, p.at, p.count] for p in known.problems.values()]
        lines.append({"tenant": tenant, "minutes": _copied(known.minutes), "problems": problems})
    return lines


def _copied(minutes: Minutes) -> dict[str, dict[str, int]]:
    return {str(minute): dict(counts) for minute, counts in minutes.items()}


def _write(path: Path, lines: Saved) -> None:
    record.make_folder(path.parent)
    # Line by line: one long call would keep all other threads waiting.
    record.write_bytes(path, b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def _read(path: Path) -> Saved:
    """The lines that can be read. If there are others, the file is copied or moved aside."""
    try:
        content = record.read_bytes(path, _MAX_SIZE)
    except FileNotFoundError:
        return []
    except BadRecord as error:
        _set_aside(record.keep_bad, path, error)
        return []
    except OSError as error:
        log.error("what was counted before cannot be read: %s", error.strerror)
        return []
    lines, problem = parse(content)
    if problem is not None:
        _set_aside(lambda bad: record.copy_bad(bad, _MAX_SIZE), path, problem)
    return lines


def _set_aside(move: Callable[[Path], Path], path: Path, error: BadRecord) -> None:
    log.error("a part of what was counted before cannot be read and is set aside: %s", error)
    with suppress(OSError, BadRecord):
        move(path)


def parse(content: bytes) -> tuple[Saved, BadRecord | None]:
    """The good lines of a stranger's file, and what is wrong with one of the others."""
    lines: Saved = []
    problem = None
    for line in content.split(b"\n")[: MAX_TENANTS + 2]:
        try:
            if line:
                lines.append(_line(record.parsed(line)))
        except BadRecord as error:
            problem = error
    return lines, problem


def restore(recent: Recent, line: dict[str, Any]) -> None:
    """Add what a line of the file says, as far as it is not too old."""
    now = recent.minute
    if "tenant" not in line:
        recent.totals = _fresh(line["minutes"], now, DAY)
        return
    known = TenantRecord(_fresh(line["minutes"], now, HOUR))
    first, last = recent.clock() - HOUR * MINUTE, recent.clock() + HOUR * MINUTE
    for problem in line["problems"]:
        if first < problem.at < last:
            known.problems[problem.chat, problem.kind, problem.detail] = problem
    if known.minutes or known.problems:
        recent.tenants[line["tenant"]] = known


def _fresh(minutes: Minutes, now: int, most: int) -> Minutes:
    return {minute: counts for minute, counts in minutes.items() if now - most < minute < now + most}


def _line(found: object) -> dict[str, Any]:
    """Raises BadRecord."""
    if not isinstance(found, dict):
        raise BadRecord("a line is not a JSON object")
    line: dict[str, Any] = {"minutes": _minutes(found.get("minutes"))}
    if "tenant" in found:
        line["tenant"] = _text(found["tenant"])
        if line["tenant"] != OTHER and not is_tenant(line["tenant"]):
            raise BadRecord("tenant is not the name of one")
        problems = found.get("problems", [])
        if not isinstance(problems, list) or len(problems) > MAX_PROBLEMS:
            raise BadRecord("problems is not a list, or is too long")
        line["problems"] = [_problem(each) for each in problems]
    return line


def _minutes(found: object) -> Minutes:
    if not isinstance(found, dict) or len(found) > 2 * DAY + 2:
        raise BadRecord("minutes is not an object, or is too large")
    minutes: Minutes = {}
    for minute, counts in found.items():
        if not minute.isascii() or not minute.isdigit() or len(minute) > 12 or not isinstance(counts, dict):
            raise BadRecord("a minute is not a number with counts")
        if len(counts) > MAX_NAMES or not all(_is_count(count) for count in counts.values()):
            raise BadRecord("a count is not a number")
        minutes[int(minute)] = Counter({_text(name): count for name, count in counts.items()})
    return minutes


def _problem(found: object) -> Problem:
    if not isinstance(found, list) or len(found) != 6:
        raise BadRecord("a problem has another form")
    chat, kind, detail, since, at, count = found
    if not all(isinstance(each, int | float) and 0 <= each < _MAX_COUNT for each in (since, at)) or not _is_count(
        count
    ):
        raise BadRecord("a time of a problem is not a number")
    try:
        Chat(_text(chat))
    except BadChatId:
        raise BadRecord("the chat of a problem is none") from None
    return Problem(chat, _text(kind), _text(detail), float(since), float(at), count)


def _is_count(found: object) -> bool:
    return isinstance(found, int) and not isinstance(found, bool) and 0 <= found < _MAX_COUNT


def _text(found: object) -> str:
    if not isinstance(found, str) or len(found) > _MAX_TEXT:
        raise BadRecord("a name is not a text, or is too long")
    return found


def remove_records(folder: Path, digest: str) -> None:
    """Remove the problems of a chat that was removed, while no service runs."""
    path = folder / _FILE
    if not path.exists():
        return
    recent = Recent()
    for line in _read(path):
        restore(recent, line)
    version = recent.version
    for tenant, known in list(recent.tenants.items()):
        for chat in {problem.chat for problem in known.problems.values()}:
            if Chat(chat, tenant).digest == digest:
                recent.forget(chat, tenant)
    if recent.version != version:
        _write(path, saved(recent))
