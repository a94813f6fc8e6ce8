"""The page that shows the OpenAPI document: plain HTML, no script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>HTTP API · {title}</title>
<link rel="icon" href="./static/icon.svg">
<style>
body {{ max-width: 60rem; margin: 0 auto; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif }}
code, pre, summary {{ font-family: ui-monospace, monospace; font-size: .9rem }}
details {{ border: 1px solid #8888; border-radius: 6px; margin: .4rem 0; padding: .4rem .8rem }}
summary {{ cursor: pointer; overflow-wrap: anywhere }}
summary:focus-visible {{ outline: 3px solid #2f55c8; outline-offset: 2px }}
summary b {{ display: inline-block; min-width: 4.5rem }}
pre {{ overflow-x: auto }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #8884 }}
</style>
</head>
<body>
<main>
<h1>{title} HTTP API <small>{version}</small></h1>
<p>{description} As a document: <a href="./openapi.json">openapi.json</a> (OpenAPI {openapi}).</p>
<h2>Routes</h2>
{routes}
<h2>WebSockets</h2>
{sockets}
<h2>Models</h2>
{models}
</main>
</body>
</html>
"""


def html(document: Mapping[str, Any]) -> str:
    info = document["info"]
    routes = (
        _details(method.upper(), path, operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    sockets = (_details("WS", socket["path"], socket) for socket in document["x-websockets"])
    schemas = document["components"]["schemas"].items()
    models = (f'<details id="{escape(n)}"><summary>{escape(n)}</summary>{_json(s)}</details>' for n, s in schemas)
    return _PAGE.format(
        title=escape(info["title"]),
        version=escape(info["version"]),
        description=escape(info["description"]),
        openapi=escape(document["openapi"]),
        routes="\n".join(routes),
        sockets="\n".join(sockets),
        models="\n".join(models),
    )


def _details(method: str, path: str, operation: Mapping[str, Any]) -> str:
    about = f"<p>{escape(operation['description'])}</p>"
    facts = (("Access", "x-who"), ("Chat id", "x-chat-id"), ("Sandbox", "x-sandbox-use"))
    about += f"<p>{' · '.join(f'{name}: {escape(operation[key])}' for name, key in facts)}</p>"
    body = operation.get("requestBody", {}).get("content", {})
    parts = [
        _table("Parameters", ("name", "in", "type"), _parameters(operation.get("parameters", ()))),
        _table("Request body", ("type", "schema"), ((m, _json(c["schema"])) for m, c in body.items())),
        _table("Answers", ("status", "meaning", "type", "body"), _answers(operation.get("responses", {}))),
    ]
    return f"<details><summary><b>{method}</b> {escape(path)}</summary>{about}{''.join(parts)}</details>"


def _parameters(parameters: Any) -> Iterator[tuple[str, ...]]:
    for parameter in parameters:
        yield escape(parameter["name"]), parameter["in"], _json(parameter["schema"])


def _answers(responses: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for status, response in responses.items():
        for media, content in (response.get("content") or {"": {}}).items():
            yield status, escape(response["description"]), escape(media), _schema(content.get("schema"))


def _schema(schema: Any) -> str:
    """A link to the model, or the schema itself."""
    if not schema:
        return ""
    if set(schema) == {"$ref"}:
        name = escape(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    return _json(schema)


def _json(schema: Any) -> str:
    text = json.dumps(schema, ensure_ascii=False)
    if len(text) > 80:
        text = json.dumps(schema, ensure_ascii=False, indent=2)
        return f"<pre>{escape(text)}</pre>"
    return f"<code>{escape(text)}</code>"


def _table(title: str, columns: tuple[str, ...], rows: Any) -> str:
    lines = [f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows]
    if not lines:
        return ""
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return f"<h3>{title}</h3><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
