"""What a coding agent's calls of a model cost: read from the API's own usage fields, priced by a table."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

_MAX_LINE = 4 * 1024**2
_MAX_BODY = 16 * 1024**2
_BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars a million tokens; a request with a long prompt may cost more, all of it."""

    input: float
    output: float
    long_from: int = 2**62
    long_input: float = 0
    long_output: float = 0

    def of(self, prompt: int) -> tuple[float, float]:
        return (self.long_input, self.long_output) if prompt > self.long_from else (self.input, self.output)


_LONG = 200_000
# Where the rows are from: docs/sub-agent.md. Of the rows that fit a model's name the
# first counts. Where a family has several prices and its names tell them badly, the row is its dearest.
_PRICES = tuple(
    (re.compile(name), price)
    for name, price in (
        ("haiku-5-5", Price(0.1, 0.5, 100_000, 0.5, 2.5)),
        ("haiku", Price(1, 5)),
        ("sonnet-5", Price(2, 10)),
        ("sonnet-4-[6-9]", Price(3, 15)),
        ("sonnet", Price(3, 15, _LONG, 6, 22.5)),
        ("opus-5-5", Price(4, 20)),
        ("opus-(4-[5-9]|5)", Price(5, 25)),
        ("opus", Price(15, 75)),
        ("fable|mythos", Price(10, 50)),
        ("gpt.*-pro", Price(30, 180, 272_000, 60, 270)),
        (r"gpt-6(\.1)?-sol", Price(2, 10, 272_000, 4, 15)),
        (r"gpt-6\.1-terra", Price(1, 5, 272_000, 2, 7.5)),
        ("gpt-6-luna", Price(0.1, 0.5, 272_000, 0.2, 0.75)),
        ("gpt-5.*-(mini|nano)", Price(0.75, 4.5)),
        ("gpt-5", Price(5, 30, 272_000, 10, 45)),
        ("gpt", Price(10, 50, 272_000, 20, 75)),
        ("gemini.*flash", Price(1.5, 7.5)),
        ("gemini", Price(2, 12, _LONG, 4, 18)),
    )
)
_DEAREST = Price(max(price.input for _, price in _PRICES), max(price.output for _, price in _PRICES))
_CACHE_WRITE = 1.25
_CACHE_WRITE_HOUR = 2.0
_CACHE_READ = 0.1


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens, by what they cost."""

    input: int = 0
    output: int = 0
    cache_write: int = 0
    cache_read: int = 0
    cache_write_hour: int = 0
    """Written to be kept for an hour, which costs more than for five minutes."""

    @property
    def prompt(self) -> int:
        return self.input + self.cache_write + self.cache_read + self.cache_write_hour

    @property
    def tokens(self) -> int:
        return self.prompt + self.output

    def most(self, other: TokenUsage) -> TokenUsage:
        """The APIs count up while they stream: the largest number is the last."""
        return TokenUsage(
            max(self.input, other.input),
            max(self.output, other.output),
            max(self.cache_write, other.cache_write),
            max(self.cache_read, other.cache_read),
            max(self.cache_write_hour, other.cache_write_hour),
        )


def price(model: str, usage: TokenUsage) -> float:
    """Dollars. A model that no row knows costs what the dearest does, so that a budget holds for it too."""
    known = next((price for name, price in _PRICES if name.search(model.lower())), _DEAREST)
    given, taken = known.of(usage.prompt)
    written = usage.cache_write * _CACHE_WRITE + usage.cache_write_hour * _CACHE_WRITE_HOUR
    paid = usage.input + written + usage.cache_read * _CACHE_READ
    return (paid * given + usage.output * taken) / 1e6


class UsageMeter:
    """Reads the usage out of an answer as it passes, streamed or whole, in any of the dialects; memory is bounded."""

    def __init__(self) -> None:
        self.streamed = True
        """Server-sent events, not one JSON document."""
        self.whole = False
        """The answer was heard to its end."""
        self._rest = bytearray()
        self._over = False
        self._bytes = 0
        self.usage = TokenUsage()
        self.model = ""

    def feed(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        self._rest += chunk
        if self.streamed:
            *lines, rest = bytes(self._rest).split(b"\n") if b"\n" in chunk else (bytes(self._rest),)
            self._rest = bytearray(rest[:_MAX_LINE])
            for line in lines:
                if line.startswith(b"data:"):
                    self._event(line[5:])
        elif len(self._rest) > _MAX_BODY:
            self._rest.clear()
            self._over = True

    def finish(self) -> TokenUsage:
        """The usage in the end. Of an answer that was not heard to its end, the output is reckoned by its size."""
        if not self.streamed and not self._over:
            self._event(bytes(self._rest))
        if not self.whole:
            self.usage = self.usage.most(TokenUsage(output=self._bytes // _BYTES_A_TOKEN))
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


def _usage(fields: dict[str, Any]) -> TokenUsage:
    """One usage record: Anthropic's, OpenAI's (both of its APIs) or Google's."""
    if "promptTokenCount" in fields or "totalTokenCount" in fields:
        cached = _count(fields, "cachedContentTokenCount")
        output = _count(fields, "candidatesTokenCount") + _count(fields, "thoughtsTokenCount")
        return TokenUsage(max(0, _count(fields, "promptTokenCount") - cached), output, 0, cached)
    details = fields.get("input_tokens_details") or fields.get("prompt_tokens_details")
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else 0
    given = _count(fields, "input_tokens") + _count(fields, "prompt_tokens")
    taken = _count(fields, "output_tokens") + _count(fields, "completion_tokens")
    written, read = _count(fields, "cache_creation_input_tokens"), _count(fields, "cache_read_input_tokens")
    creation = fields.get("cache_creation")
    hour = min(written, _count(creation, "ephemeral_1h_input_tokens")) if isinstance(creation, dict) else 0
    return TokenUsage(max(0, given - cached), taken, written - hour, read + cached, hour)


def _count(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 else 0
