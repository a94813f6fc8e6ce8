"""What a page may load, run and be framed by: the Content-Security-Policy of each kind of document."""

from __future__ import annotations

import re
from collections.abc import Sequence

_EMBEDDER = re.compile(r"(https?://)?(\*\.)?[A-Za-z0-9.-]+(:(\d{1,5}|\*))?")


class BadEmbedder(ValueError):
    """The text is not an origin that a page can be framed by; the message names it."""


def frame_ancestors(embedders: Sequence[str]) -> str:
    """The sites that may frame the pages; without any, the service itself."""
    for embedder in embedders:
        if not _EMBEDDER.fullmatch(embedder):
            raise BadEmbedder(f"{embedder!r} is not an origin such as https://chat.example.org")
    return " ".join(["'self'", *embedders])


def page_policy(embedders: Sequence[str], frames: str = "", *, card: bool = False) -> str:
    """For the pages of the service's own origin: only its own scripts, nothing from outside.

    `frames` are the origins of ports, which the workspace shows in a frame. `card`: any site may frame it. That is for
    pages that were opened by the key of a card, with which nobody can do more than look.
    """
    return "; ".join(
        [
            "default-src 'none'",
            # 'self' holds /files and /raw, too: those refuse to be scripts of these pages (content_headers.py).
            "script-src 'self'",
            # xterm writes its colours and sizes into style elements.
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "media-src 'self' blob:",
            "font-src 'self'",
            "connect-src 'self'",
            f"frame-src 'self' {frames}".rstrip(),
            "base-uri 'none'",
            "form-action 'self'",
            f"frame-ancestors {'*' if card else frame_ancestors(embedders)}",
        ]
    )


def viewer_policy(embedders: Sequence[str], *, card: bool = False) -> str:
    """For the frame in which hostile files are parsed: an opaque origin that can call nobody.

    Its scripts come from the service; file contents come by message. A parser that a file takes over can
    reach no cookie, no API and no other site.
    """
    return "; ".join(
        [
            "sandbox allow-scripts",
            "default-src 'none'",
            # The image decoders of the PDF viewer are WebAssembly.
            "script-src 'self' 'wasm-unsafe-eval'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data: blob:",
            "worker-src blob:",
            "connect-src 'none'",
            "frame-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            f"frame-ancestors {'*' if card else frame_ancestors(embedders)}",
        ]
    )
