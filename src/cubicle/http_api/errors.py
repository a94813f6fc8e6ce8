"""The one place where errors become HTTP answers."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cubicle.agents.run_dir import NoTerminal
from cubicle.agents.runs import NotOurs
from cubicle.agents.sessions import NoSuchProcess, NoSuchSession
from cubicle.browser.chromium import BrowserUnavailable, NoBrowser
from cubicle.chat.terminal import TerminalUnavailable
from cubicle.core import problem as problems
from cubicle.core.chat import BadChatId
from cubicle.core.chat_isolation import ChatIdMissing
from cubicle.core.problem import Problem
from cubicle.fairness.fair_slots import Busy
from cubicle.http_api.error_page import error_page, fills_a_tab
from cubicle.machine.errors import NoSpace, SandboxError, StartRefused
from cubicle.sandbox.fleet import Asleep, NoSandbox

log = logging.getLogger(__name__)


class HttpRefusal(Exception):
    """A route gives this problem as its answer."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def refuse(status: int, detail: str) -> HttpRefusal:
    return HttpRefusal(Problem(status, detail))


def response(problem: Problem) -> Response:
    return Response(problem.body(), problem.status, dict(problem.headers), problems.MEDIA_TYPE)


def response_to(request: Request, problem: Problem) -> Response:
    """For a person in a tab, a page."""
    return error_page(request, problem) if fills_a_tab(request) else response(problem)


def problem_of(error: Exception) -> Problem:
    """The problem that an error is, for the client."""
    match error:
        case HttpRefusal():
            return error.problem
        case BadChatId() | ChatIdMissing():
            return problems.bad_request(str(error))
        case NoSandbox():
            return Problem(404, "This chat has no sandbox.", type=problems.NO_SANDBOX)
        case Asleep():
            return problems.asleep(str(error))
        case NoSuchProcess() | NoSuchSession():
            return Problem(404, str(error))
        case NotOurs():
            return Problem(409, str(error))
        case NoBrowser() | BrowserUnavailable() | TerminalUnavailable() | NoTerminal():
            return Problem(503, str(error))
        case NoSpace():
            return Problem(503, str(error), {"Retry-After": "60"})
        case Busy():
            return Problem(429, str(error), {"Retry-After": "1"})
        case StartRefused():
            return Problem(429, str(error), {"Retry-After": "10"})
        case SandboxError():
            return Problem(503, "The sandbox of this chat is not available now. Try again.")
        case HTTPException(status_code=405):
            return Problem(405, "This address does not answer to that method.", dict(error.headers or {}))
        case HTTPException():
            return Problem(error.status_code, error.detail, dict(error.headers or {}))
        case _:
            return problems.SERVER_ERROR


async def answer(request: Request | None, error: Exception) -> Response:
    """The exception handler of the whole application."""
    problem = problem_of(error)
    if problem is problems.SERVER_ERROR:
        log.error("a request failed", exc_info=error)
    elif problem.status >= 500 and not isinstance(error, NoSpace):
        log.warning("a request was refused with %d: %s", problem.status, error)
    return response_to(request, problem) if isinstance(request, Request) else response(problem)


HANDLERS = dict.fromkeys((HttpRefusal, BadChatId, ChatIdMissing, Busy, SandboxError, HTTPException, Exception), answer)
"""For Starlette's `exception_handlers`."""
