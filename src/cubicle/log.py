"""Structured logs: one line an event, with the chat and the request it belongs to. JSON when nobody watches."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, TextIO

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_context: ContextVar[Mapping[str, Any]] = ContextVar("cubicle_log_context", default=_NOTHING)

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "context", "color_message"}


@contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Within the block every event carries these fields as well."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def note(**fields: Any) -> None:
    """From here to the end of the block around it (`bound`), every event of this task carries these fields as well."""
    _context.set({**_context.get(), **fields})


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What an event carries besides its text: the bound fields, then those of the call (`extra=`)."""
    own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return {**getattr(record, "context", _NOTHING), **own}


class _Context(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        record.context = _context.get()
        return True


class JsonLines(logging.Formatter):
    """For machines."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f"  {name}={value}" for name, value in fields_of(record).items())
        line = f"{clock} {record.levelname:<7} {record.getMessage()}{fields}".replace("\n", "\\n")
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def configure(style: str = "auto", stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send every event to the stream. `style`: text, json, or auto, which is JSON unless the stream is a terminal."""
    stream = stream or sys.stderr
    # No line shows the thread or the process; looking them up for each costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    as_json = style == "json" or (style == "auto" and not stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handler.addFilter(_Context())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("mcp", "sse_starlette", "uvicorn.access", "httpx", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
