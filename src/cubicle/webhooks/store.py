"""The queue on disk: events that wait for their receivers, dead letters, and from where each key was used.

One SQLite file, which the service and the command line may use at once. What is in it after a commit is on disk. All
calls block.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from cubicle import record
from cubicle.webhooks.events import Event

log = logging.getLogger(__name__)

T = TypeVar("T")

FILE = "queue.v1.sqlite3"
"""A version that writes another form takes another name, and leaves this file alone."""
MAX_WAITING = 5_000
"""Deliveries that wait for one receiver; further ones become dead letters at once."""
MAX_DEAD = 5_000
"""Dead letters; the oldest go first."""
_SHARE = 4
"""One tenant has at most this part of either."""
_MAX_NETWORKS = 500
"""Networks that are remembered of one key."""
_MAX_BYTES = 128 << 20
_PAGE = 4096
_BUSY_SECONDS = 5.0
_WAITING, _DEAD = "waiting", "dead"
FULL = "The queue was full."
_NO_RECEIVER = "WEBHOOKS_FILE has this receiver no more."
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events(
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, type TEXT NOT NULL, tenant TEXT NOT NULL, at REAL NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS deliveries(
    event INTEGER NOT NULL, receiver TEXT NOT NULL, tenant TEXT NOT NULL, state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, due REAL NOT NULL, error TEXT NOT NULL DEFAULT '',
    PRIMARY KEY(event, receiver)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_due ON deliveries(receiver, state, due);
CREATE INDEX IF NOT EXISTS by_tenant ON deliveries(state, tenant, event);
CREATE TABLE IF NOT EXISTS counts(name TEXT PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS networks(
    key TEXT NOT NULL, network TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY(key, network)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that is due at a receiver."""

    number: int
    id: str
    receiver: str
    attempts: int
    """Made before."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Letter:
    """A delivery as it is listed."""

    id: str
    type: str
    tenant: str
    at: float
    receiver: str
    state: str
    attempts: int
    due: float
    error: str


@dataclass(frozen=True, slots=True)
class Counted:
    """How many deliveries of a receiver there are."""

    receiver: str
    waiting: int
    dead: int


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key was used from a network: `event` is to be told if that is new. Of `first` use it says so."""

    key: str
    network: str
    event: Event
    first: Event


Told = Callable[[Event], Sequence[str]]
"""The names of the receivers that want an event."""


