"""Notes that the command line leaves for the audit log: the service that runs takes them, or the next one does.

One process writes the chain. So a command that changes something puts a small file into DATA_DIR/audit/inbox.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import time
from collections.abc import Mapping
from pathlib import Path

from cubicle import durable, record
from cubicle.journal import format
from cubicle.record import BadRecord

FOLDER = "inbox"
_MAX_NOTES = 1_000
"""That are taken at once."""
_MAX_SIZE = 16 * 1024
_SUFFIX = ".json"


def leave_note(folder: Path, kind: str, fields: Mapping[str, object]) -> None:
    """Have the audit log say this; on disk when it returns. Blocks. Raises OSError."""
    inbox = folder / FOLDER
    record.make_folder(inbox)
    content = {"at": time.time(), "kind": kind, "fields": fields}
    path = inbox / f"{time.time_ns():020}-{secrets.token_hex(4)}{_SUFFIX}"
    durable.write(path, json.dumps(content).encode())
    _give_away(folder.parent, folder, inbox, path)


def _give_away(whose: Path, *paths: Path) -> None:
    """What root made belongs to the user of the service, as the folder around it does."""
    owner = whose.stat()
    if os.geteuid() == 0 and owner.st_uid:
        for path in paths:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def read_notes(folder: Path) -> list[tuple[Path, bytes]]:
    """What waits, in its order: files, and the bodies of the records that they make. Blocks. Raises OSError."""
    inbox = folder / FOLDER
    try:
        names = sorted(name for name in os.listdir(inbox) if name.endswith(_SUFFIX) and not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for name in names[:_MAX_NOTES]:
        try:
            found.append((inbox / name, _body(inbox / name)))
        except FileNotFoundError:
            continue
        except BadRecord:
            record.keep_bad(inbox / name)
    return found


def _body(path: Path) -> bytes:
    content = record.Fields(_object(record.parsed(record.read_bytes(path, _MAX_SIZE))))
    kind = content.text("kind", 32)
    if not kind or not all(c == "_" or "a" <= c <= "z" for c in kind):
        raise BadRecord("kind is not a name")
    return format.body(content.number("at"), kind, {**content.fields("fields").values, "note": path.stem[-8:]})


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise BadRecord("it is not a JSON object")
    return value


def local_user() -> str:
    """Who runs the command, on this machine."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
