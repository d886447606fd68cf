"""What was decided for the last requests, and how they ended: enough to explain one that somebody asks about.

A record is kept under its public id, and found by that, by the part of it that engines and render tiers see,
or by an id that its client chose. Of what a client chose twice the later one is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.selection import Decision


@dataclass(frozen=True, slots=True)
class RequestRecord:
    id: str
    base_id: str
    client_id: str | None
    began: float
    """Seconds since 1970."""
    told: Mapping[str, Any]
    """What the request's log line says."""
    decisions: Sequence[tuple[str, Decision]]
    """By role, in the order they were made."""

    def as_json(self) -> dict[str, Any]:
        decisions = [{"role": role} | made.as_json() for role, made in self.decisions]
        return {"began": self.began, **self.told, "decisions": decisions}


class RequestRecords:
    """The last ``size`` of them."""

    def __init__(self, size: int) -> None:
        self._records: deque[RequestRecord] = deque(maxlen=size)

    def add(self, record: RequestRecord) -> None:
        self._records.append(record)

    def find(self, name: str) -> RequestRecord | None:
        for record in reversed(self._records):
            if name in (record.id, record.base_id, record.client_id):
                return record
        return None
