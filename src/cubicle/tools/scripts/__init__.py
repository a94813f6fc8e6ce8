"""Programs that run in the sandbox, not in the service: hostile files are parsed where they can do no harm.

Each is handed to `python3 -I -c` as text. Standard library only, or libraries that the image may have.
"""

from __future__ import annotations

from importlib.resources import files


def program(name: str) -> str:
    """The source text of one of them."""
    return files(__package__).joinpath(f"{name}.py").read_text("utf-8")
