"""Search over the names and contents of a chat's files, by the sandbox's own programs: bounded."""

from __future__ import annotations

import shlex
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from cubicle.files.archive import CACHES
from cubicle.files.browse import ROOTS
from cubicle.files.search_output import FoundLine, FoundName, Lines, Names
from cubicle.machine.machine import HOME, Machine

MAX_QUERY = 200
MAX_NAMES = 200
MAX_LINES = 500
_LINES_OF_A_FILE = 5
_SECONDS = 10.0
_MAX_BYTES = 8 * 1024**2
"""Printed by one search; far more than the results that are told."""
_ENV = {"LC_ALL": "C.UTF-8", "GREP_COLORS": "", "RIPGREP_CONFIG_PATH": ""}
_NOT_READ = ("*.[pP][dD][fF]",)
"""Files that hold no zero byte, and no text for people either."""
_T = TypeVar("_T")


class BadQuery(ValueError):
    """There is nothing to look for; the message says why."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """There is more, or could be."""


def checked(query: str) -> str:
    """The text to look for. Raises BadQuery."""
    if not query.strip():
        raise BadQuery("q is empty: say what to look for.")
    if len(query) > MAX_QUERY or "\0" in query or "\n" in query:
        raise BadQuery(f"q is one line of at most {MAX_QUERY} characters.")
    return query


async def names(machine: Machine, query: str) -> AsyncGenerator[FoundName | Unfinished]:
    """Files and folders with the text in their name; with a slash in it, in their path."""
    pattern = "".join(f"\\{letter}" if letter in "*?[]\\" else letter for letter in query)
    test = ["-ipath" if "/" in query else "-iname", f"*{pattern}*"]
    command = ["find", *ROOTS.values(), "-mindepth", "1", *_PRUNED, *test, "-printf", r"%y\0%s\0%T@\0%p\0"]
    async with aclosing(_found(machine, command, Names(), MAX_NAMES)) as found:
        async for one in found:
            yield one


async def newer(machine: Machine, since: float, limit: int) -> AsyncGenerator[FoundName | Unfinished]:
    """Files that were written since then."""
    tests = ["-type", "f", "-newermt", f"@{since:.3f}"]
    command = ["find", *ROOTS.values(), "-mindepth", "1", *_PRUNED, *tests, "-printf", r"%y\0%s\0%T@\0%p\0"]
    async with aclosing(_found(machine, command, Names(), limit)) as found:
        async for one in found:
            yield one


async def lines(machine: Machine, query: str) -> AsyncGenerator[FoundLine | Unfinished]:
    """Lines of text files that hold the text, whatever its case; some of each file."""
    async with aclosing(_found(machine, ["/bin/sh", "-c", _contents(query)], Lines(), MAX_LINES)) as found:
        async for one in found:
            yield one


_SKIPPED = [word for cache in sorted(CACHES) for word in ("-o", "-name", cache)]
_PRUNED = ["(", "-name", ".*", *_SKIPPED, ")", "-prune", "-o"]


def _contents(query: str) -> str:
    """ripgrep, or grep where the image has none. Hidden folders and caches are passed over, as in the archive."""
    roots = shlex.join(ROOTS.values())
    globs = " ".join(f"--glob {shlex.quote('!' + name)}" for name in (*sorted(CACHES), *_NOT_READ))
    excluded = " ".join(f"--exclude-dir={shlex.quote(cache)}" for cache in sorted(CACHES))
    unread = " ".join(f"--exclude={shlex.quote(name)}" for name in _NOT_READ)
    sought = shlex.quote(query)
    return (
        f"if command -v rg >/dev/null 2>&1; then exec nice rg --no-config --null --with-filename --line-number "
        f"--no-heading --color=never --fixed-strings --ignore-case --max-count={_LINES_OF_A_FILE} --max-columns=400 "
        f"--max-columns-preview --max-filesize=64M --no-ignore --no-messages --threads=2 {globs} -e {sought} -- "
        f"{roots}; else exec nice grep -rFIinZsH -m {_LINES_OF_A_FILE} --color=never --exclude='.*' --exclude-dir='.*' "
        f"{unread} {excluded} -e {sought} -- {roots}; fi"
    )


async def _found(
    machine: Machine, command: Sequence[str], parser: Names | Lines, limit: int
) -> AsyncGenerator[_T | Unfinished]:
    """What the program finds. It is killed when it has found enough, printed too much or taken too long."""
    told = printed = 0
    async with machine.run(command, cwd=HOME, env=_ENV, timeout=_SECONDS, merge=False) as process:
        async for stream, data in process.output:
            if stream != 1:
                continue
            printed += len(data)
            for one in parser.feed(data):
                told += 1
                yield one  # type: ignore[misc]
                if told >= limit:
                    yield Unfinished()
                    return
            if printed > _MAX_BYTES:
                yield Unfinished()
                return
        if (await process.wait()).timed_out:
            yield Unfinished()
