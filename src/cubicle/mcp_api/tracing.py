"""OpenTelemetry: a span for each MCP request, by the SDK's own middleware. Loaded only where a collector is set.

A request continues the trace that its `_meta` names, else that of its HTTP headers. Its commands find it in their
variable TRACEPARENT.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mcp.server._otel import OpenTelemetryMiddleware
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from opentelemetry import context as otel
from opentelemetry import propagate, trace

from cubicle.machine.trace_context import trace_variables
from cubicle.settings import BadSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_EXPORT_SECONDS = 5
_END_SECONDS = 8.0
_MAX_TEXT = 256

Context = ServerRequestContext[Any, Any]


class Tracing:
    """Middleware of the SDK's server, around all others."""

    def __init__(self) -> None:
        self._spans = OpenTelemetryMiddleware()

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        headers = ctx.request.headers if ctx.request is not None else {}
        sent = {name: value for name in ("traceparent", "tracestate") if (value := headers.get(name))}
        around = otel.attach(propagate.extract(sent))
        try:
            return await self._spans(ctx, _told_to_commands(call_next))
        finally:
            otel.detach(around)


def _told_to_commands(call_next: CallNext) -> CallNext:
    async def told(ctx: Context) -> HandlerResult:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        set_before = trace_variables.set({name.upper(): value for name, value in carrier.items()})
        try:
            return await call_next(ctx)
        finally:
            trace_variables.reset(set_before)

    return told


@asynccontextmanager
async def exporting(endpoint: str) -> AsyncIterator[None]:
    """Send spans to this collector within the block. Raises BadSettings where the extra is not installed."""
    if find_spec("opentelemetry.sdk") is None or find_spec("opentelemetry.exporter") is None:
        raise BadSettings(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set, and the packages for it are not installed: "
            "pip install 'cubicle[traces]'."
        )
    provider = await asyncio.to_thread(_provider, endpoint)
    try:
        yield
    finally:
        try:
            async with asyncio.timeout(_END_SECONDS):
                await asyncio.to_thread(provider.shutdown)
        except TimeoutError:
            pass  # the last spans are not worth more of a wait


def _provider(endpoint: str) -> TracerProvider:
    """Where the SDK's middleware finds it: there is one of each process. It exports on a thread of its own."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanLimits, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", timeout=_EXPORT_SECONDS)
    provider = TracerProvider(
        resource=Resource.create({"service.name": "cubicle"}),
        span_limits=SpanLimits(max_span_attribute_length=_MAX_TEXT),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider
