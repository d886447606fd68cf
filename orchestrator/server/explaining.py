"""What was decided for one of the last requests, whichever worker served it."""

from __future__ import annotations

from typing import Final

import msgspec

from orchestrator.server.services import Services
from orchestrator.server.sibling_metrics import Siblings
from render_tier.protocol.errors import NotFound

REQUEST: Final = "request"
"""What workers ask each other for."""


def told(services: Services, name: str) -> bytes:
    """This process's record as JSON; empty where it has none."""
    record = services.records.find(name)
    return b"" if record is None else msgspec.json.encode(record.as_json())


async def record_of(services: Services, siblings: Siblings | None, name: str) -> bytes:
    """As JSON. Raises ``NotFound``."""
    found = told(services, name)
    if not found and siblings is not None and name.isprintable():
        answers = await siblings.ask_all(REQUEST, name)
        found = next((answer for answer in answers.values() if answer), b"")
    if not found:
        kept = services.settings.server.explained_requests
        raise NotFound(f"{name[:100]!r} is none of the last {kept} requests that have ended", param="id")
    return found
