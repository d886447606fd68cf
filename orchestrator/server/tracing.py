"""Traces of requests: a span for each, below it one for every call of a hop, and its choices of members as
events.

Nothing is recorded unless an endpoint is configured; then ``otel`` does it, which alone knows OpenTelemetry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from orchestrator.core.selection import Decision
from orchestrator.settings import Tracing as TracingSettings
from render_tier.protocol.errors import ApiError

Value = str | int | float | bool


class Span:
    """Of one request, or of one call of a hop; this one is not recorded."""

    carrier: Mapping[str, str] = MappingProxyType({})
    """Headers of a call, by which what is recorded on the other side becomes a part of this span."""
    trace_id: str | None = None

    def hop(self, name: str, **attributes: Value) -> Span:
        """A call that begins now."""
        return self

    def decided(self, role: str, decision: Decision) -> None:
        """A member has been chosen."""

    def end(self, error: ApiError | None = None, **attributes: Value) -> None:
        """Once; a later end does nothing."""


_UNRECORDED: Final = Span()


class Tracing:
    """Records nothing."""

    def request(self, path: str, headers: Mapping[str, str], **attributes: Value) -> Span:
        """A request that begins now, as a part of the trace that its ``headers`` name."""
        return _UNRECORDED

    async def close(self) -> None:
        """Send what is recorded."""


async def open_tracing(settings: TracingSettings) -> Tracing:
    if settings.endpoint is None:
        return Tracing()
    from orchestrator.server.otel import OtelTracing

    # Looks for resources of the machine.
    return await asyncio.to_thread(OtelTracing, settings)
