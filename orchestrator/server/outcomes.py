"""How a client request ended, as the few words that ``pd_requests_total`` and the log count by."""

from __future__ import annotations

from typing import Literal

Outcome = Literal[
    "ok", "client_gone", "client_error", "rate_limited", "unavailable", "timeout", "server_error", "abandoned"
]


def outcome_of(status: int) -> Outcome:
    """Of a request that ended in an error with this HTTP status, told as a status or inside a stream."""
    if status == 429:
        return "rate_limited"
    if 400 <= status < 500:
        return "client_error"
    if status == 503:
        return "unavailable"
    return "timeout" if status == 504 else "server_error"
