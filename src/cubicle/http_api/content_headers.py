"""Headers for bytes that a model made: no browser may run them in the service's own origin."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from cubicle.core.media_types import is_text, media_type
from cubicle.core.paths import encoded, readable

_PASSIVE = frozenset(
    {
        "application/gzip",
        "application/json",
        "application/octet-stream",
        "application/pdf",
        "application/x-ndjson",
        "application/zip",
        "image/avif",
        "image/bmp",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/vnd.microsoft.icon",
        "image/webp",
        "text/csv",
        "text/markdown",
        "text/plain",
    }
)
_CODE = frozenset(
    {"audioworklet", "paintworklet", "script", "serviceworker", "sharedworker", "style", "worker", "xslt"}
)
_WALL = "sandbox; default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; media-src 'self'"


def is_for_own_page(headers: Mapping[str, str], *, framed: bool = False) -> bool:
    """Whether a page of the service's own origin would run the answer; the pages' own code is never a model's.

    `framed`: pages in an origin of their own, from which every request is a foreign one, may run it.
    """
    foreign = headers.get("Sec-Fetch-Site") != "same-origin"
    return headers.get("Sec-Fetch-Dest") in _CODE and not (framed and foreign)


def content_type(name: str) -> str:
    kind = media_type(name)
    return f"{kind}; charset=utf-8" if is_text(kind) else kind


def disposition(name: str, *, download: bool) -> str:
    """Content-Disposition with the name in both spellings; no character of it can end the header."""
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\%;' else "_" for c in readable(name))
    kind = "attachment" if download else "inline"
    return f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(encoded(name), safe='')}"


def file_headers(name: str, *, download: bool) -> dict[str, str]:
    """For a file under /files: what a browser could run is shown without rights, or not at all."""
    kind = media_type(name)
    headers = {
        "Content-Type": content_type(name),
        "Content-Disposition": disposition(name, download=download),
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "Referrer-Policy": "no-referrer",
        "Accept-Ranges": "bytes",
    }
    if kind not in _PASSIVE and not kind.startswith(("audio/", "video/")):
        headers["Content-Security-Policy"] = _WALL
    return headers


def runs_scripts(name: str) -> bool:
    """Whether a file under /raw can be a page that runs scripts: XML and SVG cannot take the guard before them."""
    return media_type(name) == "text/html"


def is_picture(name: str) -> bool:
    return media_type(name).startswith("image/")


def raw_headers(name: str, bases: str, *, scripts: bool) -> dict[str, str]:
    """For the same file under /raw, in an origin of its own that reaches only the files of its capability.

    `bases` are the addresses of the folder, separated by blanks. `scripts`: those of an HTML page run.
    """
    if scripts and runs_scripts(name):
        # Chromium does not know `webrtc`; cubicle.http_api.page_guard takes it away there.
        policy = f"sandbox allow-scripts; default-src {bases} 'unsafe-inline' data: blob:; webrtc 'block'"
    else:
        policy = (
            f"sandbox; default-src 'none'; img-src {bases} data: blob:; media-src {bases} data: blob:; "
            f"font-src {bases} data:; style-src {bases} 'unsafe-inline' data:"
        )
    return {
        "Content-Type": content_type(name),
        "Content-Security-Policy": (
            f"{policy}; frame-src 'none'; object-src 'none'; form-action 'none'; base-uri 'none'"
        ),
        "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=()",
        "X-DNS-Prefetch-Control": "off",
        "Access-Control-Allow-Origin": "*",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "private, no-cache",
        "Referrer-Policy": "no-referrer",
        "Accept-Ranges": "bytes",
    }
