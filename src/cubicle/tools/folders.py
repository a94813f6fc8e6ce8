"""How `view` shows a directory."""

from __future__ import annotations

from cubicle.guest.operations import Entry
from cubicle.machine.machine import READABLE_ROOTS, Machine
from cubicle.tools.output import Cap

_LEVELS = 2
_MAX_ENTRIES = 2_000


async def show_folder(machine: Machine, path: str) -> str:
    """Two levels, with sizes; names that start with a dot are left out."""
    shown = Cap()
    shown.feed(f"{path.rstrip('/') or '/'}/\n")
    entries = 0
    async for entry in machine.list(path, depth=_LEVELS, limit=_MAX_ENTRIES, roots=READABLE_ROOTS):
        shown.feed(_line(entry))
        entries += 1
    if not entries:
        shown.feed("  (nothing here but what starts with a dot, if that)\n")
    if entries >= _MAX_ENTRIES:
        shown.feed(f"[only the first {_MAX_ENTRIES:,} entries are shown; use bash_tool with find or ls for the rest]\n")
    return shown.text().rstrip("\n")


def _line(entry: Entry) -> str:
    indent = "  " * (entry.path.count("/") + 1)
    name = entry.path.rpartition("/")[2].replace("\n", "\\n")
    match entry.kind:
        case "directory":
            return f"{indent}{name}/\n"
        case "symlink":
            return f"{indent}{name} -> {(entry.link or '?')[:200]}\n".replace("\r", "\\r")
        case "file":
            return f"{indent}{name} ({human_size(entry.size)})\n"
        case _:
            return f"{indent}{name} (special)\n"


def human_size(size: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1024 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
        size /= 1024
    raise AssertionError
