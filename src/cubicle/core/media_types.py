"""Media types: by name, by first bytes, and which of them are text."""

from __future__ import annotations

import mimetypes

UNKNOWN = "application/octet-stream"

_TEXT_LIKE = frozenset(
    {
        "application/json",
        "application/ld+json",
        "application/geo+json",
        "application/x-ndjson",
        "application/xml",
        "application/xhtml+xml",
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
    ".properties": "text/plain",
    ".srt": "text/plain",
    ".rst": "text/x-rst",
    ".adoc": "text/asciidoc",
    ".bib": "text/x-bibtex",
    ".ics": "text/calendar",
    ".vcf": "text/vcard",
    ".vtt": "text/vtt",
    ".diff": "text/x-diff",
    ".patch": "text/x-diff",
    ".tex": "text/x-tex",
    ".py": "text/x-python",
    ".rs": "text/x-rust",
    ".go": "text/x-go",
    ".c": "text/x-c",
    ".h": "text/x-c",
    ".cc": "text/x-c++",
    ".cpp": "text/x-c++",
    ".hpp": "text/x-c++",
    ".cs": "text/x-csharp",
    ".java": "text/x-java",
    ".kt": "text/x-kotlin",
    ".swift": "text/x-swift",
    ".scala": "text/x-scala",
    ".dart": "text/x-dart",
    ".rb": "text/x-ruby",
    ".pl": "text/x-perl",
    ".lua": "text/x-lua",
    ".r": "text/x-r",
    ".jl": "text/x-julia",
    ".hs": "text/x-haskell",
    ".ex": "text/x-elixir",
    ".php": "application/x-httpd-php",
    ".bat": "text/x-bat",
    ".ps1": "text/x-powershell",
    ".css": "text/css",
    ".scss": "text/x-scss",
    ".less": "text/x-less",
    ".vue": "text/x-vue",
    ".svelte": "text/x-svelte",
    ".proto": "text/x-protobuf",
    ".tf": "text/x-terraform",
    ".graphql": "application/graphql",
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
    ".geojson": "application/geo+json",
    ".jsonl": "application/x-ndjson",
    ".ndjson": "application/x-ndjson",
    ".ipynb": "application/x-ipynb+json",
    ".xml": "application/xml",
    ".xhtml": "application/xhtml+xml",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
    ".avif": "image/avif",
    ".heic": "image/heic",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".ogv": "video/ogg",
    ".mkv": "video/x-matroska",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
    ".ttf": "font/ttf",
    ".otf": "font/otf",
    ".rtf": "application/rtf",
    ".epub": "application/epub+zip",
    ".odt": "application/vnd.oasis.opendocument.text",
    ".ods": "application/vnd.oasis.opendocument.spreadsheet",
    ".odp": "application/vnd.oasis.opendocument.presentation",
    ".docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ".pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    ".parquet": "application/vnd.apache.parquet",
    ".7z": "application/x-7z-compressed",
    ".gz": "application/gzip",
}

_BY_NAME = {
    "dockerfile": "text/x-dockerfile",
    "makefile": "text/x-makefile",
    **dict.fromkeys(("readme", "license", "copying", "notice", "authors", "changelog"), "text/plain"),
    **dict.fromkeys((".gitignore", ".gitattributes", ".dockerignore", ".editorconfig", ".env"), "text/plain"),
}

# Tables of the host would make the answer depend on where the service runs.
_TABLES = mimetypes.MimeTypes(filenames=(), strict=True)


def media_type(name: str) -> str:
    """The type of a file of this name."""
    last = name.rpartition("/")[2]
    if known := _BY_NAME.get(last.lower()):
        return known
    stem, dot, extension = last.rpartition(".")
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