class Store:
    """Give it a folder that is the service's own."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time, *, across_hosts: bool = False) -> None:
        """`across_hosts`: the folder is on a network's file system, and processes of other hosts use it, too."""
        self._across_hosts = across_hosts
        self._path = folder / FILE
        self._clock = clock
        self._db: sqlite3.Connection | None = None

    @property
    def exists(self) -> bool:
        return self._path.exists()

    def open(self) -> None:
        """Open the file; one that is damaged is set aside. Raises OSError, sqlite3.Error."""
        record.make_folder(self._path.parent)
        self._with(lambda db: None)

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.close()

    # ---- events

    def add(self, uses: Sequence[KeyUse], events: Sequence[Event], told: Told) -> None:
        """Put events into the queue; uses of keys only if their network is new."""

        def work(db: sqlite3.Connection) -> None:
            for event in [*events, *(found for use in uses if (found := self._noted(db, use)) is not None)]:
                self._add(db, event, told(event))
            self._trim(db)

        self._with(work)

    def _add(self, db: sqlite3.Connection, event: Event, receivers: Sequence[str]) -> None:
        if not receivers:
            return
        row = (event.id, event.type.value, event.tenant, event.at, event.body())
        added = db.execute("INSERT OR IGNORE INTO events(id, type, tenant, at, body) VALUES (?, ?, ?, ?, ?)", row)
        if not added.rowcount:
            return  # it was written, and nobody heard of it
        for receiver in receivers:
            full = self._is_full(db, receiver, event.tenant)
            state, error = (_DEAD, FULL) if full else (_WAITING, "")
            db.execute(
                "INSERT INTO deliveries(event, receiver, tenant, state, due, error) VALUES (?, ?, ?, ?, ?, ?)",
                (added.lastrowid, receiver, event.tenant, state, self._clock(), error),
            )

    def _is_full(self, db: sqlite3.Connection, receiver: str, tenant: str) -> bool:
        waiting = "SELECT count(*) FROM deliveries WHERE receiver = ? AND state = 'waiting'"
        if _one(db, waiting, receiver) < MAX_WAITING // _SHARE:
            return False
        of_tenant = _one(db, f"{waiting} AND tenant = ?", receiver, tenant)
        return of_tenant >= MAX_WAITING // _SHARE or _one(db, waiting, receiver) >= MAX_WAITING

    def _trim(self, db: sqlite3.Connection) -> None:
        """Drop the oldest dead letters beyond the limits."""
        total = _one(db, "SELECT count(*) FROM deliveries WHERE state = 'dead'")
        if total <= MAX_DEAD // _SHARE:
            return
        of_tenants = db.execute(
            "SELECT tenant, count(*) FROM deliveries WHERE state = 'dead' GROUP BY tenant HAVING count(*) > ?",
            (MAX_DEAD // _SHARE,),
        ).fetchall()
        for tenant, count in of_tenants:
            total -= self._drop(db, tenant, count - MAX_DEAD // _SHARE)
        if total > MAX_DEAD:
            self._drop(db, None, total - MAX_DEAD)

    def _drop(self, db: sqlite3.Connection, tenant: str | None, count: int) -> int:
        """The oldest, of one tenant or of all; how many."""
        oldest = db.execute(
            "SELECT event, receiver FROM deliveries WHERE state = 'dead' AND (?1 IS NULL OR tenant = ?1) "
            "ORDER BY event LIMIT ?2",
            (tenant, count),
        ).fetchall()
        db.executemany("DELETE FROM deliveries WHERE event = ? AND receiver = ?", oldest)
        self._clear(db, [number for number, _ in oldest])
        db.execute(
            "INSERT INTO counts(name, count) VALUES ('dropped', ?) "
            "ON CONFLICT(name) DO UPDATE SET count = count + excluded.count",
            (len(oldest),),
        )
        return len(oldest)

    def _clear(self, db: sqlite3.Connection, numbers: Sequence[int]) -> None:
        """Forget events that nobody waits for any more."""
        db.executemany(
            "DELETE FROM events WHERE number = ?1 AND NOT EXISTS (SELECT 1 FROM deliveries WHERE event = ?1)",
            [(number,) for number in numbers],
        )

    def _noted(self, db: sqlite3.Connection, use: KeyUse) -> Event | None:
        """The event to be told, if the key was never used from there."""
        known = _one(db, "SELECT count(*) FROM networks WHERE key = ?", use.key)
        added = db.execute(
            "INSERT OR IGNORE INTO networks(key, network, at) VALUES (?, ?, ?)", (use.key, use.network, use.event.at)
        ).rowcount
        if not added:
            return None
        if known >= _MAX_NETWORKS:
            db.execute(
                "DELETE FROM networks WHERE key = ?1 AND network IN "
                "(SELECT network FROM networks WHERE key = ?1 AND network != ?2 ORDER BY at LIMIT 1)",
                (use.key, use.network),
            )
        return use.event if known else use.first

    # ---- deliveries

    def due(self, receiver: str, count: int, busy: Sequence[int], longest: float) -> list[Delivery]:
        """What is to be sent now. A time that lies further ahead than any wait (`longest`) came of a clock that was
        set back: it counts as now."""
        now = self._clock()

        def work(db: sqlite3.Connection) -> list[Delivery]:
            rows = db.execute(
                "SELECT event, id, receiver, attempts, body FROM deliveries JOIN events ON number = event "
                "WHERE receiver = ? AND state = 'waiting' AND (due <= ? OR due > ?) "
                "AND event NOT IN (SELECT value FROM json_each(?)) ORDER BY due LIMIT ?",
                (receiver, now, now + longest, json.dumps(list(busy)), count),
            )
            return [Delivery(*row) for row in rows]

        return self._with(work)

    def next_due(self, receiver: str, busy: Sequence[int]) -> float | None:
        """Seconds until something is to be sent; None when nothing waits."""

        def work(db: sqlite3.Connection) -> float | None:
            found = db.execute(
                "SELECT min(due) FROM deliveries WHERE receiver = ? AND state = 'waiting' "
                "AND event NOT IN (SELECT value FROM json_each(?))",
                (receiver, json.dumps(list(busy))),
            ).fetchone()[0]
            return None if found is None else max(0.0, float(found) - self._clock())

        return self._with(work)

    def delivered(self, delivery: Delivery) -> None:
        def work(db: sqlite3.Connection) -> None:
            key = (delivery.number, delivery.receiver)
            db.execute("DELETE FROM deliveries WHERE event = ? AND receiver = ?", key)
            self._clear(db, [delivery.number])

        self._with(work)

    def failed(self, delivery: Delivery, error: str, wait: float | None) -> None:
        """An attempt failed; the next one is in `wait` seconds. None: there is none, and it is a dead letter."""

        def work(db: sqlite3.Connection) -> None:
            state, due = (_DEAD, self._clock()) if wait is None else (_WAITING, self._clock() + wait)
            db.execute(
                "UPDATE deliveries SET state = ?, due = ?, error = ?, attempts = attempts + 1 "
                "WHERE event = ? AND receiver = ?",
                (state, due, error, delivery.number, delivery.receiver),
            )
            self._trim(db)

        self._with(work)

    def give_up_others(self, receivers: Sequence[str]) -> None:
        """What waits for receivers that there are no more becomes dead letters."""

        def work(db: sqlite3.Connection) -> None:
            db.execute(
                "UPDATE deliveries SET state = 'dead', error = ? "
                "WHERE state = 'waiting' AND receiver NOT IN (SELECT value FROM json_each(?))",
                (_NO_RECEIVER, json.dumps(list(receivers))),
            )
            self._trim(db)

        self._with(work)

    # ---- for people

    def counts(self) -> list[Counted]:
        def work(db: sqlite3.Connection) -> list[Counted]:
            rows = db.execute(
                "SELECT receiver, sum(state = 'waiting'), sum(state = 'dead') FROM deliveries GROUP BY receiver"
            )
            return [Counted(*row) for row in rows]

        return self._with(work)

    def dropped(self) -> int:
        """Dead letters that were dropped, as there were too many."""
        return self._with(lambda db: _one(db, "SELECT coalesce(max(count), 0) FROM counts WHERE name = 'dropped'"))

    def letters(self, *, dead: bool, count: int) -> list[Letter]:
        """The newest first."""

        def work(db: sqlite3.Connection) -> list[Letter]:
            rows = db.execute(
                "SELECT id, type, events.tenant, at, receiver, state, attempts, due, error "
                "FROM deliveries JOIN events ON number = event WHERE state = ? ORDER BY event DESC LIMIT ?",
                (_DEAD if dead else _WAITING, count),
            )
            return [Letter(*row) for row in rows]

        return self._with(work)

    def retry(self, ids: Sequence[str] | None, receiver: str = "") -> int:
        """Send dead letters, and what waits for a later time, now; None: all dead letters. How many."""

        def work(db: sqlite3.Connection) -> int:
            return db.execute(
                "UPDATE deliveries SET state = 'waiting', attempts = 0, due = ?1 WHERE (?2 = '' OR receiver = ?2) AND "
                "CASE WHEN ?3 IS NULL THEN state = 'dead' "
                "ELSE event IN (SELECT number FROM events WHERE id IN (SELECT value FROM json_each(?3))) END",
                (self._clock(), receiver, None if ids is None else json.dumps(list(ids))),
            ).rowcount

        return self._with(work)

    # ---- the file

    def _with(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction. A file that turns out to be damaged is set aside, and the work done on a new one."""
        try:
            return self._once(work)
        except sqlite3.DatabaseError as error:
            if type(error) is not sqlite3.DatabaseError:
                raise  # a full disk, a lock: the file is as it was
            self._set_aside(str(error))
            return self._once(work)

    def _once(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._db is None:
            self._db = self._connected()
        with _transaction(self._db) as db:
            return work(db)

    def _connected(self) -> sqlite3.Connection:
        record.clear_folder(self._path)
        db = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            self._path.chmod(0o600)
            self._set_mode(db)
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA max_page_count = {_MAX_BYTES // _PAGE}")
            db.execute("PRAGMA journal_size_limit = 8388608")
            if db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("its content is damaged")
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
        except BaseException:
            db.close()
            raise
        return db

    def _set_mode(self, db: sqlite3.Connection) -> None:
        """A write-ahead log has its index in memory that processes share: between hosts it would destroy the file."""
        if not self._across_hosts:
            db.execute("PRAGMA journal_mode = WAL")
            return
        with contextlib.suppress(sqlite3.OperationalError):  # a replica of the version before has it open
            db.execute("PRAGMA journal_mode = DELETE")

    def _set_aside(self, why: str) -> None:
        self.close()
        log.error("the queue of webhooks is damaged (%s); it was set aside, and a new one begun", why[:200])
        for path in (self._path, *(self._path.with_name(f"{FILE}{end}") for end in ("-wal", "-shm"))):
            with contextlib.suppress(FileNotFoundError):
                record.keep_bad(path)


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _one(db: sqlite3.Connection, question: str, *values: object) -> int:
    return int(db.execute(question, values).fetchone()[0])
