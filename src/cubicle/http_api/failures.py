"""What an HTTP client is told when a sandbox cannot do what was asked: one table from errors to problem documents."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from cubicle.chat.agents import NoSuchProcess, NoSuchSession
from cubicle.chat.browser import BrowserUnavailable, NoBrowser
from cubicle.chat.terminal import TerminalUnavailable
from cubicle.rules.chats import BadChatId
from cubicle.rules.problems import MEDIA_TYPE, Problem
from cubicle.sandbox.driver import SandboxError, StartFailed
from cubicle.sandbox.fleet import NoSandbox
from cubicle.sandbox.machine import Gone

STATUSES: dict[type[Exception], int] = {
    BadChatId: 400,
    NoSandbox: 404,
    NoSuchProcess: 404,
    NoSuchSession: 404,
    NoBrowser: 503,
    BrowserUnavailable: 503,
    TerminalUnavailable: 503,
    StartFailed: 503,
    Gone: 503,
    SandboxError: 502,
}


async def answer(request: Request, error: Exception) -> Response:
    """A Starlette exception handler for every type of the table."""
    status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    problem = Problem(status, str(error))
    return Response(problem.body(), problem.status, media_type=MEDIA_TYPE)


HANDLERS = dict.fromkeys(STATUSES, answer)
