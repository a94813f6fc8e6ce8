"""Makes the guest's .pyz: the same sources give the same bytes. Runs on the host, never in a sandbox."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from pathlib import Path

_LEFT_OUT = {"bundle.py"}
_START = b"import guest.__main__\nguest.__main__.main()\n"


def build() -> bytes:
    """The archive, with a fixed date in every entry."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", _START)
        for source in sorted(Path(__file__).parent.glob("*.py")):
            if source.name not in _LEFT_OUT:
                _add(archive, f"guest/{source.name}", source.read_bytes())
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), content)


def digest(bundle: bytes) -> str:
    return hashlib.sha256(bundle).hexdigest()[:16]


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(build())
