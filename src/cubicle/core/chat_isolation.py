"""Section 4.1 of the specification: which chat a request belongs to."""

from __future__ import annotations

from enum import StrEnum

from cubicle.core.chat import DEFAULT_CHAT_ID


class Isolation(StrEnum):
    """The values of SINGLE_USER_MODE."""

    LENIENT = "unset"
    SINGLE = "true"
    STRICT = "false"

    @classmethod
    def parse(cls, text: str) -> Isolation:
        match text.strip().lower():
            case "" | "unset":
                return cls.LENIENT
            case "true" | "1" | "yes" | "on":
                return cls.SINGLE
            case "false" | "0" | "no" | "off":
                return cls.STRICT
            case _:
                raise ValueError("must be true, false or unset")


class ChatIdMissing(ValueError):
    """Strict mode, and the request names no chat."""


def assign(mode: Isolation, sent: str | None) -> tuple[str, bool]:
    """(chat id, whether to warn that the sandbox is shared) for a request that sent this chat id."""
    match mode, sent:
        case Isolation.SINGLE, _:
            return DEFAULT_CHAT_ID, False
        case _, str():
            return sent, False
        case Isolation.LENIENT, None:
            return DEFAULT_CHAT_ID, True
        case _:
            raise ChatIdMissing("The X-Chat-Id header is required: this service runs with SINGLE_USER_MODE=false.")
