"""Traces by OpenTelemetry, sent over OTLP/HTTP from a thread of their own.

Trace contexts are those of W3C. Name, sampling, queues and the exporter's headers are set by OpenTelemetry's
standard environment variables.
"""

from __future__ import annotations

import asyncio
import os
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from render_tier import __version__
from render_tier.protocol.session import SESSION_PATH, StreamOpen
from render_tier.server.tracing import End, Tracing

_CONTEXT: Final = TraceContextTextMapPropagator()


class OtelTracing(Tracing):
    def __init__(self, endpoint: str) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "render-tier")
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name, SERVICE_VERSION: __version__}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("render_tier", __version__)

    def request(self, path: str, trace: dict[str, str]) -> End:
        return self._begin(f"POST {path}", trace, {"http.request.method": "POST", "url.path": path})

    def stream(self, start: StreamOpen) -> End:
        told = {"url.path": SESSION_PATH, "gen_ai.response.id": start.request_id}
        return self._begin(f"stream {start.endpoint}", start.trace or {}, told)

    async def close(self) -> None:
        # Waits for the collector.
        await asyncio.to_thread(self._provider.shutdown)

    def _begin(self, name: str, trace: dict[str, str], attributes: dict[str, str]) -> End:
        span = self._tracer.start_span(name, _CONTEXT.extract(trace), SpanKind.SERVER, attributes)

        def end(status: int) -> None:
            span.set_attribute("http.response.status_code", status)
            if status >= 500:
                span.set_status(Status(StatusCode.ERROR))
            span.end()

        return end
