"""What surrounds every request."""

import asyncio
import json
import logging

import pytest

from cubicle import log
from cubicle.files.uploads import DiskFull
from cubicle.http_api.errors import answer, refuse
from cubicle.http_api.request_log import RequestLog
from cubicle.log import note

SCOPE = {"type": "http", "path": "/x", "method": "POST", "headers": []}


async def test_a_request_that_the_end_of_the_service_cuts_off_is_told_so():
    began, sent = asyncio.Event(), []

    async def app(scope, receive, send):
        began.set()
        await asyncio.sleep(600)

    async def send(message):
        sent.append(message)

    request = asyncio.create_task(RequestLog(app)(SCOPE, None, send))  # type: ignore[arg-type]
    await began.wait()
    request.cancel()
    await request
    start, body = sent
    assert start["status"] == 503
    assert dict(start["headers"])[b"content-type"] == b"application/problem+json"
    assert b"x-request-id" in dict(start["headers"])
    assert "shutting down" in json.loads(body["body"])["detail"]


async def test_an_answer_that_has_begun_is_just_cut_off():
    began = asyncio.Event()

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        began.set()
        await asyncio.sleep(600)

    async def send(message):
        assert message["type"] == "http.response.start"

    request = asyncio.create_task(RequestLog(app)(SCOPE, None, send))  # type: ignore[arg-type]
    await began.wait()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request


async def test_no_capability_is_written_to_the_log(caplog):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        pass

    caplog.set_level(logging.INFO)
    for root in ("", "/prefix"):
        scope = SCOPE | {"root_path": root, "path": f"{root}/raw/1795136837.YWNtZQ.cm9vbQ.s0.signature/page/a.png"}
        await RequestLog(app)(scope, None, send)  # type: ignore[arg-type]
        assert caplog.records[-1].path == f"{root}/raw/…/page/a.png"


async def test_a_refusal_takes_a_line_of_the_log_and_a_fault_its_traceback(caplog):
    for error, level, traceback in (
        (refuse(507, "The disk is full."), logging.WARNING, False),
        (DiskFull("no room"), logging.ERROR, True),
    ):
        caplog.clear()
        await answer(None, error)
        assert [(record.levelno, bool(record.exc_info)) for record in caplog.records] == [(level, traceback)]


async def test_an_unforeseen_error_is_a_500_with_the_id_that_its_lines_have(caplog):
    sent = []

    async def app(scope, receive, send):
        note(chat="a", tenant="acme", user="ann@example.org")
        raise RuntimeError("secret /var/lib/cubicle")

    async def send(message):
        sent.append(message)

    seen = []
    for logger in ("cubicle.http_api.errors", "cubicle.http_api.request_log"):
        caplog.set_level(logging.INFO, logger)
    handler = logging.Handler()
    handler.emit = lambda record: seen.append((record.getMessage(), dict(log._context.get())))  # type: ignore[method-assign]
    logging.getLogger("cubicle").addHandler(handler)
    try:
        await RequestLog(app)(SCOPE, None, send)  # type: ignore[arg-type]
    finally:
        logging.getLogger("cubicle").removeHandler(handler)
    start, body = sent
    request = dict(start["headers"])[b"x-request-id"].decode()
    assert (start["status"], json.loads(body["body"])["status"]) == (500, 500)
    assert b"secret" not in body["body"]
    assert [text for text, _ in seen] == ["a request failed", "request"]
    fields = {"request": request, "chat": "a", "tenant": "acme", "user": "ann@example.org"}
    assert all(context == fields for _, context in seen)


async def test_an_answer_that_has_begun_is_broken_off_by_an_unforeseen_error():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("secret")

    async def send(message):
        assert message["type"] == "http.response.start"

    with pytest.raises(RuntimeError):
        await RequestLog(app)(SCOPE, None, send)  # type: ignore[arg-type]
