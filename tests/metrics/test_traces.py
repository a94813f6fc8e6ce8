"""Traces, as a real OTLP receiver gets them: the caller's trace goes through the service to the commands."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import TracerProvider

from cubicle.mcp_api.tracing import exporting
from cubicle.sandbox.fleet import Fleet
from tests.support.service import Options, Service, fleet_of, service_of

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"


class Collector(ThreadingHTTPServer):
    """Takes what exporters send, over HTTP, in the protocol's own format."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.spans: list[Span] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Receiver(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in group.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture(scope="module")
async def service(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    async with (
        exporting(collector.url),
        fleet_of(tmp_path_factory.mktemp("fleet")) as fleet,
        service_of(fleet, Options(settings={"otel_exporter_otlp_endpoint": collector.url})) as service,
    ):
        yield service


async def spans_of(collector: Collector, trace_id: str) -> list[Span]:
    """All that came of a trace, once some did."""
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    async with asyncio.timeout(30):
        while not (found := [span for span in list(collector.spans) if span.trace_id.hex() == trace_id]):
            await asyncio.to_thread(provider.force_flush)
    return found


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_trace_of_the_http_header_goes_on_to_the_command(
    service: Service, collector: Collector, era: str
) -> None:
    trace_id = TRACE[:-1] + ("a" if era == "modern" else "b")
    ask = service.ask_modern if era == "modern" else service.ask
    arguments = {"command": "echo $TRACEPARENT", "description": "test"}
    answer = await ask(
        "tools/call",
        {"name": "bash_tool", "arguments": arguments},
        headers={"traceparent": f"00-{trace_id}-{PARENT}-01"},
    )
    printed = answer["result"]["content"][0]["text"].strip()
    (span,) = await spans_of(collector, trace_id)
    assert span.name == "tools/call bash_tool"
    assert span.parent_span_id.hex() == PARENT
    assert printed == f"00-{trace_id}-{span.span_id.hex()}-01"


async def test_a_trace_in_the_request_goes_before_that_of_the_header(service: Service, collector: Collector) -> None:
    trace_id = TRACE[:-1] + "c"
    await service.ask(
        "tools/list", {"_meta": {"traceparent": f"00-{trace_id}-{PARENT}-01"}}, headers={"traceparent": TRACEPARENT}
    )
    (span,) = await spans_of(collector, trace_id)
    assert span.name == "tools/list"
    assert not [found for found in collector.spans if found.trace_id.hex() == TRACE]


async def test_a_hostile_traceparent_is_no_trace(service: Service) -> None:
    for bad in ("00-x-y-01", "$(id)", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 4000):
        printed = await service.bash("echo $TRACEPARENT", headers={"traceparent": bad})
        assert bad not in printed


async def test_spans_hold_no_argument_and_no_output(service: Service, collector: Collector) -> None:
    trace_id = TRACE[:-1] + "d"
    await service.bash("echo hush-hush", chat="hidden-chat", headers={"traceparent": f"00-{trace_id}-{PARENT}-01"})
    text = str(await spans_of(collector, trace_id))
    assert "hush" not in text
    assert "hidden-chat" not in text


async def test_without_a_collector_nothing_is_traced(fleet: Fleet) -> None:
    async with service_of(fleet) as service:
        printed = await service.bash("echo [$TRACEPARENT]", headers={"traceparent": TRACEPARENT})
    assert printed.strip() == "[]"


@pytest.fixture(scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with fleet_of(tmp_path_factory.mktemp("untraced")) as fleet:
        yield fleet
