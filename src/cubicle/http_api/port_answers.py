"""Answers that are the service's own under the name of a port: refusals, the way to the clean address, waiting."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from cubicle.core.problem import Problem
from cubicle.http_api import port_pages
from cubicle.http_api.port_headers import Lines, PortView
from cubicle.http_api.port_hosts import answer

_TITLES = {
    401: "This port is private",
    403: "Not allowed",
    404: "No such port",
    429: "Too many requests",
    502: "The program's answer cannot be shown",
    503: "Not available now",
}


class PortAnswers:
    """For one request: a page for a person, a problem (RFC 9457) for a program."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, view: PortView, *, for_person: bool) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._view = view
        self._for_person = for_person

    async def refuse(self, problem: Problem, note: bytes = port_pages.REFUSED) -> None:
        lines, body = port_pages.problem_body(problem, note)
        if self._for_person:
            title = _TITLES.get(problem.status, "This did not work")
            lines, body = port_pages.page(title, [problem.detail], note)
        await self._answer(problem.status, lines, body)

    async def wait(self, port: int, *, woken: bool) -> None:
        """Nothing listens yet: a page that loads again when something does."""
        problem = Problem(503, f"Nothing listens on port {port} of the sandbox yet.", {"Retry-After": "1"})
        lines, body = port_pages.problem_body(problem, port_pages.WAITING)
        if self._for_person:
            sentences = [f"Nothing listens on port {port} yet. This page loads by itself when something does."]
            if woken:
                sentences.insert(
                    0,
                    "The computer of this chat was stopped, and has just been started again. Its files are as they "
                    "were, but what ran on it is over. What is declared in services.json starts by itself now; any "
                    "other server has to be started again: ask for that in the chat.",
                )
            title = "The server has to be started again" if woken else f"Waiting for port {port}"
            lines, body = port_pages.page(title, sentences, port_pages.WAITING)
        await self._answer(503, lines, body)

    async def allow(self, lines: Lines) -> None:
        """A page of the same chat may send the request that it asked about."""
        await self._answer(204, [*lines, (b"cache-control", b"no-store")], b"")

    async def lead_on(self, target: bytes, cookies: list[str]) -> None:
        """To the same address without the link's token, with a cookie in its place."""
        lines: Lines = [
            (b"location", self._view.origin.encode() + target),
            (b"content-length", b"0"),
            (b"cache-control", b"no-store"),
            (b"referrer-policy", b"no-referrer"),
        ]
        lines += [(b"set-cookie", cookie.encode()) for cookie in cookies]
        await self._answer(303, lines, b"")

    async def _answer(self, status: int, lines: Lines, body: bytes) -> None:
        lines = [*lines, (b"content-security-policy", self._view.frame_policy)]
        await answer(self._scope, self._receive, self._send, status, lines, body)
