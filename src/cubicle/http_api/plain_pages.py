"""Pages of a sentence and a button, which need no script, with the mark of the product."""

from __future__ import annotations

import base64
from html import escape

NAME = "Cubicle"
FONTS = (
    '-apple-system, BlinkMacSystemFont, "Segoe UI Variable Text", "Segoe UI", Roboto, Cantarell, Ubuntu, "Noto Sans", '
    '"Liberation Sans", "DejaVu Sans", Arial, system-ui, sans-serif'
)
"""As in web/src/ui/base.css."""
MARK = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" width="32" height="32" aria-hidden="true">'
    '<rect x="2" y="2" width="28" height="28" rx="7" fill="#2f55c8"/>'
    '<path d="M16 6.5l8.5 4.8v9.4L16 25.5l-8.5-4.8v-9.4z" fill="none" stroke="#fff" stroke-width="2.2" '
    'stroke-linejoin="round"/><path d="M7.5 11.3L16 16.1l8.5-4.8M16 16.1v9.4" fill="none" stroke="#fff" '
    'stroke-width="2.2" stroke-linejoin="round"/></svg>'
)
"""The shape of web/public/icon.svg."""
ICON = "data:image/svg+xml;base64," + base64.b64encode(MARK.encode()).decode()
"""For pages that stand at any depth, or on another host."""

_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{title} · {name}</title><link rel="icon" href="{icon}">
<style>
body {{ max-width: 34rem; margin: 12vh auto; padding: 0 1rem; font: 1rem/1.5 {fonts}; text-align: center;
overflow-wrap: anywhere }}
header {{ display: flex; gap: .5rem; align-items: center; justify-content: center; font-weight: 650 }}
h1 {{ font-size: 1.5rem; margin: 2rem 0 1rem }}
a, button {{ display: inline-block; padding: .5rem 1.25rem; border: 0; border-radius: 8px; background: #2f55c8;
color: #fff; font: inherit; text-decoration: none }}
a:focus-visible, button:focus-visible {{ outline: 3px solid #93aefc; outline-offset: 2px }}
</style></head>
<body><header>{mark}<span>{name}</span></header><main><h1>{title}</h1>{body}</main></body>
</html>
"""


def plain_page(title: str, body: str) -> str:
    """`title` is text, `body` is HTML."""
    return _PAGE.format(title=escape(title), body=body, name=NAME, icon=ICON, mark=MARK, fonts=FONTS)


def refusal(title: str, detail: str) -> str:
    return plain_page(title, f"<p>{escape(detail)}</p>")


def asleep(reason: str, way: str, label: str) -> str:
    """The sandbox of a file sleeps: `way` wakes it and leads to the file."""
    link = f'<a href="{escape(way)}" rel="nofollow">{escape(label)}</a>'
    return plain_page("This computer sleeps", f"<p>{escape(reason)}</p><p>{link}</p>")


def one_time(once: str, target: str) -> str:
    """Asks before it signs in: whatever looks at links before people do would use the link up."""
    return plain_page(
        "Sign in",
        "<p>This link signs in one browser, once.</p>"
        f'<form method="post" action="./login"><input type="hidden" name="once" value="{escape(once)}">'
        f'<input type="hidden" name="next" value="{escape(target)}"><button>Sign in here</button></form>',
    )
