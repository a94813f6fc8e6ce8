"""Where the relay may send an agent's calls: fixed by the settings, never by a request."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cubicle.core.bad_settings import BadSettings

if TYPE_CHECKING:
    from cubicle.settings import Settings

_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._:@-]*)+/?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*:\s*([ -~]+)")


class UpstreamFailed(Exception):
    """A call did not get through, or its answer broke off; the message is the kind of failure."""


@dataclass(frozen=True, slots=True)
class UpstreamApi:
    """A model's API: its address, the headers that open it, and the calls that an agent may make."""

    name: str
    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    calls: tuple[tuple[str, re.Pattern[str]], ...]
    keys: str
    """The settings that hold its key, for whoever must fix a wrong one."""

    def allows(self, method: str, path: str) -> bool:
        plain = is_plain_path(path)
        return plain and any(method == allowed and pattern.fullmatch(path) for allowed, pattern in self.calls)


def is_plain_path(path: str) -> bool:
    """Whether a path means the same to everybody who reads it.

    No segment begins with a dot, and there is nothing to decode or to strip: no `%`, backslash, `;` or empty segment.
    """
    return _PLAIN_PATH.fullmatch(path) is not None


def apis(settings: Settings) -> dict[str, UpstreamApi]:
    """The APIs that this service has a key for, or another address than the usual."""
    found = {}
    for api, usual in (
        (_anthropic(settings), "anthropic"),
        (_openai(settings), "openai"),
        (_gemini(settings), "gemini"),
    ):
        default = type(settings).model_fields[f"{usual}_base_url"].default
        if api.headers or api.url != default:
            found[api.name] = api
    return found


def _calls(*calls: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    pairs = (call.split(" ") for call in calls)
    return tuple((method, re.compile(path)) for method, path in pairs)


def _anthropic(settings: Settings) -> UpstreamApi:
    headers = list(_custom(settings.anthropic_custom_headers))
    if settings.anthropic_auth_token:
        headers.append(("Authorization", f"Bearer {settings.anthropic_auth_token}"))
    elif settings.anthropic_api_key:
        headers.append(("x-api-key", settings.anthropic_api_key))
    calls = _calls("POST /v1/messages", "POST /v1/messages/count_tokens", "GET /v1/models(/[A-Za-z0-9._:@-]+)?")
    keys = "ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN"
    return UpstreamApi("anthropic", settings.anthropic_base_url, tuple(headers), calls, keys)


def _openai(settings: Settings) -> UpstreamApi:
    headers = (("Authorization", f"Bearer {settings.openai_api_key}"),) if settings.openai_api_key else ()
    calls = _calls("POST /responses(/compact)?", "POST /chat/completions", "GET /models")
    return UpstreamApi("openai", settings.openai_base_url, headers, calls, "OPENAI_API_KEY")


def _gemini(settings: Settings) -> UpstreamApi:
    headers = (("x-goog-api-key", settings.gemini_api_key),) if settings.gemini_api_key else ()
    calls = _calls(r"POST /v1(beta|alpha)?/models/[A-Za-z0-9._-]+:(g|streamG)enerateContent", _COUNT)
    return UpstreamApi("gemini", settings.gemini_base_url, headers, calls, "GEMINI_API_KEY")


_COUNT = r"POST /v1(beta|alpha)?/models/[A-Za-z0-9._-]+:countTokens"


def _custom(text: str) -> tuple[tuple[str, str], ...]:
    found = []
    for line in filter(None, map(str.strip, text.replace("\\n", "\n").splitlines())):
        match = _HEADER.fullmatch(line)
        if match is None:
            raise BadSettings("ANTHROPIC_CUSTOM_HEADERS: every line must be of the form `Name: value`.")
        found.append((match[1], match[2].strip()))
    return tuple(found)
