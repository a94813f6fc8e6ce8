"""Programs that run inside a sandbox, handed to its Python as text: standard library only, nothing of this package.

What they print is hostile all the same: whoever reads it checks it.
"""

from __future__ import annotations

from importlib.resources import files

_SOURCES = {
    entry.name.removesuffix(".py"): entry.read_text(encoding="utf-8")
    for entry in files(__package__).iterdir()
    if entry.name.endswith(".py") and entry.name != "__init__.py"
}


def program(name: str) -> str:
    """The source of one of them; all are read at import, so that no request reads a file on the loop."""
    return _SOURCES[name]
