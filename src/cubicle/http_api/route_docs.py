"""The table of docs/http.md, printed from the table of routes: `python -m cubicle.http_api.route_docs docs/http.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from cubicle.chat.authentication import Who
from cubicle.http_api.routes import MCP, ROWS, Row

BEGIN, END = "<!-- routes -->\n", "<!-- end of routes -->\n"


def markdown() -> str:
    lines = ["| URL | who may | chat id | sandbox | does |", "|---|---|---|---|---|"]
    lines += [
        f"| `{_methods(row)} {_shown(row)}` | {_who(row)} | {row.chat.value} | {row.use.value} | {row.does} |"
        for row in (MCP, *ROWS)
    ]
    return "\n".join(lines) + "\n"


def rewritten(page: str) -> str:
    """The page with the table of today between the two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{markdown()}{END}{after}"


def _who(row: Row) -> str:
    return (
        row.who.value.replace("link", "control link") if row.who is Who.CHAT and not row.for_viewers else row.who.value
    )


def _methods(row: Row) -> str:
    return row.methods.replace(" ", ", ")


def _shown(row: Row) -> str:
    path = row.template.replace("{", "<").replace("}", ">")
    return f"{path}/…" if row.mount else path


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.write_text(rewritten(place.read_text("utf-8")), "utf-8")
