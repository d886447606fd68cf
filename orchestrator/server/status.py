"""``/status``: what this process knows of its members, queues and latencies, as one JSON object. The page of
``status_page`` shows it."""

from __future__ import annotations

import os
import time
from typing import Any, Final

from orchestrator import __version__
from orchestrator.pool.member import Member
from orchestrator.pool.pool import Pool
from orchestrator.server.fleet import Followed
from orchestrator.server.services import Services

QUANTILES: Final = {"p50_ms": 0.5, "p99_ms": 0.99}

LAST: Final = 60
"""So many of the values that the quantiles are of, for a curve."""


def status(services: Services) -> dict[str, Any]:
    """Counts and latencies are this worker's; where there are several, ``/metrics`` has those of all."""
    deployment = services.deployment
    return {
        "version": __version__,
        "config": services.settings.digest(),
        "worker": os.getpid(),
        "uptime_seconds": round(time.monotonic() - services.started_at, 3),
        "draining": services.draining,
        "missing_roles": deployment.missing_roles(),
        "in_flight": services.integrity.in_flight,
        "pools": {
            pool.role: [_member(pool, member) for member in (*pool.members, *pool.leaving)]
            for pool in services.pools
        },
        "engine_limits": {
            "vocab_size": deployment.engine_limits.vocab_size,
            "max_model_len": deployment.engine_limits.max_model_len,
            "capabilities": sorted(deployment.engine_capabilities),
        },
        "sources": [_source(followed) for followed in services.fleet.sources],
        "queues": {
            gate.name: {"active": gate.active, "limit": gate.limit, "waiting": gate.waiting}
            for gate in services.admission.gates.values()
        },
        "latency": {
            name: {
                "count": len(recent),
                **_quantiles(recent.quantiles(*QUANTILES.values())),
                "last_ms": [_milliseconds(value) for value in recent.last(LAST)],
            }
            for name, recent in services.metrics.recent.items()
        },
    }


def _member(pool: Pool, member: Member) -> dict[str, Any]:
    return {
        "url": member.url,
        "generation": member.generation,
        "state": member.state,
        "healthy": member.probed,
        "breaker": "open" if pool.avoids(member) else "closed",
        "in_flight": member.active,
        "leases": member.leases,
        "capabilities": member.capabilities.as_json(),
        "differences": [difference.as_json() for difference in member.differences],
    }


def _source(followed: Followed) -> dict[str, Any]:
    return {
        "name": followed.source.name,
        "members": len(followed.specs),
        "error": followed.error,
        "failures": followed.failures,
    }


def _quantiles(seconds: list[float] | None) -> dict[str, float | None]:
    if seconds is None:
        return dict.fromkeys(QUANTILES)
    return {name: _milliseconds(value) for name, value in zip(QUANTILES, seconds, strict=True)}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
