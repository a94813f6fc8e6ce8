"""What a coding agent shows instead of a key: a token for one chat and one run, worth nothing outside the sandbox.

A token works while its run goes on, or, one of a take-over, while a person's terminal is open. Both facts are one small
record (`Live`), so whoever has the signing key and the record can check a call.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from dataclasses import dataclass

from cubicle.core import tokens
from cubicle.core.chat import Chat

_MAX_LENGTH = 4096
_PREFIX = "cubicle-"
_RUN, _TAKE_OVER = "run", "take-over"
RUN_ENDED = "This token ended with the run of the agent that it was made for."
TAKE_OVER_ENDED = (
    "This token serves a person who takes an agent over in the terminal, and no terminal of this chat is open."
)


@dataclass(frozen=True, slots=True)
class AgentToken:
    """Which run it is, until when it may call out at most, and which MCP servers it was given."""

    run: str
    expires: int
    servers: tuple[str, ...] = ()
    take_over: bool = False
    """Made for the person who goes on with the run's session, not for the run."""


@dataclass(frozen=True, slots=True)
class TokenSubject:
    """What goes on in one chat."""

    runs: frozenset[str] = frozenset()
    terminal_until: float = 0.0
    """The reading of the monotonic clock until which a person's terminal counts as open; infinite while it is."""


def refusal(given: AgentToken, live: TokenSubject, now: float) -> str:
    """Why a token that was issued does not work at this reading of the monotonic clock; empty if it does."""
    if given.take_over:
        return "" if now < live.terminal_until else TAKE_OVER_ENDED
    return "" if given.run in live.runs else RUN_ENDED


def signing_key(secret: bytes) -> bytes:
    """A key of its own for passes: none is a link, and no link is a pass."""
    return hmac.digest(secret, b"cubicle agent passes", "sha256")


def issue(key: bytes, chat: Chat, given: AgentToken) -> str:
    """The text that the agent carries."""
    kind = _TAKE_OVER if given.take_over else _RUN
    claims = json.dumps([kind, given.run, given.expires, *given.servers], separators=(",", ":")).encode()
    body = base64.urlsafe_b64encode(claims).decode().rstrip("=")
    return tokens.signed(key, ("agent", chat.digest), f"{_PREFIX}{body}")


def check(key: bytes, chat: Chat, text: str, now: float) -> AgentToken | None:
    """The pass, if it was issued for this chat and has not run out."""
    if len(text) > _MAX_LENGTH or not tokens.is_signed(key, ("agent", chat.digest), text):
        return None
    body = text.removeprefix(_PREFIX).partition(tokens.SEPARATOR)[0]
    try:
        kind, run, expires, *servers = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (binascii.Error, ValueError):
        return None
    if kind not in (_RUN, _TAKE_OVER) or not isinstance(expires, int) or now >= expires:
        return None  # of another version of the service, or too old
    return AgentToken(run, expires, tuple(servers), take_over=kind == _TAKE_OVER)
