"""/api/admin/webhooks: who is told of events, what could not be delivered, and another try."""

from __future__ import annotations

import asyncio
import sqlite3

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cubicle.http_api.errors import refuse
from cubicle.http_api.models import WebhookLetter, WebhookOverview, WebhookReceiver, WebhooksRetried
from cubicle.webhooks.store import Letter
from cubicle.webhooks.webhooks import Webhooks

MAX_LETTERS = 200
_TIMEOUT = 10.0
_BUSY = "The queue of webhooks cannot be read at present."


class WebhookRoutes:
    """For the operator."""

    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    async def listed(self, request: Request) -> Response:
        if not self._webhooks.enabled:
            return JSONResponse(WebhookOverview(receivers=[], dead=[], dropped=0))
        store = self._webhooks.store
        try:
            async with asyncio.timeout(_TIMEOUT):
                counts = {one.receiver: one for one in await self._webhooks.on_disk(store.counts)}
                dead = await self._webhooks.on_disk(store.letters, dead=True, count=MAX_LETTERS)
                dropped = await self._webhooks.on_disk(store.dropped)
        except (OSError, sqlite3.Error, TimeoutError):
            raise refuse(503, _BUSY) from None
        rows = []
        for one in self._webhooks.receivers:
            count = counts.get(one.name)
            rows.append(
                WebhookReceiver(
                    name=one.name,
                    host=one.host,
                    events=list(one.events),
                    tenants=list(one.tenants),
                    waiting=count.waiting if count else 0,
                    dead=count.dead if count else 0,
                    failing=self._webhooks.failing(one.name),
                )
            )
        return JSONResponse(WebhookOverview(receivers=rows, dead=[_row(letter) for letter in dead], dropped=dropped))

    async def retry(self, request: Request) -> Response:
        id, receiver = request.query_params.get("id", ""), request.query_params.get("receiver", "")
        if not self._webhooks.enabled:
            raise refuse(404, "This service has no webhooks: WEBHOOKS_FILE is not set.")
        if receiver and receiver not in (one.name for one in self._webhooks.receivers):
            raise refuse(404, "WEBHOOKS_FILE has no such receiver.")
        try:
            async with asyncio.timeout(_TIMEOUT):
                retried = await self._webhooks.retry([id] if id else None, receiver)
        except (OSError, sqlite3.Error, TimeoutError):
            raise refuse(503, _BUSY) from None
        if id and not retried:
            raise refuse(404, "There is no such dead letter.")
        return JSONResponse(WebhooksRetried(retried=retried))


def _row(letter: Letter) -> WebhookLetter:
    return WebhookLetter(
        id=letter.id,
        type=letter.type,
        tenant=letter.tenant,
        at=letter.at,
        receiver=letter.receiver,
        attempts=letter.attempts,
        error=letter.error,
    )
