"""Media types: by name, by first bytes, and which of them are text."""

from __future__ import annotations

import mimetypes

UNKNOWN = "application/octet-stream"

_TEXT_LIKE = frozenset(
    {
        "application/json",
        "application/ld+json",
        "application/x-ndjson",
        "application/xml",
        "application/javascript",
        "application/typescript",
        "application/yaml",
        "application/toml",
        "application/sql",
        "application/x-sh",
        "application/x-httpd-php",
        "application/x-ipynb+json",
        "application/graphql",
        "image/svg+xml",
    }
)

_BY_EXTENSION = {
    ".md": "text/markdown",
    ".markdown": "text/markdown",
    ".csv": "text/csv",
    ".tsv": "text/tab-separated-values",
    ".log": "text/plain",
    ".ini": "text/plain",
    ".cfg": "text/plain",
    ".conf": "text/plain",
    ".rst": "text/x-rst",
    ".tex": "text/x-tex",
    ".py": "text/x-python",
    ".rs": "text/x-rust",
    ".go": "text/x-go",
    ".c": "text/x-c",
    ".h": "text/x-c",
    ".cpp": "text/x-c++",
    ".java": "text/x-java",
    ".rb": "text/x-ruby",
    ".ts": "application/typescript",
    ".tsx": "application/typescript",
    ".jsx": "application/javascript",
    ".js": "application/javascript",
    ".mjs": "application/javascript",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
    ".toml": "application/toml",
    ".sql": "application/sql",
    ".sh": "application/x-sh",
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".ipynb": "application/x-ipynb+json",
    ".xml": "application/xml",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".parquet": "application/vnd.apache.parquet",
    ".7z": "application/x-7z-compressed",
    ".gz": "application/gzip",
}

# Tables of the host would make the answer depend on where the service runs.
_TABLES = mimetypes.MimeTypes(filenames=(), strict=True)


def media_type(name: str) -> str:
    """The type of a file of this name."""
    stem, dot, extension = name.rpartition("/")[2].rpartition(".")
    if dot and stem and (known := _BY_EXTENSION.get(f".{extension.lower()}")):
        return known
    guessed, encoding = _TABLES.guess_type(f"x.{extension}" if dot and stem else "x")
    return guessed if guessed and not encoding else UNKNOWN


def is_text(kind: str) -> bool:
    """text/* and a short list of other types that are text."""
    return kind.startswith("text/") or kind in _TEXT_LIKE


def looks_binary(start: bytes) -> bool:
    """Whether these first bytes of a file are no text: a NUL, or mostly no UTF-8."""
    if b"\0" in start:
        return True
    decoded = start.decode("utf-8", "replace")
    return decoded.count("\ufffd") * 10 > len(decoded) > 0
