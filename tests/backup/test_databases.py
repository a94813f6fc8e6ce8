"""A database that is written to while a backup is made."""

from __future__ import annotations

import io
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

from cubicle.backup.archive_file import ArchiveWriter
from cubicle.backup.chats import add_folder
from cubicle.backup.databases import copy_of
from cubicle.backup.whole import KIND


def written(path: Path) -> sqlite3.Connection:
    """What was committed is beside the file, in its write-ahead log."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    db.execute("CREATE TABLE letters(id TEXT)")
    db.executemany("INSERT INTO letters VALUES(?)", [(str(number),) for number in range(1000)])
    return db


def test_a_copy_has_all_that_was_committed(tmp_path: Path) -> None:
    with closing(written(tmp_path / "queue.sqlite3")) as db:
        db.execute("BEGIN")
        db.execute("DELETE FROM letters")
        with copy_of(tmp_path / "queue.sqlite3") as copy, closing(sqlite3.connect(copy)) as found:
            assert found.execute("SELECT count(*) FROM letters").fetchone() == (1000,)
            assert found.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.execute("ROLLBACK")


def test_a_damaged_file_is_kept_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "queue.sqlite3").write_bytes(b"no database" * 1000)
    with copy_of(tmp_path / "queue.sqlite3") as copy:
        assert copy.read_bytes() == b"no database" * 1000


def test_a_backup_holds_one_file_of_a_database(tmp_path: Path) -> None:
    folder = tmp_path / "webhooks"
    folder.mkdir()
    output = io.BytesIO()
    with closing(written(folder / "queue.v1.sqlite3")):
        assert {path.name for path in folder.iterdir()} == {f"queue.v1.sqlite3{end}" for end in ("", "-wal", "-shm")}
        with closing(ArchiveWriter(output, KIND)) as writer:
            add_folder(writer, folder, "data/webhooks", deep=True)
            writer.finish()
    output.seek(0)
    with tarfile.open(fileobj=output, mode="r:*") as archive:
        assert [name for name in archive.getnames() if "webhooks" in name] == ["data/webhooks/queue.v1.sqlite3"]
