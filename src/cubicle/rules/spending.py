"""What a coding agent's calls of a model cost: read from the API's own usage fields, priced by a table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_LONGEST_LINE = 4 * 1024**2
_LONGEST_BODY = 16 * 1024**2
_BYTES_A_TOKEN = 4

# Dollars a million tokens: (input, output), by the longest part of the model's name that fits.
_PRICES = {
    "haiku": (1.0, 5.0),
    "haiku-5-5": (0.1, 0.5),
    "sonnet": (3.0, 15.0),
    "sonnet-5-5": (2.0, 10.0),
    "opus": (5.0, 25.0),
    "opus-5-5": (4.0, 20.0),
    "opus-4-0": (15.0, 75.0),
    "opus-4-1": (15.0, 75.0),
    "opus-4-2025": (15.0, 75.0),
    "gpt-5": (1.75, 14.0),
    "gpt-5-mini": (0.25, 2.0),
    "gemini": (2.0, 12.0),
    "flash": (0.5, 3.0),
}
_DEAREST = (15.0, 75.0)
_CACHE_WRITE = 1.25
_CACHE_READ = 0.1


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, by what they cost."""

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0

    @property
    def tokens(self) -> int:
        return self.input + self.output + self.cache_write + self.cache_read

    def most(self, other: Usage) -> Usage:
        """The APIs count up while they stream: the largest number is the last."""
        return Usage(
            max(self.input, other.input),
            max(self.output, other.output),
            max(self.cache_write, other.cache_write),
            max(self.cache_read, other.cache_read),
        )


def price(model: str, usage: Usage) -> float:
    """Dollars. A model that no row knows costs what the dearest does, so that a budget holds for it too."""
    known = [part for part in _PRICES if part in model.lower()]
    given, taken = _PRICES[max(known, key=len)] if known else _DEAREST
    paid = usage.input + usage.cache_write * _CACHE_WRITE + usage.cache_read * _CACHE_READ
    return (paid * given + usage.output * taken) / 1e6


class Meter:
    """Reads the usage out of an answer as it passes, streamed or whole, in any of the dialects; memory is bounded."""

    def __init__(self) -> None:
        self.streamed = True
        """Server-sent events, not one JSON document."""
        self.whole = False
        """The answer was heard to its end."""
        self._rest = bytearray()
        self._over = False
        self._bytes = 0
        self.usage = Usage()
        self.model = ""

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        self._rest += chunk
        if self.streamed:
            *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in chunk else (bytes(self._rest),)
            self._rest = bytearray(rest[:_LONGEST_LINE])
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:])
        elif len(self._rest) > _LONGEST_BODY:
            self._rest.clear()
            self._over = True

    def finish(self) -> Usage:
        """The usage in the end. Of an answer that was not heard to its end, the output is reckoned by its size."""
        if not self.streamed and not self._over:
            self._event(bytes(self._rest))
        if not self.whole:
            self.usage = self.usage.most(Usage(output=self._bytes // _BYTES_A_TOKEN))
        return self.usage

    def _event(self, text: bytes) -> None:
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            return
        for part in event if isinstance(event, list) else [event]:
            if isinstance(part, dict):
                self._read(part)

    def _read(self, event: dict[str, Any]) -> None:
        for place in (event, event.get("message"), event.get("response")):
            if isinstance(place, dict):
                for name in ("usage", "usageMetadata"):
                    if isinstance(found := place.get(name), dict):
                        self.usage = self.usage.most(_usage(found))
                if isinstance(model := place.get("model") or place.get("modelVersion"), str):
                    self.model = self.model or model[:200]


def _usage(fields: dict[str, Any]) -> Usage:
    """One usage record: Anthropic's, OpenAI's (both of its APIs) or Google's."""
    if "promptTokenCount" in fields or "totalTokenCount" in fields:
        cached = _count(fields, "cachedContentTokenCount")
        output = _count(fields, "candidatesTokenCount") + _count(fields, "thoughtsTokenCount")
        return Usage(max(0, _count(fields, "promptTokenCount") - cached), output, 0, cached)
    details = fields.get("input_tokens_details") or fields.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    given = _count(fields, "input_tokens") + _count(fields, "prompt_tokens")
    taken = _count(fields, "output_tokens") + _count(fields, "completion_tokens")
    written, read = _count(fields, "cache_creation_input_tokens"), _count(fields, "cache_read_input_tokens")
    return Usage(max(0, given - cached), taken, written, read + cached)


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else 0
