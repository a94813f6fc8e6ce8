"""JSON documents of an authorization server, fetched within limits: its metadata, its keys, its answers with tokens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx

TIMEOUT = 5.0
"""Seconds for one document as a whole: a server that sends a byte a second is no better than one that is down."""
MAX_SIZE = 512 * 1024


class BadDocument(Exception):
    """The server cannot be reached in time, or sent something else; the message is for the operator's log."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


async def fetch_json(
    web: httpx.AsyncClient,
    url: str,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The JSON object at a URL; with a form, the answer to it as a POST. Follows no redirect. Raises BadDocument."""
    status, content = await _fetch(web, url, form, {"Accept": "application/json", **(headers or {})})
    if status != 200:
        redirect = ", and redirects are not followed" if 300 <= status < 400 else ""
        raise BadDocument(f"{url} answered {status}{redirect}", status)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise BadDocument(f"{url} is not JSON") from None
    if not isinstance(document, dict):
        raise BadDocument(f"{url} is not a JSON object")
    return document


async def _fetch(
    web: httpx.AsyncClient, url: str, form: Mapping[str, str] | None, headers: Mapping[str, str]
) -> tuple[int, bytes]:
    method = "GET" if form is None else "POST"
    content = bytearray()
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            web.stream(method, url, data=form, headers=headers, follow_redirects=False, timeout=TIMEOUT) as answer,
        ):
            async for part in answer.aiter_bytes(65536):
                content += part
                if len(content) > MAX_SIZE:
                    raise BadDocument(f"{url} is larger than {MAX_SIZE // 1024} KiB")
            return answer.status_code, bytes(content)
    except TimeoutError:
        raise BadDocument(f"{url} did not answer within {TIMEOUT:g} seconds") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise BadDocument(f"{url} cannot be fetched: {type(error).__name__}") from None
