"""Programs that run in the sandbox, not in the service: there its files are walked, read and written.

Each is handed to `python3 -I -c` as text. Python 3.9, standard library only.
"""

from __future__ import annotations

import functools
from importlib.resources import files


@functools.cache
def program(name: str) -> str:
    """The source text of one of them."""
    return files(__package__).joinpath(f"{name}.py").read_text("utf-8")
