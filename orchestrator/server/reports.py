"""What is told of a request when it is over: metrics, its span, its log line and the record of ``/admin``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from orchestrator.core.request_records import RequestRecord
from orchestrator.server.intake import ClientRequest
from orchestrator.server.outcomes import Outcome
from render_tier.protocol.errors import ApiError

if TYPE_CHECKING:
    from orchestrator.server.exchange import Exchange

log = structlog.get_logger(__name__)


def report(exchange: Exchange, request: ClientRequest, outcome: Outcome, error: ApiError | None) -> None:
    """Once, after every run."""
    answer, usage = exchange.answer, exchange.answer.usage
    services, timing = exchange.services, exchange.timing
    metrics = services.metrics
    metrics.requests.labels(answer.endpoint, outcome).inc()
    metrics.observe(timing)
    metrics.tokens.labels("prompt").inc(usage.prompt_tokens)
    metrics.tokens.labels("completion").inc(usage.completion_tokens)
    exchange.span.end(
        error,
        outcome=outcome,
        stream=exchange.streaming,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
    )
    told = {
        "id": answer.response_id,
        "client_id": request.client_id,
        "trace_id": exchange.span.trace_id,
        "key": None if request.access is None else request.access.grant.name,
        "endpoint": answer.endpoint,
        "stream": exchange.streaming,
        "outcome": outcome,
        "error": None if error is None else {"status": error.status, "message": error.message},
        "runs": len(exchange.runs),
        "members": [(role, made.winner.key, made.spilled) for role, made in exchange.decisions],
        "usage": usage.as_json(),
        "timing": timing.report(members=True),
    }
    log.info("request", **told)
    services.records.add(
        RequestRecord(
            answer.response_id,
            exchange.base_id,
            request.client_id,
            answer.created,
            told,
            exchange.decisions,
        )
    )
