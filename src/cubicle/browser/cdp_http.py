"""DevTools answers of a sandbox's browser, with every address turned into one of the service."""

from __future__ import annotations

import json
import re
from typing import Any

from cubicle.browser.server_messages import TabRecord
from cubicle.core.untrusted_json import BadJson, parse

_PATH = re.compile(r"/devtools/(?:page|browser)/[A-Za-z0-9-]{1,64}")
_DROPPED = frozenset({"devtoolsFrontendUrl", "devtoolsFrontendUrlCompat"})
_MAX_PAGES = 200
_MAX_TEXT = 2048


_MAX_SIZE = 4 * 1024**2
_MAX_VALUES = 20_000


class NotDevTools(ValueError):
    """The answer is not what DevTools says."""


def _parse(body: bytes) -> Any:
    return parse(body, max_size=_MAX_SIZE, max_values=_MAX_VALUES)


def socket_path(address: Any) -> str | None:
    """The part of a DevTools address from /devtools/ on; None if it has none."""
    if not isinstance(address, str):
        return None
    start = address.find("/devtools/")
    match = _PATH.fullmatch(address, start) if start >= 0 else None
    return match.group() if match else None


def rewritten(body: bytes, base: str, query: str = "") -> bytes:
    """A DevTools answer whose WebSocket addresses lead through `base`; nothing is changed in one that is no JSON."""
    try:
        answer = _parse(body)
    except BadJson:
        return body
    if isinstance(answer, list):
        answer = [_rewritten(item, base, query) for item in answer]
    else:
        answer = _rewritten(answer, base, query)
    return json.dumps(answer, ensure_ascii=False, indent=1).encode()


def _rewritten(item: Any, base: str, query: str) -> Any:
    if not isinstance(item, dict):
        return item
    kept = {name: value for name, value in item.items() if name not in _DROPPED}
    if "webSocketDebuggerUrl" in kept:
        path = socket_path(kept.pop("webSocketDebuggerUrl"))
        if path is not None:
            kept["webSocketDebuggerUrl"] = f"{base}{path}{query}"
    return kept


def pages(body: bytes) -> list[TabRecord]:
    """The open pages of a /json answer: id, title and url, in bounded number and length."""
    try:
        answer = _parse(body)
    except BadJson:
        raise NotDevTools("The browser's answer is not JSON.") from None
    if not isinstance(answer, list):
        raise NotDevTools("The browser's answer is not a list.")
    found = [item for item in answer if isinstance(item, dict) and item.get("type") == "page"]
    return [
        {"id": _text(item.get("id", "")), "title": _text(item.get("title", "")), "url": _text(item.get("url", ""))}
        for item in found[:_MAX_PAGES]
    ]


def _text(value: Any) -> str:
    return str(value)[:_MAX_TEXT]


def version_path(body: bytes) -> str | None:
    """The path of the browser's own socket, from a /json/version answer."""
    try:
        answer = _parse(body)
    except BadJson:
        return None
    return socket_path(answer.get("webSocketDebuggerUrl")) if isinstance(answer, dict) else None
