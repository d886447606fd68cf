"""Token-in requests to an engine, and its answers to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from orchestrator.core.long_strings import written
from orchestrator.hops.errors import HopName
from orchestrator.hops.messages import EngineAnswer
from orchestrator.hops.transport import Transport, decoded

GENERATE = "/inference/v1/generate"

ANSWERS = msgspec.json.Decoder(EngineAnswer)


async def whole_answer(
    transport: Transport,
    hop: HopName,
    base_url: str,
    request: Mapping[str, Any],
    headers: Mapping[str, str],
    budget: float,
) -> EngineAnswer:
    """Of a request that does not stream. Raises ``HopError``."""
    url = base_url + GENERATE
    reply = await transport.call(hop, "POST", url, written(request), budget=budget, headers=headers)
    return decoded(ANSWERS, hop, url, reply.body)
