"""Structured logs: one line an event, with the chat and the request it belongs to. JSON when nobody watches."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import Any, TextIO

from cubicle.core.chat import Chat

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_context: ContextVar[Mapping[str, Any]] = ContextVar("cubicle_log_context", default=_NOTHING)

_MAX_USERS = 10_000
_users: OrderedDict[str, str] = OrderedDict()
"""Who used a chat last, by the chat's digest."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "context", "color_message"}

_COMMANDS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys, or cannot be written; the text of an event may come from anybody. A line break is not here."""

_MAX_COUNT = 10_000
"""Lines that wait to be written; further ones are counted only."""
_MAX_SUMMARIES = 200
"""Kinds of lines that are summed up each by itself; the others by tenant."""
_TOGETHER = 0.02
"""Seconds in which lines gather: one wake-up of the thread for all of them."""
_TIMEOUT = 2.0
"""Seconds that the end of the process waits for the last lines."""


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


def note_caller(chat: Chat, user: str | None) -> None:
    """`note` whose request this is. The lines of the chat itself name the user as well, until another one comes."""
    note(chat=chat.id, tenant=chat.tenant, **({"user": user} if user else {}))
    if user:
        _users[chat.digest] = user
        _users.move_to_end(chat.digest)
        while len(_users) > _MAX_USERS:
            _users.popitem(last=False)


def chat_fields(chat: Chat | None) -> dict[str, Any]:
    """For `extra=` of a line that belongs to a chat: its id, its tenant and the user who used it last."""
    if chat is None:
        return {"chat": "?"}
    user = _users.get(chat.digest)
    return {"chat": chat.id, "tenant": chat.tenant, **({"user": user} if user else {})}


def forget_user(chat: Chat) -> None:
    """The chat is removed."""
    _users.pop(chat.digest, None)


def bound_fields() -> Mapping[str, Any]:
    """What every event of this task carries now."""
    return _context.get()


@contextmanager
def detached() -> Iterator[None]:
    """For a task that outlives the request which started it: events of the block carry nothing of that request."""
    token = _context.set(_NOTHING)
    try:
        yield
    finally:
        _context.reset(token)


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
        return _harmless(json.dumps(event, default=str, ensure_ascii=False))


class TextLines(logging.Formatter):
    """For people."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f"  {name}={value}" for name, value in fields_of(record).items())
        line = f"{clock} {record.levelname:<7} {record.getMessage()}{fields}".replace("\n", "\\n")
        return _harmless(f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line)


def _harmless(text: str) -> str:
    """Such characters as JSON escapes them."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Repeats:
    """Bounds what one chat, and one tenant, can have written: beyond that, lines are counted and summed up.

    A chat may have so many lines of one kind in a window, a tenant so many of all kinds.
    """

    def __init__(self, of_chat: int = 200, of_tenant: int = 2000, window: float = 10.0) -> None:
        self._of_chat, self._of_tenant, self.window = of_chat, of_tenant, window
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._left_out: dict[tuple[str, ...], tuple[int, logging.LogRecord]] = {}
        self._ends = 0.0

    def admit(self, record: logging.LogRecord, now: float) -> bool:
        """Whether to write it. `summary` comes first when a window is over."""
        fields = getattr(record, "context", _NOTHING)
        tenant, chat = (str(vars(record).get(name, fields.get(name, ""))) for name in ("tenant", "chat"))
        kind: tuple[str, ...] = (tenant, chat, record.name, str(record.msg))
        if len(self._counts) >= _MAX_COUNT:  # of a window in which everything is of another kind
            kind = (tenant, "", record.name, "")
        self._ends = self._ends or now + self.window
        self._counts[kind] += 1
        self._counts[(tenant,)] += 1
        if self._counts[kind] <= self._of_chat and self._counts[(tenant,)] <= self._of_tenant:
            return True
        kind = kind if kind in self._left_out or len(self._left_out) < _MAX_SUMMARIES else (tenant,)
        count, _ = self._left_out.get(kind, (0, record))
        self._left_out[kind] = (count + 1, record)
        return False

    def summary(self, now: float) -> list[logging.LogRecord]:
        """When a window is over: what was left out of it, a line for each kind with the fields of its last one."""
        if not self._counts or now < self._ends:
            return []
        left_out, self._left_out, self._ends = self._left_out, {}, 0.0
        self._counts.clear()
        return [self._summed(record, count) for count, record in left_out.values()]

    def _summed(self, record: logging.LogRecord, count: int) -> logging.LogRecord:
        fields = vars(record) | {"args": None, "exc_info": None, "exc_text": None}
        fields["msg"] = f"{str(record.msg)[:200]} … repeated {count:,} times in {self.window:g} s"
        return logging.makeLogRecord(fields)


class LineHandler(logging.Handler):
    """Writes in a thread: a terminal that is held, a pipe that nobody reads or a busy disk holds up the log alone."""

    def __init__(self, stream: TextIO, repeats: Repeats | None = None) -> None:
        super().__init__()
        self._stream = stream
        self._repeats = repeats or Repeats()
        self._waiting = SimpleQueue[str | threading.Event]()
        self._lost = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        self._sum_up(now)
        if not self._repeats.admit(record, now):
            return
        if self._waiting.qsize() < _MAX_COUNT:
            self._waiting.put(self.format(record))
        else:
            self._lost += 1

    def _sum_up(self, now: float) -> None:
        for record in self._repeats.summary(now):
            self._waiting.put(self.format(record))

    def flush(self) -> None:
        """Returns when all is written, or the stream takes nothing."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait(_TIMEOUT)

    def _run(self) -> None:
        said = 0
        while True:
            batch: list[str | threading.Event] = []
            try:
                batch.append(self._waiting.get(timeout=self._repeats.window))
                time.sleep(_TOGETHER)
            except Empty:
                self.acquire()
                self._sum_up(time.monotonic())
                self.release()
            with suppress(Empty):
                while len(batch) < _MAX_COUNT:
                    batch.append(self._waiting.get_nowait())
            lines = [one for one in batch if isinstance(one, str)]
            lost = self._lost  # counted where events come, under the handler's lock
            if lost > said:
                lines.append(self.format(_event(f"{lost - said} events are missing here: the log was not taken")))
                said = lost
            with suppress(OSError, ValueError):  # it was closed
                self._stream.write("".join(f"{line}\n" for line in lines))
                self._stream.flush()
            for one in batch:
                if isinstance(one, threading.Event):
                    one.set()


def _event(text: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)


def configure(style: str = "auto", stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send every event to the stream. `style`: text, json, or auto, which is JSON unless the stream is a terminal."""
    stream = stream or sys.stderr
    # No line shows the thread or the process; looking them up for each costs.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    as_json = style == "json" or (style == "auto" and not stream.isatty())
    handler = LineHandler(stream)
    handler.setFormatter(JsonLines() if as_json else TextLines())
    handler.addFilter(_Context())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for chatty in ("mcp", "sse_starlette", "uvicorn.access", "httpx", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def flush() -> None:
    """Have all written so far, if it is taken in a while."""
    for handler in logging.getLogger().handlers:
        handler.flush()
