"""A span for each generate request, as a part of its caller's trace, sent over OTLP/HTTP.

Name and attributes are those of vLLM's own span. Everything but the endpoint is set by OpenTelemetry's
environment variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from render_tier.protocol.errors import ApiError

_CONTEXT: Final = TraceContextTextMapPropagator()


class Traces:
    """Looks at the machine when it is made, and waits for the collector when it is closed."""

    def __init__(self, endpoint: str) -> None:
        name = os.environ.get("OTEL_SERVICE_NAME", "embedded-engine")
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("orchestrator.embedded")

    @contextmanager
    def request(
        self, headers: Mapping[str, str], request_id: str, prompt_tokens: int, max_tokens: int
    ) -> Iterator[None]:
        """One request from here to the end of its answer. ``headers`` has lower-case names."""
        told: dict[str, str | int] = {
            "gen_ai.request.id": request_id,
            "gen_ai.request.max_tokens": max_tokens,
            "gen_ai.usage.prompt_tokens": prompt_tokens,
        }
        span = self._tracer.start_span("llm_request", _CONTEXT.extract(headers), SpanKind.SERVER, told)
        try:
            yield
        except ApiError as error:
            span.set_status(Status(StatusCode.ERROR, error.message))
            raise
        finally:
            span.end()

    def close(self) -> None:
        self._provider.shutdown()
