"""Programs that run inside a sandbox, handed to its Python as text: standard library only, nothing of this package.

What they print is hostile all the same: whoever reads it checks it.
"""

from __future__ import annotations

from importlib.resources import files


def program(name: str) -> str:
    """The source of one of them."""
    return (files(__package__) / f"{name}.py").read_text(encoding="utf-8")
