"""Server spans of a caller's trace: one for each request of a hot route, one for each stream of a session.

Nothing is recorded unless an endpoint is configured; then ``otel`` does it, which alone knows OpenTelemetry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from render_tier.protocol.session import StreamOpen

End = Callable[[int], None]
"""Called once, at the end, with the HTTP status."""


class Tracing:
    """Records nothing."""

    def request(self, path: str, trace: dict[str, str]) -> End:
        """A request begins. ``trace``: W3C trace context by the names of its headers."""
        return _unrecorded

    def stream(self, start: StreamOpen) -> End:
        """A stream of a session begins."""
        return _unrecorded

    async def close(self) -> None:
        """Send what is recorded."""


def _unrecorded(_status: int) -> None:
    pass


async def open_tracing(endpoint: str | None) -> Tracing:
    if endpoint is None:
        return Tracing()
    from render_tier.server.otel import OtelTracing

    # Looks for resources of the machine.
    return await asyncio.to_thread(OtelTracing, endpoint)
