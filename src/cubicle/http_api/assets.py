"""The built scripts and styles: which files a page needs, and how they are served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike, stat_result
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

STATIC = Path(__file__).parent / "static"
CARD = STATIC / "card.html"
"""The page of all cards in chat clients, which is no page of this API."""


class AssetsMissing(Exception):
    """The pages were not built; the message says how to build them."""


@dataclass(frozen=True, slots=True)
class AssetEntry:
    """What one page loads first: its script, the scripts that one imports, its styles."""

    script: str
    preloads: tuple[str, ...]
    styles: tuple[str, ...]


class Assets:
    """The manifest that the build writes, read once."""

    def __init__(self, folder: Path = STATIC) -> None:
        self.folder = folder
        try:
            self._manifest: dict[str, dict[str, Any]] = json.loads((folder / "manifest.json").read_text("utf-8"))
        except FileNotFoundError:
            raise AssetsMissing("The pages are not built: run web/build.sh") from None

    def entry(self, page: str) -> AssetEntry:
        key = f"src/{page}/main.tsx"
        if key not in self._manifest:
            raise AssetsMissing(f"The page {page} is not in the build: run web/build.sh")
        chunks = list(self._static_imports(key, set()))
        return AssetEntry(
            script=self._manifest[key]["file"],
            preloads=tuple(self._manifest[c]["file"] for c in chunks if c != key),
            styles=tuple(style for c in chunks for style in self._manifest[c].get("css", ())),
        )

    def _static_imports(self, key: str, seen: set[str]) -> Iterator[str]:
        """The chunk's imports before the chunk itself, so that styles keep their order."""
        if key in seen:
            return
        seen.add(key)
        for imported in self._manifest[key].get("imports", ()):
            yield from self._static_imports(imported, seen)
        yield key


class AssetFiles(StaticFiles):
    """Serves the built files. The name of one under `assets/` holds its hash, so it never changes."""

    def file_response(
        self, full_path: str | PathLike[str], stat_result: stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        hashed = Path(full_path).parent.name == "assets"
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable" if hashed else "public, max-age=3600"
        # The viewer frame has an opaque origin: without this it could not load its own scripts.
        response.headers["Access-Control-Allow-Origin"] = "*"
        response.headers["Cross-Origin-Resource-Policy"] = "cross-origin"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response
