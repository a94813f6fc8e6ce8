"""The few pages that the service itself shows under the name of a port."""

from __future__ import annotations

import secrets
from html import escape

from cubicle.core.problem import MEDIA_TYPE, Problem
from cubicle.http_api.plain_pages import ICON, NAME
from cubicle.http_api.port_headers import NOTE_HEADER, Lines

WAITING = b"waiting"
"""Nothing listens on the port yet."""
ASLEEP = b"asleep"
"""The sandbox is stopped, and this request does not start it."""
REFUSED = b"refused"

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:0;min-height:100vh;display:grid;place-content:center;padding:1.5rem;
background:Canvas;color:CanvasText}
main{max-width:34rem}h1{font-size:1.25rem;margin:0 0 .5rem}p{margin:.5rem 0}code{font-size:.95em}
"""
_RELOAD = """
const again = document.querySelector("button");
again.onclick = () => location.reload();
const look = async () => {
  let pause = 1000;
  if (document.visibilityState === "visible") {
    try {
      const answer = await fetch(location.href, {method: "HEAD", cache: "no-store", redirect: "manual"});
      const note = answer.headers.get("x-cubicle-port");
      if (note === null) return location.reload();
      again.hidden = note === "waiting";
      pause = again.hidden ? 1000 : 5000;
    } catch {}
  }
  setTimeout(look, pause);
};
setTimeout(look, 1000);
"""
"""Loads the page when the program answers, and only then: to load it starts a sandbox that was stopped meanwhile. For
that there is a button."""


def page(title: str, sentences: list[str], note: bytes = REFUSED) -> tuple[Lines, bytes]:
    """Headers and body of a small page. Its one script, if any, asks for the same address until the program answers."""
    nonce = secrets.token_urlsafe(16)
    script = f'<script nonce="{nonce}">{_RELOAD}</script>' if note == WAITING else ""
    button = '<p><button type="button" hidden>Load this page again</button></p>' if script else ""
    text = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    body = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · {NAME}</title>'
        f'<link rel="icon" href="{ICON}">'
        f'<meta name="viewport" content="width=device-width"><style nonce="{nonce}">{_STYLE}</style></head>'
        f'<body><main role="status"><h1>{escape(title)}</h1>{text}{button}</main>{script}</body></html>'
    ).encode()
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; img-src data:"
    )
    return [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"content-security-policy", f"{policy}; base-uri 'none'; form-action 'none'".encode()),
        *_common(note),
    ], body


def problem_body(problem: Problem, note: bytes = REFUSED) -> tuple[Lines, bytes]:
    """The same for programs."""
    body = problem.body()
    extra = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    lines = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    return [*lines, *extra, *_common(note)], body


def _common(note: bytes) -> Lines:
    return [
        (b"cache-control", b"no-store"),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (NOTE_HEADER, note),
    ]
