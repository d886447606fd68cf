"""What is under way in this process, as counters that are all zero when it is idle.

Its ``repr`` is the oracle of the tests: after every kind of request, cancellation and fault it must read
``<Integrity idle>`` again. ``/metrics`` shows the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Integrity:
    in_flight: int = 0
    """Client requests whose answer is not complete and that have not been settled."""
    runs: int = 0
    """Runs that are not in a terminal state, including those whose client is gone."""
    leases: int = 0
    """KV held on prefill engines for runs of ours."""
    places: int = 0
    """Taken at gates, or waited for."""
    exchanges: int = 0
    """Open HTTP exchanges with hops."""
    session_streams: int = 0
    """Streams open in derender sessions."""
    features_bytes: int = 0
    """Of the images of requests under way, as render gave them."""
    tasks: int = 0
    """Tasks that work on requests or clean up after them."""

    @property
    def idle(self) -> bool:
        return not any(getattr(self, counter.name) for counter in fields(self))

    def __repr__(self) -> str:
        busy = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name)]
        return f"<Integrity {' '.join(busy) or 'idle'}>"
