"""Traces by OpenTelemetry, sent over OTLP/HTTP from a thread of their own.

Trace contexts are those of W3C (``traceparent``, ``tracestate``). Name, sampling, queues and the exporter's
headers are set by OpenTelemetry's standard environment variables.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Final

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as Recorded
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from orchestrator import __version__
from orchestrator.core.selection import Decision
from orchestrator.server.tracing import Span, Tracing, Value
from orchestrator.settings import Tracing as TracingSettings
from render_tier.protocol.errors import ApiError

_CONTEXT: Final = TraceContextTextMapPropagator()


class OtelSpan(Span):
    def __init__(self, tracer: Tracer, recorded: Recorded) -> None:
        self._tracer = tracer
        self._recorded = recorded
        self._ended = False
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, set_span_in_context(recorded))
        self.carrier = carrier
        self.trace_id = format_trace_id(recorded.get_span_context().trace_id)

    def hop(self, name: str, **attributes: Value) -> Span:
        context = set_span_in_context(self._recorded)
        span = self._tracer.start_span(name, context, SpanKind.CLIENT, _named(attributes))
        return OtelSpan(self._tracer, span)

    def decided(self, role: str, decision: Decision) -> None:
        if not self._recorded.is_recording():
            return
        told = decision.as_json()
        candidates = [msgspec.json.encode(each).decode() for each in told.pop("candidates")]
        self._recorded.add_event(
            "pd.decision", {**_named({"role": role, **told}), "pd.candidates": candidates}
        )

    def end(self, error: ApiError | None = None, **attributes: Value) -> None:
        if self._ended:
            return
        self._ended = True
        self._recorded.set_attributes(_named(attributes))
        if error is not None:
            self._recorded.set_status(Status(StatusCode.ERROR, error.message))
            self._recorded.set_attributes(
                {"error.type": type(error).__name__, "http.response.status_code": error.status}
            )
        self._recorded.end()


class OtelTracing(Tracing):
    def __init__(self, settings: TracingSettings) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "pd-orchestrator")
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name, SERVICE_VERSION: __version__}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint)))
        self._tracer = self._provider.get_tracer("orchestrator", __version__)

    def request(self, path: str, headers: Mapping[str, str], **attributes: Value) -> Span:
        told = {"http.request.method": "POST", "url.path": path, **_named(attributes)}
        span = self._tracer.start_span(f"POST {path}", _CONTEXT.extract(headers), SpanKind.SERVER, told)
        return OtelSpan(self._tracer, span)

    async def close(self) -> None:
        # Waits for the collector.
        await asyncio.to_thread(self._provider.shutdown)


_OF_CONVENTIONS: Final = {
    "model": "gen_ai.request.model",
    "response_id": "gen_ai.response.id",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}


def _named(attributes: Mapping[str, Value]) -> dict[str, Value]:
    """Under OpenTelemetry's own names where there are such, else under ``pd``."""
    return {_OF_CONVENTIONS.get(name, f"pd.{name}"): value for name, value in attributes.items()}
